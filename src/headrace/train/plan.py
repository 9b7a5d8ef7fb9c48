"""What one training is given: its data, limits, intervals and callbacks, checked before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.maps import check_independent_rows
from ..data.reader import Reader
from ..data.source import Source
from ..data.wrapped import Epochs
from ..errors import ConfigError
from ..length import Counters, Length, interval, limits
from ..step import check
from ..step.arguments import data_sets, source_on
from ..step.weights import encoding_of
from ..watch.callback import Callback, Callbacks
from ..watch.files import LogFile
from ..watch.history import History
from ..watch.info import Info
from ..watch.progress import Progress
from ..watch.tensorboard import TensorBoard
from .checkpointer import Checkpointer
from .runs import Run
from .schedule import interval_of
from .threads import ThreadHint
from .workers import Workers

if TYPE_CHECKING:
    from .trainer import Trainer


@dataclass(frozen=True, slots=True)
class Plan:
    """The data of a training and when to do what."""

    train: Source
    val: Mapping[str, Source]
    """What is validated with, by what the keys of its numbers begin with: "val", or a name for each of several sets."""
    test: Mapping[str, Source]
    validate_every: Length
    log_every: Length
    callbacks: Callbacks
    others: Sequence[Length] = ()
    """When a checkpoint is written, and a schedule moves on."""

    @property
    def scored(self) -> dict[str, Source]:
        """The data that are scored, by name."""
        return {**self.val, **self.test}

    @property
    def within_epochs(self) -> bool:
        """Whether anything may be due between the ends of two epochs."""
        return any(every.unit != "epochs" for every in self.intervals)

    @property
    def intervals(self) -> Sequence[Length]:
        """After how much something is due, each time."""
        return [self.log_every, self.validate_every, *self.others]

    @property
    def config(self) -> dict[str, Any]:
        """The settings that a run is resumed with."""
        return {"validate_every": str(self.validate_every), "log_every": str(self.log_every)}

    def check(self, trainer: Trainer) -> None:
        """Raises on whatever can be known not to work."""
        objectives, scorers, metrics = trainer.objectives, trainer.eval_objectives, trainer.metrics
        given = {"train": self.train, **self.scored}
        soft = set.intersection(*(objective.soft_targets() for objective in scorers.values())) if scorers else set()
        for name, source in given.items():
            check.same_streams(self.train.streams, source.streams, name, soft)
            if name != "train":
                check.ends(source, name)
                check.another(source, self.train, name)
            check.same_encoding(self.train.encoding, source.encoding, name, owner="train")
        check.warn_if_reordered(encoding_of(trainer.model), self.train.encoding)
        columns = {name: check.columns_of(source) for name, source in given.items()}
        for objective in {id(o): o for o in [*objectives.values(), *scorers.values()]}.values():
            objective.prepare(self.train.streams, columns)
            for name, source in self.scored.items():
                objective.check_order(_names(self.train), _names(source), f"the {name}")
        for scored in (objectives, scorers) if metrics else ():
            check.measurable(scored, self.train.streams, trainer.target, metrics.by_output)


def _names(source: Source) -> list[str]:
    return [stream.name for stream in source.streams]


def prepare(
    trainer: Trainer,
    train: Any,
    val: Any,
    test: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    samples: int | None = None,
    minutes: float | None = None,
    progress: str | bool,
    validate_every: str | Length = "1 epoch",
    log_every: str | Length = "1 epoch",
    callbacks: Sequence[Callback] = (),
    run: str | Path | Run | None = None,
) -> tuple[Plan, Info, Checkpointer, Workers]:
    """What the loop of a training works with, once it has been checked as far as that can be before it begins."""
    check.can_train(trainer.optimizers, "a training")
    trainer.find_workers()
    check.can_split(trainer.objectives, None, trainer.workers.sharing)
    if trainer.strategy.parts and trainer.has_own_train_step:
        raise ConfigError(
            "parts= cuts batches where the trainer updates, and this train_step is given the rows of a worker, whose "
            "number would show in what it does. Use an Objective instead of train_step, or leave parts= out.",
            argument="parts",
        )
    if trainer.strategy.parts:
        check.fits_parts(trainer.microbatch, trainer.batch_sizes.largest, trainer.strategy.parts)
    workers = trainer.workers
    run = Run.of(run)
    checkpointer = Checkpointer(workers.strategy, run)
    source = train_source(trainer, train, resumes=True)
    if trainer.strategy.parts and isinstance(source, Reader):
        check_independent_rows(source.table, source.augmentation)
    bounds = limits(epochs, steps, samples, minutes)
    source = workers.source(source, trainer.batch_sizes.first, bounds)
    if not workers.leads:
        val, test, callbacks, progress = None, None, (), False
    called = all_callbacks(
        callbacks, progress, run.logs and checkpointer.keeps, ThreadHint(trainer), workers.comm.leader
    )
    others = [every for every in (checkpointer.every, interval_of(trainer.schedule)) if every is not None]
    validated, tested = (
        scored_sources(data, trainer.device, name, source) for data, name in ((val, "val"), (test, "test"))
    )
    every = interval(validate_every, "validate_every"), interval(log_every, "log_every")
    plan = Plan(source, validated, tested, *every, called, others)
    check.has_an_end(source, bounds, sized=trainer.batch_size is not None)
    plan.check(trainer)
    if plan.scored and not trainer.has_own_evaluate_step:
        check.can_score(trainer.eval_objectives)
    info = Info(trainer, Counters(), bounds, History(), ("train", *plan.val), train=source)
    return plan, info, checkpointer, workers


def rows_of(source: Source) -> int | None:
    """How many rows an epoch has, where that is known."""
    if isinstance(source, Reader | Epochs):
        return source.epoch_rows if isinstance(source, Reader) else source.rows
    return None if source.own_size else source.batches(1)


def train_source(trainer: Trainer, data: Any, resumes: bool = False) -> Source:
    """The data that are trained on, as a source whose rows are augmented: for a run that `resumes`, or for one pass."""
    device, order, seed = trainer.device, trainer.order, trainer.seed
    return source_on(data, device, "train", order, seed, resumes=resumes, augment=trainer.augment)


def scored_sources(data: Any, device: torch.device, name: str, train: Source) -> dict[str, Source]:
    """The data to be scored as sources: none, one, or several sets by name."""
    sets = {} if data is None else data_sets(data, name, train.streams)
    found = {each: source_on(held, device, each, like=train) for each, held in sets.items()}
    for each, source in found.items():
        if any(mine is its for mine in train.generators for its in source.generators):
            raise ConfigError(
                f"the train and the {each} data draw from one torch.Generator, and so each validation would change the "
                f"order of the train data. Give the {each} data a loader with a generator of its own, or with none.",
                argument=name,
            )
    return found


def all_callbacks(
    callbacks: Any, progress: str | bool, logs: bool, hint: Callback | None = None, leader: bool = True
) -> Callbacks:
    """The user's callbacks, what keeps `logs` of a run, the display and a hint beside it; some only on the `leader`.

    A log of a kind that the user has brought takes the place of the usual one.
    """
    if isinstance(callbacks, Callback | type) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks= takes a list of Callback objects, got {_named(callbacks)}.")
    wanted = [*callbacks]
    for kind in (LogFile, TensorBoard) if logs else ():
        if not any(isinstance(callback, kind) for callback in wanted):
            wanted.append(kind())
    styles: dict[str | bool, str] = {True: "auto", "auto": "auto", "bar": "bar", "plain": "plain"}
    if progress is False:
        return Callbacks(wanted, leader)
    if not isinstance(progress, str | bool) or progress not in styles:
        raise ConfigError(f"progress= is 'auto', 'bar', 'plain' or False, got {progress!r}.", argument="progress")
    shown = [Progress(styles[progress])] if hint is None else [Progress(styles[progress]), hint]
    return Callbacks([*wanted, *shown], leader)


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
