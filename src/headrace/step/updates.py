"""The updates of a model: one for each of its optimizers, in order, some not at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..arena.arena import Arena, all_finite, total
from ..arena.buffers import Buffers
from ..arena.joint import kind_of
from ..arena.optimizer import by_name, check_state, is_plain, load_state
from ..arena.replica import Replica
from ..arena.sharding import local
from ..arena.vectors import names_of, owners, plain_name
from ..data.batch import Batch
from ..errors import CheckpointError, ModelError, NonFiniteError
from ..loss.objective import Objective
from ..loss.outcome import Outcome, merged
from ..workers.strategy import Strategy
from .arguments import groups_of
from .guard import Guard
from .precision import Precision
from .settings import CHANGEABLE, OutputGetter, Settings, StepState
from .tape.tapes import LARGEST, Tapes
from .update import Update

LARGEST_PACKED = 1 << 16
"""Elements from which on a parameter of a large model stays outside of vectors: zeroing its gradient costs more than
packing saves."""
CHECK_EVERY = 64
"""Updates between two checks of the weights. A check takes a twentieth of the time of a small update."""


class Updates(StepState):
    """Updates a model from a batch. The model lives in arenas between `home` and `release`."""

    def __init__(
        self,
        model: nn.Module,
        objectives: Mapping[str, Objective],
        optimizers: Mapping[str, Optimizer],
        settings: Settings,
        precision: Precision,
        guard: Guard,
        strategy: Strategy,
        getters: Sequence[OutputGetter],
        pauses: Mapping[str, int],
    ) -> None:
        self._each: list[Update] = []
        super().__init__(model, objectives, optimizers, settings, precision, guard, strategy, getters)
        self._pauses = pauses  # at every which step the optimizer of a key is used, of those that are not used at each
        self._answers: dict[Objective, Tapes] = {}
        self._tape_note = strategy.note
        self._not_finite: set[str] | None = None  # what was not finite when the training began
        self._checked = 0  # the last update after which the weights were checked

    def make(self, batch: Batch) -> Outcome:
        """Makes the update of a batch. `touched` has to be called before, if code of the user's was."""
        if self.failed_step:
            raise ModelError(
                f"{self.failed_step}: weights and optimizer may be those of half an update. Go on from the last "
                "checkpoint, or call trainer.release() to go on from what they are."
            )
        if not self._each:
            self.home()
        try:
            if len(self._each) == 1:
                outcome = self._each[0].make(batch)
            else:
                outcome = merged([(update.name, update.make(batch)) for update in self._due()], self.scored)
        except NonFiniteError:
            self._check_weights()  # an update before this one may be the cause
            raise
        self.count += 1
        if self.count % CHECK_EVERY == 0:
            self._check_weights()
        return outcome

    def touched(self) -> None:
        """Code of the user's has been called, and may have changed anything."""
        for update in self._each:
            update.touched()

    def change(self, **settings: Any) -> None:
        super().change(**settings)
        self.touched()

    def measure(self, getters: Sequence[OutputGetter]) -> None:
        """From the next training on, metrics look at these outputs."""
        self.release()
        self.getters = getters

    # --- arenas -------------------------------------------------------------------------------------------

    @property
    def homed(self) -> bool:
        """Whether the model is in its arenas."""
        return bool(self._each)

    def home(self) -> None:
        """Moves the model into its arenas."""
        if self.homed:
            return
        self.expect()
        buffers = Buffers(self.model, packed=self.settings.arena)
        is_large = sum(p.nbytes for p in self.model.parameters()) > LARGEST
        is_alone = self.strategy.comm.count == 1 and not self.strategy.parts
        largest = LARGEST_PACKED if is_large and is_alone else None
        each: list[Update] = []
        try:
            for name, optimizer in self.optimizers.items():
                arena = Arena(
                    self.model,
                    optimizer,
                    packed=self.settings.arena,
                    shards=self.strategy.shards,
                    largest=largest,
                    release=self.release,
                )
                each.append(Update(self, name, self.objectives[name], arena, buffers))
        except BaseException:
            for update in each:
                update.arena.release()
            buffers.release()
            raise
        self._each, self._answers = each, {}

    def release(self) -> None:
        """Makes model and optimizers ordinary again."""
        self._tape_note = self.tape_note
        each, self._each, self._answers, self.failed_step = self._each, [], {}, ""
        if each:
            self.strategy.release()
        with ExitStack() as stack:  # each of them, even if one fails
            for update in each:
                stack.callback(update.arena.release)
                stack.callback(update.buffers.release)

    def replica(self) -> Replica:
        """The model as a strategy sees it, at home."""
        self.home()
        return Replica(self.model, lambda: [update.arena for update in self._each])

    @property
    def last_batch(self) -> Batch | None:
        """The batch of the last update, while the model is at home."""
        return self._each[0].batch if self._each else None

    @property
    def tape_note(self) -> str:
        """Whether updates are replayed from a tape, or why not; nothing as long as that is not decided."""
        return next((update.tapes.note for update in self._each if update.tapes.note), self._tape_note)

    @property
    def norms(self) -> dict[str, Tensor]:
        """The norm of the gradients of the last update of each optimizer, where it was measured."""
        return {update.name: update.norm for update in self._each if update.norm is not None}

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

    # --- state --------------------------------------------------------------------------------------------

    def begin(self, seed: int) -> None:
        """A training begins, and counts its updates anew."""
        self.change(seed=seed)
        self.count = self._checked = 0
        self._not_finite = None

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on but the model's own state and random numbers."""
        return {
            "updates": self.count,
            "skipped": self.guard.skipped,
            "microbatch": self.microbatch,
            "settings": {name: getattr(self.settings, name) for name in CHANGEABLE},
            "scaler": self.precision.state_dict(),
            "optimizers": dict(zip(self.optimizers, self._optimizer_states(), strict=True)),
        }

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
        self.count, self.guard.skipped = state["updates"], state["skipped"]
        self._checked = self.count
        if self.adapts:
            self.microbatch = state["microbatch"]

    @property
    def nbytes(self) -> int:
        """About how large a checkpoint is: the weights, and as much again for each thing an optimizer remembers."""
        weights = sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])
        return weights + sum(map(_remembered, self.optimizers.values()))

    def _optimizer_states(self) -> Iterator[dict[str, Any]]:
        if self._each:
            yield from (update.arena.state_dict() for update in self._each)
            return
        names = owners(self.model)
        for optimizer in self.optimizers.values():
            groups = [group["params"] for group in optimizer.param_groups]
            known = optimizer.state
            states = [(p, known[p]) for group in groups for p in group if p in known]
            yield by_name(optimizer, groups, states, names_of(optimizer, names))

    # --- what is not finite -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Raises if an update was bad or a weight is not finite: before weights are saved, reported or returned."""
        self.guard.settle()
        self._check_weights()

    def expect(self) -> None:
        """Before the first update: remembers what is not finite already, as a mask may be, and may stay so."""
        if self._not_finite is None:
            tensors = dict(self._fractions())
            finite = math.isfinite(self.strategy.everywhere(float(total(list(tensors.values())))))
            self._not_finite = set() if finite else {name for name, t in tensors.items() if not all_finite([t])}

    def watch(self, outcome: Outcome) -> None:
        """After an overridden `train_step`: the guard checks the weights when it settles, or now if a loss is bad."""
        known = self._not_finite or set()
        self.guard.watch(f"step {self.count}", lambda: {n: t for n, t in self._fractions() if n not in known})
        losses = [self.guard.read(term.sum) for term in outcome.terms.values()]
        if not all(isinstance(loss, Tensor) or math.isfinite(loss) for loss in losses):
            self.guard.look()

    def _fractions(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.is_floating_point():
                yield plain_name(name), local(tensor.detach())

    def _check_weights(self) -> None:
        """Raises if an optimizer has made a weight not finite, though the gradients were finite."""
        if self._checked == self.count:
            return
        params = [local(param.detach()) for group in groups_of(self.optimizers.values()) for param in group["params"]]
        params = [torch.view_as_real(param) if param.is_complex() else param for param in params]
        number = float(total([param for param in params if param.is_floating_point()]))
        if math.isfinite(self.strategy.everywhere(number)):
            self._checked = self.count
            return
        places = owners(self.model)
        named = [update.arena.names for update in self._each]
        named = named or [names_of(optimizer, places) for optimizer in self.optimizers.values()]
        first, known = self._checked + 1, self._not_finite or set()
        for (key, optimizer), names in zip(self.optimizers.items(), named, strict=True):
            bad = [n for p, n in names.items() if n not in known and not all_finite([local(p.detach())])]
            bad = self.strategy.join_names(bad)
            if not bad:
                continue
            rates = ", ".join(f"{float(group['lr']):g}" for group in optimizer.param_groups)
            raise NonFiniteError(
                f"step {f'{first} to ' * (first < self.count)}{self.count}: {kind_of(optimizer)}"
                f"{f' of {key!r}' if key else ''} (rate {rates}) has made {', '.join(map(repr, bad[:3]))} not finite, "
                "though losses and gradients were finite. This cannot be undone: go on from the last checkpoint, or "
                "begin anew, with a lower rate, a larger eps=, or clip_norm=."
            )
        self._checked = self.count

    def _due(self) -> list[Update]:
        """The updates that this step makes."""
        every, step = self._pauses, self.count + 1
        return [update for update in self._each if step % every.get(update.name, 1) == 0]


def _remembered(optimizer: Optimizer) -> int:
    """Bytes of what an optimizer remembers, or is going to: most keep two numbers for each weight, plain SGD none."""
    if optimizer.state:
        return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    return 0 if is_plain(optimizer) else 2 * sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
