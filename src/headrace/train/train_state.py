"""The state of a training between two updates: collected for a checkpoint, and restored."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..arena.replica import Replica
from ..arena.vectors import plain_name
from ..data.read_by import ReadBy, nulls_of, read_by_of
from ..data.reader import Reader
from ..data.source import Categories, Source
from ..errors import CheckpointError, ConfigError, CorruptError, DataError, HeadraceError, is_out_of_memory
from ..length import Counters
from ..loss.objective import measured_by
from ..loss.outcome import LossSums
from ..step import config
from ..step.check import same_categories
from ..step.frozen import Frozen
from ..step.given import groups_of, put_rate, shares_of
from ..step.weights import as_categories, check_model, load_model
from ..store import rng
from ..store.run import machine
from ..watch.info import Best, Info
from ..workers.leased import Leased
from .plan import Plan
from .schedule import Rates, begin_anew, make_rates
from .state import Own, State

if TYPE_CHECKING:
    from .trainer import Trainer

_OF_ORDER = ("seed", "order", "block", "mix", "count", "cross_epochs", "fingerprint")


@dataclass(frozen=True, slots=True)
class Handed:
    """A state to go on from, as one worker is given it."""

    state: State
    mine: Own | None
    """What was this worker's own; `None` where other workers, or another number of them, go on."""
    rng: Any
    sums: list[Any]
    metrics: list[Any]
    trained: dict[str, Any] | None = None
    """The weights that are trained, where others are kept."""


class TrainState:
    """A training between two updates."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info) -> None:
        self._trainer, self._plan, self.info = trainer, plan, info
        self.model = trainer.model
        self.metrics = trainer.team.fresh(trainer.metrics.fresh(measured_by(trainer.objectives, trainer.target)))
        self.sums = info.sums
        self.rates: Rates = make_rates(None, [], [], None)
        self.frozen = Frozen(trainer.all_modules)
        self.shares: list[float] = []
        """The rates of the optimizers' groups, divided by the first one's, when it was last more than 0."""
        self.done: set[str] = set()
        """What has been done of what was due after the last update."""
        self.complete = True
        """Whether all of it has been done."""
        self.initial = copy.deepcopy(plan.train.state_dict())
        """Where the source stood at first, and is rewound to."""
        self.categories = _lists(plan.train.read_by)
        """For each stream of the training data the strings that its numbers stand for; `None` if it does not know."""
        self.cursor = self.initial
        """Where the source stood after the last batch that was used."""
        self.round: dict[str, Any] = {}
        """Where the training stood when all workers had the same weights for the last time."""

    def state(self, agreed: Mapping[str, Tensor], owns: list[Own]) -> State:
        """All that the rest of the training depends on.

        `agreed`: the weights that are the workers' common result, where the model's own are others; `owns`: what each
        worker has of its own.
        """
        trainer, info = self._trainer, self.info
        saved = self.model.state_dict()
        beside = ((name, buffer) for name, buffer in self.model.named_buffers() if name not in saved)
        transient = {plain_name(name): buffer for name, buffer in beside}
        others = [module.state_dict() for module in trainer.all_modules[1:]]
        tensors = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
        return State(
            model={name: agreed.get(plain_name(name), value) for name, value in tensors.items()},
            extra={plain_name(name): value for name, value in saved.items() if not isinstance(value, Tensor)},
            step=trainer.updates.state_dict(),
            modules={"transient": transient, "others": others},
            counters=info.counters.totals,
            place=info.counters.place,
            done=sorted(self.done),
            complete=self.complete,
            rates=self.rates.state_dict(),
            callbacks=self._plan.callbacks.state_dict(),
            best=None if info.best is None else asdict(info.best),
            marks={name: asdict(mark) for name, mark in info.marks.items()},
            config=trainer.resume_settings | self._plan.config,
            categories=self.categories,
            nulls=dict(nulls_of(self.categories)) or None,
            data=_description_of(self._plan.train, trainer),
            limits=config.of_limits(info.limits),
            source={"cursor": self.cursor, "initial": self.initial},
            round=self.round,
            frozen={owner: sorted(names) for owner, names in self.frozen.owners.items() if names},
            flags=self.frozen.flags(),
            noted=info.extra_numbers,
            shares=self.shares,
            machine=machine(trainer.device),
            owns=owns,
        )

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on; groups with another keep their ratio to the first one's."""
        trainer = self._trainer
        if trainer.schedule is not None:
            raise ConfigError("a callback asks for a learning rate, and the trainer has a schedule, which sets it.")
        groups = groups_of(trainer.optimizers.values())
        self.shares = shares_of(groups) or self.shares
        for group, share in zip(groups, self.shares or [1.0] * len(groups), strict=True):
            put_rate(group, rate * share)

    def make_rates(self, batches: int | None, rows: int | None) -> None:
        """Makes the rates of a training whose epochs have so many batches and rows."""
        trainer = self._trainer
        optimizers = [*trainer.optimizers.values()]
        if trainer.schedule is not None and not isinstance(trainer.schedule, Mapping):  # which gives rates, not factors
            begin_anew(optimizers, trainer.last_training.rates)
        self.rates = make_rates(trainer.schedule, optimizers, self.info.limits, batches, rows)

    def note_rates(self) -> None:
        """Remembers the rates at the end: the next training sees by them whether others have been set."""
        trainer = self._trainer
        begun = trainer.last_training.history is self.info.history  # nothing has refused it
        if begun and trainer.schedule is not None:
            trainer.last_training.rates = [float(group["lr"]) for group in groups_of(trainer.optimizers.values())]

    def pace(self) -> dict[str, Any]:
        """How far the training has come, and its rates: plain values."""
        rates = [float(group["lr"]) for group in groups_of(self._trainer.optimizers.values())]
        return {"counters": self.info.counters.totals, "schedule": self.rates.state_dict(), "rates": rates}

    def follow_pace(self, pace: dict[str, Any]) -> None:
        """Sets counters and rates to those of another worker."""
        self.info.counters = replace(self.info.counters, **pace["counters"])
        self.rates.load_state_dict(copy.deepcopy(pace["schedule"]))
        for group, rate in zip(groups_of(self._trainer.optimizers.values()), pace["rates"], strict=True):
            put_rate(group, rate)

    def forget_absent(self) -> None:
        """A training has gone on: what was asked for by callbacks that are not there now ends."""
        self.info.forget_unclaimed()
        owners = self.frozen.owners
        self.frozen.restore({o: sorted(names) for o, names in owners.items() if not o or o in self.info.owners})

    def own_state(self) -> dict[str, Any]:
        """What is this worker's own."""
        return {
            "rng": rng.capture(self._trainer.device),
            "tally": self.sums.state_dict(),
            "metrics": self.metrics.state_dict(),
            "microbatch": self._trainer.updates.microbatch,
        }

    def restart(self, forget: bool) -> None:
        """Updates are made in another way from now on; `forget` what was trained since the last report."""
        self._trainer.release()
        if forget:
            self.sums.reset()
            self.metrics.reset()

    def replica(self) -> Replica:
        """The model as a strategy sees it."""
        return self._trainer.updates.replica()

    def named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Tensors like those of the replica by the names of parameters and buffers."""
        return self.replica().by_name(tensors)

    def optimizers(self) -> dict[str, Any]:
        """What this worker's optimizers remember."""
        found: dict[str, Any] = self._trainer.updates.state_dict()["optimizers"]
        return found

    @property
    def modules(self) -> list[nn.Module]:
        """The model, and objectives that are modules too."""
        return self._trainer.all_modules

    def updates(self) -> dict[str, Any]:
        """What the next update depends on beside the weights."""
        return self._trainer.updates.state_dict()

    def take_over(self, updates: dict[str, Any]) -> None:
        """Loads what another worker's updates depend on."""
        self._trainer.updates.load_state_dict(updates)

    def mark_round(self) -> None:
        """All workers have the same weights now: others than these could go on from here."""
        counters, rates = self.info.counters, copy.deepcopy(self.rates.state_dict())
        self.round = {"counters": counters.totals, "place": counters.place, "cursor": self.cursor, "rates": rates}

    def warn_of_gaps(self, new: bool) -> None:
        """Says what a run cannot keep; of the source when the run is `new`."""
        if new and self.initial is None:
            warnings.warn(
                f"{type(self._plan.train).__name__} has no state_dict and load_state_dict: its run can go on between "
                "epochs only, where it starts again by itself.",
                stacklevel=3,
            )
        if self.metrics.forgetful:
            warnings.warn(
                f"{', '.join(self.metrics.forgetful)} cannot be saved, for want of state_dict and load_state_dict: "
                "after a resume within an epoch it counts the rows since then only.",
                stacklevel=3,
            )

    def _put_transient(self, saved: dict[str, Tensor]) -> None:
        """Puts back the buffers that are no part of the model's `state_dict`.

        So too one that was made or has grown while the model was used, as a cache.
        """
        modules = {plain_name(name): module for name, module in self.model.named_modules()}
        for path, value in saved.items():
            parent, _, name = path.rpartition(".")
            if parent not in modules or name not in modules[parent]._buffers:
                continue
            now = modules[parent]._buffers[name]
            if now is not None and now.shape == value.shape:
                now.copy_(value)
            else:
                modules[parent]._buffers[name] = value.to(self._trainer.device)

    def check(self, state: State) -> None:
        """Raises unless a state, whose weights and settings fit, fits altogether; nothing but the source is changed."""
        others, held = self._trainer.all_modules[1:], state.modules["others"]
        if len(others) != len(held):
            raise CheckpointError(f"{len(held)} objectives were modules, now {len(others)} are.")
        for module, saved in zip(others, held, strict=True):
            check_model(saved, module.state_dict())
        self._trainer.updates.check_state(state.step)
        self._check_workers(len(state.owns))
        self._check_flags(state)
        try:
            same_categories(as_categories(state.categories, state.nulls), self.categories, "train", "those of the run")
        except DataError as error:
            if not state.forced:
                raise
            warnings.warn(f"override=True: the run goes on all the same, although {error}", stacklevel=3)
        if state.forced:
            now = self._plan.train.state_dict()
            state.source |= {name: _reordered(cursor, now) for name, cursor in state.source.items()}
        self._load_cursor(state.source["cursor"], state.place["ends_epoch"] or not state.counters["steps"])

    def _check_flags(self, state: State) -> None:
        """Raises if `requires_grad` is not that of the run, unless override=True allows it."""
        if state.flags is None:
            return
        try:
            self.frozen.check_flags(state.frozen, state.flags)
        except CheckpointError:
            if not state.forced:
                raise
            state.flags = None

    def _check_workers(self, before: int) -> None:
        """Raises on a source that other workers cannot go on reading."""
        source, now = self._plan.train, self._trainer.team.comm.count
        if before != now and source.shards and not source.elastic:
            raise CheckpointError(
                f"the run was saved by {before} workers and is to go on with {now}, and {type(source).__name__} cannot "
                f"be shared by another number of workers: its `elastic` is False. Use {before} workers."
            )

    def load(self, handed: Handed) -> None:
        """Goes back to a state that has been checked."""
        trainer, info, state = self._trainer, self.info, handed.state
        changed = {difference.partition(":")[0].partition(".")[0] for difference in state.overridden}
        if "schedule" not in changed:
            self.rates.load_state_dict(state.rates)
        self.initial, self.cursor = state.source["initial"], state.source["cursor"]
        self.round = state.round
        load_model(self.model, {**state.model, **state.extra})
        self._put_transient(state.modules["transient"])
        self.frozen.restore(state.frozen, state.flags)
        for module, saved in zip(trainer.all_modules[1:], state.modules["others"], strict=True):
            module.load_state_dict(saved)
        anew = bool({"optimizer", "schedule"} & changed)  # rates begin with what is set now, not where others have led
        live = state.step["settings"]
        trainer.updates.change(**{name: value for name, value in live.items() if name not in changed})
        trainer.updates.load_state_dict(state.step, overridden=anew)
        if anew:
            self.rates.rebase()
        info.counters = Counters(**state.counters, **state.place)
        info.resumed = state.saved
        info.history.rows[:] = [row for row in state.history if row["step"] <= info.step]
        info.marks = {name: Best(**mark) for name, mark in state.marks.items()}
        info.extra_numbers, self.shares = dict(state.noted), list(state.shares)
        self.done, self.complete = set(state.done), state.complete
        self._plan.callbacks.load_state_dict(state.callbacks)
        self.sums = info.sums = LossSums.joined(handed.sums)
        self.metrics.join(handed.metrics, trainer.device)

    def _load_cursor(self, cursor: Any, between_epochs: bool) -> None:
        source = self._plan.train
        if cursor is not None:
            source.load_state_dict(copy.deepcopy(cursor))
        elif not between_epochs:
            raise CheckpointError(
                f"the run stopped within an epoch, and {type(source).__name__} cannot go back to where it was: give it "
                "state_dict and load_state_dict."
            )


def _lists(categories: Categories | None) -> Categories | None:
    if categories is None:
        return None
    lists = {stream: [*map(str, held)] for stream, held in categories.items()}
    return read_by_of(ReadBy(lists, nulls_of(categories)))


def _reordered(cursor: Any, now: Any) -> Any:
    """A cursor at the same place of another order, or of files that have changed, where `override` allows that."""
    if not isinstance(cursor, dict) or not isinstance(now, dict):
        return cursor
    settings = {key: now[key] for key in _OF_ORDER if key in cursor and key in now}
    return {key: settings.get(key, _reordered(value, now.get(key))) for key, value in cursor.items()}


@contextmanager
def readable() -> Iterator[None]:
    """A state that is whole, and yet not one that was ever saved, is corrupt."""
    try:
        yield
    except HeadraceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise CorruptError(
            f"the checkpoint holds a state that makes no sense: {type(error).__name__}: {error}"
        ) from error


def _description_of(train: Source, trainer: Trainer) -> dict[str, Any] | None:
    """What a run keeps of its training data; `None` of data that are batches."""
    reader = train.reader if isinstance(train, Leased) else train
    if not isinstance(reader, Reader):
        return None
    from ..formats.described import description_of  # only here: it imports what reads files

    call = next(iter(trainer.eval_objectives.values())).call
    return description_of(reader.table, call.targets, config.plain(call.inputs))
