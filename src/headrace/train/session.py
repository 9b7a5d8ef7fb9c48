"""A training between two updates: what it consists of, saved as parts and put back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..arena.vectors import plain_name
from ..data.batch import Stream
from ..data.maps import unwrapped
from ..data.reader import Reader
from ..data.source import Source
from ..errors import CheckpointError, ConfigError, DataError
from ..formats.documents import document_of
from ..length import Counters
from ..loss.objective import measured_by
from ..step import config
from ..step.arguments import groups_of, put_rate, shares_of
from ..step.attributes import Attributes
from ..step.check import same_encoding
from ..step.frozen import Frozen
from ..step.weights import Base, as_encoding, base_of, check_model, load_model
from ..store import rng
from ..store.run import machine
from ..watch.history import History
from ..watch.info import Best, Info
from ..workers.leased import Leased
from .checkpoint import Checkpoint, WorkerState
from .checkpointer import Checkpointer
from .own_step import UnsavedOptimizers
from .plan import Plan
from .resume import Resumed, readable
from .schedule import Rates, begin_anew, make_rates, note_last
from .setting import note_hyperparameters
from .workers import Workers

if TYPE_CHECKING:
    from .trainer import Trainer

_OF_ORDER = ("seed", "order", "block", "mix", "count", "cross_epochs", "fingerprint")


@dataclass
class LastTraining:
    """What a trainer remembers of its last training, or of the one under way."""

    history: History | None = None
    """What it has reported."""
    streams: list[Stream] | None = None
    """Those of the last batch that `step` was given, which the losses are prepared for."""
    trained_on: Sequence[Stream] | None = None
    """The streams of its data."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """The hyperparameters of the optimizers as it has left them."""
    info: Info | None = None
    """The training under way."""
    unsaved: UnsavedOptimizers | None = None
    """Finds optimizers that a run would miss, while a trainer with an own `train_step` trains."""


class Session:
    """Everything that one training consists of."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info, workers: Workers, checkpointer: Checkpointer) -> None:
        self.trainer, self.plan, self.info = trainer, plan, info
        note_hyperparameters(trainer)
        self.workers, self.checkpointer = workers, checkpointer
        self.model, self.modules, self.updates = trainer.model, trainer.all_modules, trainer.updates
        self.tally = workers.tally(trainer.metrics, measured_by(trainer.objectives, trainer.target))
        info.sums = self.tally.losses[0]
        self.rates: Rates = make_rates(None, [], [], None)
        self.frozen = Frozen(self.modules, self.updates.parameters)
        self.attributes = Attributes([], [], [], trainer.device)
        if checkpointer.keeps:
            objectives, optimizers = trainer.objectives.values(), trainer.optimizers.values()
            self.attributes = Attributes(self.modules, objectives, optimizers, trainer.device)
        self.shares: list[float] = []
        """The rates of the optimizers' groups, divided by the first one's, when it was last more than 0."""
        self.done: set[str] = set()
        """Which of the tasks that were due after the last update have been done."""
        self.complete = True
        """Whether all of them have been done."""
        self.initial = copy.deepcopy(plan.train.state_dict())
        """Where the source stood at first, and is rewound to."""
        self.encoding = plan.train.encoding
        """How the training data were read; `None` if it is not known."""
        self.cursor = self.initial
        """Where the source stood after the last batch that was used."""
        self.round: dict[str, Any] | None = None
        """Where the training stood when all workers last had the same weights."""
        self.base: Base | None = None
        """The frozen base of the model, if checkpoints have only its hash."""

    @property
    def settings(self) -> config.Config:
        """The settings that a run is resumed with."""
        return self.trainer.resume_settings | self.plan.config

    # --- the state ----------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint | None:
        """The state of the training, for the worker that saves it. All workers call this together."""
        weights, strategy = self.workers.state(self.info)
        workers = self.workers.gather_states(self.own_parts)
        return None if workers is None else Checkpoint(self._common(weights, strategy), workers)

    def own_parts(self) -> WorkerState:
        """What the state has of this worker alone."""
        replica = self.workers.own_state(self.info)
        if self.workers.has_own_optimizers:
            replica["optimizers"] = self.updates.state_dict()["optimizers"]
        if not self.workers.leads:
            progress = self._progress()
            replica["progress"] = progress | {"step": {**progress["step"], "optimizers": {}}}
        return {
            "rng": rng.capture(self.trainer.device),
            "tally": self.tally.state_dict(),
            "microbatch": self.updates.microbatch,
            "replica": replica,
        }

    def _progress(self) -> dict[str, Any]:
        """How far this worker is."""
        return {
            "step": self.updates.state_dict(),
            "rates": self.rates.state_dict(),
            "shares": self.shares,
            "counters": self.info.counters.totals,
            "place": self.info.counters.place,
            "done": sorted(self.done),
            "complete": self.complete,
            "source": {"cursor": self.workers.cursor_now(self.cursor), "initial": self.initial},
            "callbacks": self.plan.callbacks.state_dict(),
        }

    def _common(self, weights: Mapping[str, Tensor], strategy: dict[str, Any] | None) -> dict[str, Any]:
        """The parts that all workers have in common; `weights` replace those of the model."""
        info, saved = self.info, self.model.state_dict()
        tensors = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
        transient = {plain_name(name): tensor for name, tensor in self.model.named_buffers() if name not in saved}
        kept = tensors if self.checkpointer.saves_base else self._without_base(tensors)
        attributes = self.attributes.state_dict()
        first: dict[int, str] = {}  # names of parameters that have several
        every = self.model.named_parameters(remove_duplicate=False)
        names = {name: first.setdefault(id(param), plain_name(name)) for name, param in every}
        return {
            "model": {name: weights.get(names.get(name, plain_name(name)), value) for name, value in kept.items()},
            "extra": {plain_name(name): value for name, value in saved.items() if name not in tensors},
            "modules": {"transient": transient, "others": [module.state_dict() for module in self.modules[1:]]}
            | ({"attributes": attributes} if attributes else {}),
            "frozen": self.frozen.state_dict(),
            **self._progress(),
            "history": info.history.rows,
            "noted": info.extra_numbers,
            "marks": {name: asdict(mark) for name, mark in info.marks.items()},
            "best": None if info.best is None else asdict(info.best),
            "strategy": strategy,
            "round": self.round,
            "config": self.settings,
            "limits": config.of_limits(info.limits),
            "base": self.base,
            "machine": machine(self.trainer.device),
            "encoding": None if self.encoding is None else document_of(self.encoding),
            "data": _description_of(self.plan.train, self.trainer),
        }

    def _without_base(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = self.frozen.base
        if self.base is None:  # it does not change
            self.base = base_of(self.model, names, self.workers.strategy)
        return {name: tensor for name, tensor in tensors.items() if plain_name(name) not in self.base["names"]}

    def check(self, resumed: Resumed) -> None:
        """Raises unless a state, whose weights and settings fit, fits altogether. Nothing but the source is changed."""
        common, others = resumed.common, self.modules[1:]
        with readable():
            states = common["modules"]["others"]
            if len(others) != len(states):
                raise CheckpointError(f"{len(states)} objectives were modules, now {len(others)} are.")
            for module, state in zip(others, states, strict=True):
                check_model(state, module.state_dict())
            self.updates.check_state(resumed.step)
            self._check_workers(resumed.count)
            self._check_what_may_differ(resumed)
            if resumed.override:
                now = self.plan.train.state_dict()
                common["source"] = {name: _reordered(cursor, now) for name, cursor in common["source"].items()}
            self._rewind(common)

    def load(self, resumed: Resumed) -> None:
        """Goes back to a state that has been checked."""
        info, common = self.info, resumed.common
        changed = {difference.partition(":")[0].partition(".")[0] for difference in resumed.overridden}
        with readable():
            if "schedule" not in changed:
                self.rates.load_state_dict(common["rates"])
            load_model(self.model, common["model"] | common["extra"])
            self._load_transient(common["modules"]["transient"])
            for module, state in zip(self.modules[1:], common["modules"]["others"], strict=True):
                module.load_state_dict(state)
            self.frozen.load_state_dict(common["frozen"])
            anew = bool({"optimizer", "schedule"} & changed)  # rates begin with what is set now
            settings = common["step"]["settings"].items()
            self.updates.change(**{name: value for name, value in settings if name not in changed})
            self.updates.load_state_dict(resumed.step, overridden=anew)
            self.attributes.load_state_dict(common["modules"].get("attributes", {}))
            if anew:
                self.rates.rebase()
            self.shares, self.round = list(common["shares"]), common["round"]
            self.done, self.complete = set(common["done"]), common["complete"]
            self.initial, self.cursor = common["source"]["initial"], common["source"]["cursor"]
            info.counters, info.resumed = Counters(**common["counters"], **common["place"]), resumed.newest
            info.history.rows[:] = [row for row in common["history"] if row["step"] <= info.step]
            for name, source in self.plan.val.items():
                if any(number.startswith(f"{name}/") for row in info.history.rows for number in row):
                    source.passed()
            info.extra_numbers = dict(common["noted"])
            info.marks = {name: Best(**mark) for name, mark in common["marks"].items()}
            self.plan.callbacks.load_state_dict(common["callbacks"])
            self.tally.load(resumed.mine["tally"], self.workers.parts)

    def _check_workers(self, before: int) -> None:
        """Raises on a source that other workers cannot go on reading."""
        source, now = self.plan.train, self.workers.comm.count
        if before != now and source.shards and not source.elastic:
            raise CheckpointError(
                f"the run was saved by {before} workers and is to go on with {now}, and {type(source).__name__} cannot "
                f"be shared by another number of workers: its `elastic` is False. Use {before} workers."
            )

    def _check_what_may_differ(self, resumed: Resumed) -> None:
        """Raises if `requires_grad` or the categories differ from the run's, unless override=True allows it."""
        common = resumed.common
        try:
            self.frozen.check(common["frozen"])
        except CheckpointError:
            if not resumed.override:
                raise
            common["frozen"] = {"owners": common["frozen"]["owners"]}
        try:
            same_encoding(as_encoding(common["encoding"]), self.encoding, "train", "those of the run")
        except DataError as error:
            if not resumed.override:
                raise
            warnings.warn(f"override=True: the run goes on all the same, although {error}", stacklevel=3)

    def _rewind(self, common: Mapping[str, Any]) -> None:
        """Sets the source to the cursor of a state."""
        source, cursor = self.plan.train, common["source"]["cursor"]
        if cursor is not None:
            source.load_state_dict(copy.deepcopy(cursor))
        elif common["counters"]["steps"] and not common["place"]["ends_epoch"]:
            raise CheckpointError(
                f"the run stopped within an epoch, and {type(source).__name__} cannot go back to where it was: give it "
                "state_dict and load_state_dict."
            )

    def _load_transient(self, buffers: Mapping[str, Tensor]) -> None:
        """Puts back the buffers that are no part of the model's `state_dict`."""
        modules = {plain_name(name): module for name, module in self.model.named_modules()}
        for path, value in buffers.items():
            parent, _, name = path.rpartition(".")
            if parent not in modules or name not in modules[parent]._buffers:
                continue
            now = modules[parent]._buffers[name]
            if now is not None and now.shape == value.shape:
                now.copy_(value)
            else:  # it was made or has grown while the model was used, as a cache
                modules[parent]._buffers[name] = value.to(self.trainer.device)

    # --- the workers --------------------------------------------------------------------------------------

    def begin(self, resumed: Resumed | None) -> None:
        """The training begins, or continues from a state that has been loaded."""
        self.workers.own_parts = self.own_parts
        with nullcontext() if resumed is None else readable():
            if self.workers.begin(self.info, self.rates, resumed):
                self.mark_round()

    def mark_round(self) -> None:
        """All workers have the same weights now: another number of them could continue from here."""
        counters, rates = self.info.counters, copy.deepcopy(self.rates.state_dict())
        self.round = {"counters": counters.totals, "place": counters.place, "cursor": self.cursor, "rates": rates}

    # --- rates, and the rest ------------------------------------------------------------------------------

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on; groups with another keep their ratio to the first one's."""
        trainer = self.trainer
        if trainer.schedule is not None:
            raise ConfigError("a callback asks for a learning rate, and the trainer has a schedule, which sets it.")
        groups = groups_of(trainer.optimizers.values())
        self.shares = shares_of(groups) or self.shares
        for group, share in zip(groups, self.shares or [1.0] * len(groups), strict=True):
            put_rate(group, rate * share)

    def make_rates(self, batches: int | None, rows: int | None) -> None:
        """Makes the rates of a training whose epochs have so many batches and rows."""
        trainer = self.trainer
        optimizers = [*trainer.optimizers.values()]
        if trainer.schedule is not None:
            begin_anew(optimizers)
        self.rates = make_rates(trainer.schedule, optimizers, self.info.limits, batches, rows)

    def note_rates(self) -> None:
        """Remembers the rates at the end: the next training sees by them whether others have been set."""
        trainer = self.trainer
        begun = trainer.last_training.history is self.info.history  # nothing has refused it
        if begun:
            trainer.last_training.groups = config.of_groups(trainer.optimizers)
        if begun and trainer.schedule is not None:
            note_last([*trainer.optimizers.values()])

    def forget_absent(self) -> None:
        """Ends what was asked for by callbacks that are not there now."""
        self.info.forget_unclaimed()
        self.frozen.keep_owners(self.info.owners)

    def warn_of_gaps(self, new: bool) -> None:
        """Warns of what a run cannot keep; of the source if the run is `new`."""
        if new and self.initial is None:
            warnings.warn(
                f"{type(self.plan.train).__name__} has no state_dict and load_state_dict: its run can go on between "
                "epochs only, where it starts again by itself.",
                stacklevel=3,
            )
        if forgotten := self.trainer.metrics.without_state:
            warnings.warn(
                f"{', '.join(forgotten)} cannot be saved, for want of state_dict and load_state_dict: "
                "after a resume within an epoch it counts the rows since then only.",
                stacklevel=3,
            )


def _reordered(cursor: Any, now: Any) -> Any:
    """A cursor at the same place of another order, or of files that have changed, where `override` allows that."""
    if not isinstance(cursor, dict) or not isinstance(now, dict):
        return cursor
    settings = {key: now[key] for key in _OF_ORDER if key in cursor and key in now}
    return {key: settings.get(key, _reordered(value, now.get(key))) for key, value in cursor.items()}


def _description_of(train: Source, trainer: Trainer) -> dict[str, Any] | None:
    """What a run keeps of its training data; `None` of data that are batches."""
    reader = train.reader if isinstance(train, Leased) else train
    if not isinstance(reader, Reader):
        return None
    call = next(iter(trainer.eval_objectives.values())).call
    names = [stream.name for stream in reader.streams if stream.name not in call.targets]
    base, _ = unwrapped(reader.table)
    files = getattr(base, "files", None)
    path = str(files[0]) if files else "the training data"
    return {"path": path, "rows": len(base), "inputs": names if call.inputs is None else config.plain(call.inputs)}
