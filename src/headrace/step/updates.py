"""The updates of a model: one for each of its optimizers, in order, some not at every step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..arena.gradients import all_finite, total
from ..arena.optimizer import by_name, check_state, is_plain, load_state
from ..arena.own_optimizers import Joint, kind_of, params_of, refuse_missing, release_elsewhere
from ..arena.replica import Replica
from ..arena.sharding import local
from ..arena.vectors import names_of, owners, plain_name
from ..data.batch import Batch
from ..errors import CheckpointError, ModelError, NonFiniteError
from ..loss.objective import Objective, scoring
from ..loss.outcome import Outcome, merged
from ..workers.strategy import Strategy
from .arguments import groups_of
from .guard import Guard
from .settings import CHANGEABLE, Precision, Settings, StandIns, warn_where_splits_differ
from .tape.tapes import LARGEST, Tapes
from .update import Update

LARGEST_PACKED = 1 << 16
"""Elements from which on a parameter of a large model stays outside of vectors: zeroing its gradient costs more than
packing saves."""
CHECK_EVERY = 64
"""Updates between two checks of the weights. A check takes a twentieth of the time of a small update."""

OutputGetter = Callable[[Any], Any]
"""Takes one output out of all that a model returned."""


class Updates:
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
        self.model, self.objectives, self.optimizers = model, dict(objectives), dict(optimizers)
        self.precision, self.guard, self.strategy = precision, guard, strategy
        self.count = 0
        """How many have been made in this training."""
        self.scored = scoring(objectives)
        """The key of the objective whose outputs metrics look at, and whose outputs an outcome has."""
        self.getters = getters
        """What takes out of these the ones that metrics look at; nothing where there are no metrics."""
        self.adapts = False
        """Whether the microbatch is made smaller when memory runs out."""
        self.measures_norm = False
        """Whether every update measures the norm of its gradients."""
        self.microbatch: int | None = None
        """Rows that pass the model at once; `None`: all of a batch."""
        self.stand_ins = StandIns()
        """Rows for passes that are made only since other workers make them."""
        self.failed_step = ""
        """What has ended an update while its optimizer stepped, and may have left half of it."""
        self._each: list[Update] = []
        self._pauses = pauses  # at every which step the optimizer of a key is used, of those that are not used at each
        self._answers: dict[Objective, Tapes] = {}
        self._tape_note = strategy.note
        self._not_finite: set[str] = set()  # what was not finite when the training began
        self._knows_not_finite = False
        self._by_hand = False  # whether a `train_step` may have made updates of its own since the last check
        self._checked = 0  # the last update after which the weights were checked
        self.settings = Settings()
        self.change(**asdict(settings))

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
        if (turns := self.strategy.comm.turns) is not None:
            turns.touches += 1

    def change(self, **settings: Any) -> None:
        """The next update is made with these settings."""
        before, self.settings = self.settings, replace(self.settings, **settings)
        wanted = self.settings.microbatch
        if wanted != before.microbatch:
            self.adapts, self.microbatch = wanted == "auto", None if wanted == "auto" else wanted
            if self.microbatch is not None:
                warn_where_splits_differ(self.model, depth=5)
        self.touched()

    def halve(self, rows: int) -> bool:
        """Makes the microbatch half of what did not fit; says whether it may and can."""
        at_once = min(rows, self.microbatch or rows)
        splits = not (self.strategy.parts or self.strategy.shards) and all(
            objective.splits for objective in self.objectives.values()
        )
        if not self.adapts or at_once == 1 or not splits:
            return False
        self.microbatch = -(-at_once // 2)
        warnings.warn(
            f"memory ran out with {at_once} rows at once: going on with microbatch={self.microbatch}.", stacklevel=2
        )
        warn_where_splits_differ(self.model)
        return True

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
        self.remember_not_finite()
        for optimizer in self.optimizers.values():
            release_elsewhere(optimizer)
        buffers = Buffers(self.model)
        is_large = sum(p.nbytes for p in self.model.parameters()) > LARGEST
        is_alone = self.strategy.comm.count == 1 and not self.strategy.parts
        largest = LARGEST_PACKED if is_large and is_alone else None
        each: list[Update] = []
        try:
            for name, optimizer in self.optimizers.items():
                if isinstance(optimizer, Joint):  # a parameter may have been thawed since they were joined
                    refuse_missing(optimizer.members, self.model, f"optimizer{f'[{name!r}]' if name else ''}=")
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
            raise
        self._each, self._answers = each, {}

    def release(self) -> None:
        """Makes model and optimizers ordinary again."""
        self.touched()
        self._tape_note = self.tape_note
        each, self._each, self.failed_step = self._each, [], ""
        while self._answers:
            self._answers.popitem()[1].release()
        if each:
            self.strategy.release()
        with ExitStack() as stack:  # each of them, even if one fails
            for update in each:
                update.tapes.release()
                stack.callback(update.arena.release)

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizers update, wherever it is stored."""
        return [param for group in groups_of(self.optimizers.values()) for param in group["params"]]

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
            comm = self.strategy.comm
            self._answers[objective] = Tapes(self.settings.tape, self.model, objective, device, comm)
        self._answers[objective].end_epoch()
        self._answers[objective].watched = watched
        return self._answers[objective]

    # --- state --------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        self.release()  # a copy makes recordings of its own
        return vars(self)

    def begin(self, seed: int) -> None:
        """A training begins, and counts its updates anew."""
        self.change(seed=seed)
        self.count = self._checked = 0
        self._knows_not_finite = self._by_hand = False

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

    def remember_not_finite(self) -> None:
        """Before the first update: remembers what is not finite already, as a mask may be, and may stay so."""
        if not self._knows_not_finite:
            self._not_finite, self._knows_not_finite = set(), True
            if not math.isfinite(self.strategy.everywhere(float(total([t for _, t in self._fractions()])))):
                self._not_finite = set(self._unusual(self._fractions()))

    def watch(self, outcome: Outcome) -> None:
        """After an overridden `train_step`: all of the model is checked at the next report, or now if a loss is bad."""
        self._by_hand, self._checked = True, min(self._checked, self.count - 1)
        losses = [self.guard.read(term.sum) for term in outcome.terms.values()]
        if not all(isinstance(loss, Tensor) or math.isfinite(loss) for loss in losses):
            self._check_weights()

    def _fractions(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.is_floating_point():
                yield plain_name(name), local(tensor.detach())

    def _unusual(self, tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
        """The names of tensors that are not finite, and were when the training began."""
        return [name for name, tensor in tensors if name not in self._not_finite and not all_finite([tensor])]

    def _check_weights(self) -> None:
        """Raises if an update has made a weight not finite, though its losses and gradients may have been finite."""
        if self._checked == self.count:
            return
        first = self._checked + 1
        steps = f"step {f'{first} to ' * (first < self.count)}{self.count}"
        if self._by_hand and (bad := self.strategy.join_names(self._unusual(self._fractions()))):
            raise NonFiniteError(
                f"{steps}: the updates of train_step have left {', '.join(map(repr, bad[:3]))} not finite, and "
                "nothing can undo that. Go on from the last checkpoint, with a lower rate, or clip the gradients."
            )
        stored = self.replica().values if self.homed else [local(param.detach()) for param in self.parameters()]
        params = [torch.view_as_real(param) if param.is_complex() else param for param in stored]
        number = float(total([param for param in params if param.is_floating_point()]))
        if not math.isfinite(self.strategy.everywhere(number)):
            self._refuse_weights(steps)
        self._checked, self._by_hand = self.count, False

    def _refuse_weights(self, steps: str) -> None:
        """Raises if the optimizers have weights that are not finite, and were."""
        places = owners(self.model)
        for key, optimizer in self.optimizers.items():
            names = names_of(optimizer, places)
            found = self._unusual((name, local(param.detach())) for param, name in names.items())
            if bad := self.strategy.join_names(found):
                rates = ", ".join(f"{float(group['lr']):g}" for group in optimizer.param_groups)
                raise NonFiniteError(
                    f"{steps}: {kind_of(optimizer)}{f' of {key!r}' if key else ''} (rate {rates}) has made "
                    f"{', '.join(map(repr, bad[:3]))} not finite, though losses and gradients were finite. This cannot "
                    "be undone: go on from the last checkpoint, or begin anew, with a lower rate, a larger eps=, or "
                    "clip_norm=."
                )

    def _due(self) -> list[Update]:
        """The updates that this step makes."""
        every, step = self._pauses, self.count + 1
        return [update for update in self._each if step % every.get(update.name, 1) == 0]


def _remembered(optimizer: Optimizer) -> int:
    """Bytes of what an optimizer remembers, or is going to: most keep two numbers for each weight, plain SGD none."""
    if optimizer.state:
        kept = (v for v in tree_leaves([*optimizer.state.values()]) if isinstance(v, Tensor))
        return sum(v.numel() * v.itemsize if v.is_sparse else v.nbytes for v in kept)
    return 0 if is_plain(optimizer) else 2 * sum(param.nbytes for param in params_of(optimizer))
