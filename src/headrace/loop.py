"""The loop: epochs, and what is due when. Step, validate, decide, report, in that order, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import evaluate
from .batch import Batch
from .data.source import Source
from .errors import DataError
from .info import Info
from .malloc import keep_freed_memory
from .plan import Plan, deterministic_mode
from .step import as_outcome
from .tally import Tally

if TYPE_CHECKING:
    from .trainer import Trainer


class Loop:
    """One training of a trainer, by a plan; `run` gives its `info` after every update."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info) -> None:
        self._trainer, self._plan, self._info = trainer, plan, info
        self._objective = next(iter(trainer.objectives.values()))
        self._metrics = trainer.metrics.fresh(self._objective.reads, self._objective.ignores)
        self._tally = Tally()
        self._guard = trainer._step.guard
        self._epoch_reported = -1  # the step whose end of an epoch has been reported

    def run(self) -> Iterator[Info]:
        """Epoch after epoch, until a limit is reached or somebody asks to stop."""
        trainer, plan, info, call = self._trainer, self._plan, self._info, self._plan.callbacks.call
        with self._at_work(), trainer._feed(plan.train, None) as feed:
            info.start(feed.batches, feed.macrobatches)
            initial, empty = copy.deepcopy(plan.train.state_dict()), False
            call("on_fit_start", info)
            while not info.stopping:
                info.batch = 0
                for batch in feed:
                    if not info.batch:
                        call("on_epoch_start", info)
                    info.outcome = as_outcome(trainer.train_step(batch), "train_step")
                    info.count(batch, feed.macrobatch)
                    evaluate.record(info.outcome, self._tally, self._metrics, self._objective, trainer.target)
                    for hook in plan.callbacks.on_step_end:
                        hook(info)
                    if feed.ends_macrobatch:
                        self._guard.settle()
                        call("on_macrobatch_end", info)
                    if plan.within_epochs or info.ends_epoch or info.stopping:
                        self._report(batch)
                    yield info
                    if info.stopping:
                        self._report(batch)
                        break
                if not info.batch and empty:
                    raise DataError(
                        "the train data gave no rows. A Source without state must start again by itself "
                        "after None; give it state_dict and load_state_dict, and it is rewound."
                    )
                empty = not info.batch
                if feed.finished and initial is not None:
                    plan.train.load_state_dict(initial)
            if plan.test is not None:
                self._score(plan.test, "test")
            info.history.stopped = info.stopping
            call("on_fit_end", info)

    def _report(self, batch: Batch) -> None:
        """What is due after an update and has not been done yet: first validate, then report."""
        plan, info = self._plan, self._info
        now = (info.counters, batch.total, batch.ends_epoch)
        done = info.history.keys_at(info.step)
        if (plan.log_every.fires(*now) or info.stopping) and "train/loss" not in done:
            self._guard.settle()
            info.history.at(info.row()).update(evaluate.report("train", self._tally, self._metrics))
        if plan.val is not None and (plan.validate_every.fires(*now) or info.stopping) and "val/loss" not in done:
            self._score(plan.val, "val")
        if info.ends_epoch and self._epoch_reported != info.step:
            self._epoch_reported = info.step
            row = info.history.rows[-1] if info.history.keys_at(info.step) else info.row()
            plan.callbacks.call("on_epoch_end", info, row)

    def _score(self, source: Source, name: str) -> None:
        """Scores a data set in the middle of a training and writes it into the history."""
        scores = self._trainer._score(source, name, None, None)
        self._info.history.at(self._info.row()).update(scores)
        self._plan.callbacks.call("on_validation_end", self._info, scores)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The model in train mode; it and the optimizer are ordinary again however the training ends."""
        trainer, info, call = self._trainer, self._info, self._plan.callbacks.call
        keep_freed_memory()
        trainer._step.updates = 0
        self._guard.forget()
        with evaluate.mode(trainer._modules, training=True), deterministic_mode(trainer.deterministic):
            try:
                yield
            except GeneratorExit:  # the caller has left the loop of `steps`
                info.stop("left")
                call("on_fit_end", info)
                raise
            except BaseException as error:
                call("on_error", info, error)
                raise
            finally:
                trainer.release()
