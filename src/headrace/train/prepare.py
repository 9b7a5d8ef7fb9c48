"""Checks what a training is given, and makes its loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.maps import check_independent_rows
from ..data.reader import Reader
from ..errors import ConfigError
from ..length import Counters, Length, interval, limits
from ..step import check
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..workers.strategy import Strategy
from ..workers.synchronous import join
from .at_center import AtCenter
from .checkpointer import Checkpointer
from .loop import Loop
from .plan import Plan, all_callbacks, scored_sources, train_source
from .runs import Run
from .schedule import interval_of
from .threads import ThreadHint
from .workers import Workers

if TYPE_CHECKING:
    from .trainer import Trainer


def make_loop(
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
    scan: bool = False,
    callbacks: Sequence[Callback] = (),
    run: str | Path | Run | None = None,
) -> Loop:
    """A training that has been checked as far as it can be before it begins."""
    check.has_optimizer(trainer.optimizers, "a training")
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
    plan.check(trainer, scan)
    if plan.scored and not trainer.has_own_evaluate_step:
        check.can_score(trainer.eval_objectives)
    info = Info(trainer, Counters(), bounds, History(), ("train", *plan.val), train=source)
    return Loop(trainer, plan, info, checkpointer, workers)


def make_workers(strategy: Strategy | None, device: torch.device) -> Workers:
    """The workers of a trainer: in step with each other, or each at its own pace."""
    joined = join(strategy)
    return (AtCenter if joined.centered else Workers)(joined, device)
