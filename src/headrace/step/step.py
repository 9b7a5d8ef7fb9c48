"""One step of one model: an update for each of its optimizers."""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..arena.gradients import all_finite, total
from ..arena.optimizer import by_name, check_state, is_plain, load_state
from ..arena.replica import Replica
from ..arena.vectors import names_of, owners, plain_name
from ..data.batch import Batch
from ..errors import CheckpointError, ModelError, NonFiniteError
from ..loss.objective import Objective, scoring
from ..loss.outcome import Outcome, merged
from ..workers.strategy import Strategy
from .given import groups_of
from .guard import Guard
from .precision import Precision
from .repeat import Repeat
from .settings import CHANGEABLE, ROWS_MEET, Look, Settings, Updates, alone
from .tape.tapes import LARGEST, Tapes
from .update import Update

ALONE = 1 << 16
"""Elements from which on a parameter of a large model is not stored in a vector. There torch would add up its gradient
in memory that is cleared before, which takes longer than what the vector saves."""


CHECK_EVERY = 64
"""Updates between two checks of the weights. A check takes a twentieth of the time of a small update."""


class Step(Updates):
    """Updates a model from a batch; with several optimizers, one update each, in order, some not at every step.

    Models live in an arena between `home` and `release`; `updates` counts what has been done.
    """

    def __init__(
        self,
        model: nn.Module,
        objectives: Mapping[str, Objective],
        optimizers: Mapping[str, Optimizer],
        settings: Settings,
        precision: Precision,
        guard: Guard,
        strategy: Strategy,
        looks: Sequence[Look],
        pauses: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(model, dict(objectives), dict(optimizers), settings, precision, guard, strategy)
        self.scored = scoring(objectives)
        self.ends_alone = False
        """Whether the last batch of an epoch, or a microbatch of it, is going to have a single row."""
        self._pauses = pauses or {}
        """At every which step the optimizer of a key is used, of those that are not used at each."""
        self._parts: list[Update] = []
        self._answers: dict[Objective, Tapes] = {}
        self._follows: Callable[[Batch], Outcome | None] | None = None
        self._whole: Any = None  # of the batch that was followed with
        self._note = ""
        self._not_finite: set[str] | None = None  # what was not finite when the training began
        self._checked = 0  # the last update after which the weights were checked
        self.measure(looks)

    def measure(self, looks: Sequence[Look]) -> None:
        """From the next training on, metrics look at these outputs."""
        self.release()
        self.looks = looks

    @property
    def homed(self) -> bool:
        return bool(self._parts)

    def home(self) -> None:
        """Moves the model into its arenas."""
        if self.homed:
            return
        self.expect()
        buffers = Buffers(self.model, packed=self.settings.arena)
        alone = self.strategy.comm.count == 1
        largest = ALONE if alone and sum(p.nbytes for p in self.model.parameters()) > LARGEST else None
        parts: list[Update] = []
        try:
            for name, optimizer in self.optimizers.items():
                arena = Arena(self.model, optimizer, packed=self.settings.arena, largest=largest, release=self.release)
                parts.append(Update(self, name, self.objectives[name], arena, buffers))
        except BaseException:
            for part in parts:
                part.arena.release()
            buffers.release()
            raise
        self._parts, self._answers = parts, {}

    def release(self) -> None:
        """Makes model and optimizers ordinary again."""
        self._note, self._follows = self.tape_note, None
        parts, self._parts, self._answers, self.torn = self._parts, [], {}, ""
        if parts:
            self.strategy.release()
        with ExitStack() as stack:  # each of them, even if one fails
            for part in parts:
                stack.callback(part.arena.release)
                stack.callback(part.buffers.release)

    @property
    def tape_note(self) -> str:
        """Whether updates are replayed from a tape, or why not; nothing as long as that is not decided."""
        return next((part.tapes.note for part in self._parts if part.tapes.note), self._note)

    @property
    def norms(self) -> dict[str, Tensor]:
        """The norm of the gradients of the last update of each optimizer, where it was measured."""
        return {part.name: part.norm for part in self._parts if part.norm is not None}

    def answers(self, objective: Objective, watched: bool) -> Tapes:
        """The passes of a model that is not trained in them, as long as it stays where it is.

        `watched`: callbacks are called after each, which may change the model.
        """
        if objective not in self._answers:
            device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
            memory = self.strategy.comm.memory
            self._answers[objective] = Tapes(self.settings.tape, self.model, objective, device, memory)
        self._answers[objective].end_epoch()
        self._answers[objective].watched = watched
        return self._answers[objective]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on but the model's own state and random numbers."""
        return {
            "updates": self.updates,
            "skipped": self.guard.skipped,
            "microbatch": self.microbatch,
            "settings": {name: getattr(self.settings, name) for name in CHANGEABLE},
            "scaler": self.precision.state_dict(),
            "optimizers": dict(zip(self.optimizers, self._optimizer_states(), strict=True)),
        }

    @property
    def nbytes(self) -> int:
        """About how large a checkpoint is: the weights, and as much again for each thing an optimizer remembers."""
        weights = sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])
        return weights + sum(map(_remembered, self.optimizers.values()))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises unless a state belongs to optimizers like these."""
        names = owners(self.model)
        if state["optimizers"].keys() != self.optimizers.keys():
            raise CheckpointError(
                f"the optimizers were {list(state['optimizers'])} and are {list(self.optimizers)}. Name them as before."
            )
        for key, optimizer in self.optimizers.items():
            check_state(optimizer, names_of(optimizer, names), state["optimizers"][key], key)

    def load_state_dict(self, state: Mapping[str, Any], overridden: bool = False) -> None:
        """Goes back to a state that has been checked; `overridden`: hyperparameters stay as they are now."""
        self.release()
        names = owners(self.model)
        for key, optimizer in self.optimizers.items():
            load_state(optimizer, names_of(optimizer, names), state["optimizers"][key], settings=not overridden)
        self.precision.load_state_dict(state["scaler"])
        self.updates, self.guard.skipped = state["updates"], state["skipped"]
        self._checked = self.updates
        if self.adapts:
            self.microbatch = state["microbatch"]

    def replica(self) -> Replica:
        """The model as a strategy sees it, at home."""
        self.home()
        return Replica(self.model, lambda: [part.arena for part in self._parts])

    def begin(self) -> None:
        """A training begins, and counts its updates anew."""
        self.updates = self._checked = 0
        self.unproven, self._not_finite = True, None

    def settle(self) -> None:
        """Raises if an update was bad or a weight is not finite: before weights are saved, reported or returned."""
        self.guard.settle()
        self._check_weights()

    def _check_weights(self) -> None:
        """Raises if an optimizer has made a weight not finite, though the gradients were finite."""
        if self._checked == self.updates:
            return
        params = [param.detach() for group in groups_of(self.optimizers.values()) for param in group["params"]]
        params = [torch.view_as_real(param) if param.is_complex() else param for param in params]
        if math.isfinite(float(total([param for param in params if param.is_floating_point()]))):
            self._checked = self.updates
            return
        named = [part.arena.names for part in self._parts]
        if not named:
            places = owners(self.model)
            named = [names_of(optimizer, places) for optimizer in self.optimizers.values()]
        first, known = self._checked + 1, self._not_finite or set()
        for (key, optimizer), names in zip(self.optimizers.items(), named, strict=True):
            bad = [n for param, n in names.items() if n not in known and not all_finite([param.detach()])]
            if not bad:
                continue
            rates = ", ".join(f"{float(group['lr']):g}" for group in optimizer.param_groups)
            raise NonFiniteError(
                f"step {f'{first} to ' * (first < self.updates)}{self.updates}: {type(optimizer).__name__}"
                f"{f' of {key!r}' if key else ''} (rate {rates}) has made {', '.join(map(repr, bad[:3]))} not finite, "
                "though losses and gradients were finite. This cannot be undone: go on from the last checkpoint, or "
                "begin anew, with a lower rate, a larger eps=, or clip_norm=."
            )
        self._checked = self.updates

    def expect(self) -> None:
        """Before the first update: remembers what is not finite already, as a mask may be, and may stay so."""
        if self._not_finite is None:
            tensors = dict(self._fractions())
            finite = math.isfinite(float(total(list(tensors.values()))))
            self._not_finite = set() if finite else {name for name, t in tensors.items() if not all_finite([t])}

    def watch(self, outcome: Outcome) -> None:
        """After an update by hand: the guard checks the weights when it settles, or now if a loss is not finite."""
        known = self._not_finite or set()
        self.guard.watch(f"step {self.updates}", lambda: {n: t for n, t in self._fractions() if n not in known})
        losses = [self.guard.read(term.sum) for term in outcome.terms.values()]
        if not all(isinstance(loss, Tensor) or math.isfinite(loss) for loss in losses):
            self.guard.look()

    def _fractions(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.is_floating_point():
                yield plain_name(name), tensor.detach()

    def _optimizer_states(self) -> Iterator[dict[str, Any]]:
        if self._parts:
            yield from (part.arena.state_dict() for part in self._parts)
            return
        names = owners(self.model)
        for optimizer in self.optimizers.values():
            groups = [group["params"] for group in optimizer.param_groups]
            states = [(p, optimizer.state[p]) for group in groups for p in group if p in optimizer.state]
            yield by_name(optimizer, groups, states, names_of(optimizer, names))

    def __call__(self, batch: Batch) -> Outcome:
        if self.torn:
            raise ModelError(
                f"{self.torn}: weights and optimizer may be those of half an update. Go on from the last checkpoint, "
                "or call trainer.release() to go on from what they are."
            )
        self.home()
        if self.ends_alone:
            self.ends_alone = False
            at_once = min(self.microbatch or batch.rows, batch.rows)
            shared = "" if self.strategy.comm.count == 1 else "a worker's part of "
            single = f"{shared}the last batch of every epoch"
            with _no_row_alone(self.model, {at_once, batch.rows % max(1, at_once)}, single):
                return self(batch)
        self._follows = None
        try:
            if len(self._parts) == 1:
                update = self._parts[0]
                outcome = self._alone(update, batch) or update(batch)
            else:
                outcome = merged([(part.name, part(batch)) for part in self._due()], self.scored)
        except NonFiniteError:
            self._check_weights()  # an update before this one may be the cause
            raise
        self._count()
        return outcome

    def repeat(self) -> Callable[[Batch], Outcome | None] | None:
        """What makes the next updates if they repeat the last one: see `headrace.step.repeat.Repeat`."""
        if len(self._parts) != 1 or self._pauses or self.torn:
            return None
        repeat = Repeat.of(self._parts[0])
        return None if repeat is None else partial(self._counted, repeat)

    def follow(self, batch: Batch) -> Outcome:
        """The update of a batch, for a caller who knows that only rates have changed since the last one by `follow`.

        Batches with another `whole` begin anew.
        """
        follows, self._follows = self._follows, None
        outcome = None if follows is None or self._whole is not batch.whole else follows(batch)
        if outcome is None:
            outcome = self(batch)
            follows = self.repeat()
        self._follows, self._whole = follows, batch.whole
        return outcome

    def _counted(self, repeat: Repeat, batch: Batch) -> Outcome | None:
        outcome = repeat(batch)
        if outcome is not None:
            self._count()
        return outcome

    def _count(self) -> None:
        self.updates += 1
        if self.updates % CHECK_EVERY == 0:
            self._check_weights()

    def _alone(self, update: Update, batch: Batch) -> Outcome | None:
        """An update, if it repeats the last one, after which anything may have changed."""
        repeat = Repeat.of(update, touched=True)
        outcome = None if repeat is None else repeat(batch)
        if outcome is not None and batch.ends_epoch:
            update.tapes.end_epoch()
        return outcome

    def _due(self) -> list[Update]:
        """The updates that this step makes."""
        every, now = self._pauses, self.updates + 1
        return [part for part in self._parts if now % every.get(part.name, 1) == 0] if every else self._parts


@contextmanager
def _no_row_alone(model: nn.Module, counts: Container[int], single: str) -> Iterator[None]:
    """For a while, batch normalisation raises where it has one value for each row of the batch and each channel.

    There it could not train on a batch of one row. `counts`: how many rows pass the model at once. `single`: what
    errors call such a batch.
    """

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        rows = given[0] if given and module.training else None
        if isinstance(rows, Tensor) and rows.dim() > 1 and len(rows) in counts and rows[0, 0].numel() == 1:
            raise alone(single)

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, ROWS_MEET):
                stack.callback(module.register_forward_pre_hook(look).remove)
        yield


def _remembered(optimizer: Optimizer) -> int:
    """Bytes of what an optimizer remembers, or is going to: most keep two numbers for each weight, plain SGD none."""
    if optimizer.state:
        return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    return 0 if is_plain(optimizer) else 2 * sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
