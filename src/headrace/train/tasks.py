"""What is due after an update: to measure, validate, move rates, report, and keep the best weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Set
from typing import Any

from ..data.source import Source
from ..errors import ConfigError
from ..step.signals import Interrupted
from ..store import rng
from .passes import report, score
from .session import Session

AFTER_THE_REPORT = ("on_report", "on_checkpoint", "on_fit_end")
"""Hooks from which a number would come too late for the report of its step."""


class ScheduledTasks:
    """Does each thing once for a step, also where a training goes on from that step: its state knows what is done."""

    def __init__(self, at: Session) -> None:
        self._at, self._trainer, self._plan, self._info = at, at.trainer, at.plan, at.info
        self._checkpointer, self._workers = at.checkpointer, at.workers
        self.save = False
        """Whether a checkpoint is due."""
        self._put_off = False  # whether one waits for the end of the epoch
        self.common = False
        """Whether something was due after the last update for all workers."""

    def settle(self) -> None:
        """Does what is due at this step, before the driver's turn."""
        info = self._info
        if self._plan.within_epochs or info.counters.ends_epoch or info.stopping or info.extra_numbers:
            self.do()

    def take_requests(self) -> None:
        """Does what the driver has asked for, and reports what it has logged."""
        info = self._info
        if info.asked:
            self.grant()
        if info.extra_numbers:
            self.report(info.history.keys_at(info.step), info.row())

    def do(self) -> None:
        """Each thing once for a step, also where a training goes on from that step: what is done is in its state."""
        info, at = self._info, self._at
        at.complete = False
        reported = info.history.keys_at(info.step) if "row" in at.done else set()
        counters = info.row()  # before the rates of the next update
        self.common |= info.ends_epoch
        for what, act in (
            ("log", self._measure),
            ("val", self._validate),
            ("rates", self._move_rates),
            ("epoch", self._end_epoch),
        ):
            if what not in at.done and act(counters):
                at.done.add(what)
        self.report(reported, counters)
        self.keep_best()
        at.complete = True
        if "save" not in at.done:
            at.done.add("save")
            self.save |= self._save_is_due()

    def _measure(self, counters: dict[str, Any]) -> bool:
        """What has been trained since the last report."""
        if not (self._plan.log_every.fires(self._info.counters) or self._info.stopping):
            return False
        self._trainer.updates.settle()
        self.common = True
        found = report("train", self._at.tally, self._workers.trained)
        self._info.rates = self._workers.rates
        self._info.history.at(counters).update(found)
        return True

    def _validate(self, counters: dict[str, Any]) -> bool:
        plan = self._plan
        if not plan.val or not (plan.validate_every.fires(self._info.counters) or self._info.stopping):
            return False
        self.common = True
        self.score(plan.val)
        return True

    def _move_rates(self, counters: dict[str, Any]) -> bool:
        self._at.rates.after(self._info.counters, self._info.history)
        if self._at.rates.asks:
            self._trainer.updates.touched()
        return True

    def _end_epoch(self, counters: dict[str, Any]) -> bool:
        info = self._info
        if info.ends_epoch:
            row = info.history.rows[-1] if info.history.keys_at(info.step) else counters
            self.call("on_epoch_end", info, row)
        return info.ends_epoch

    def score(self, sources: Mapping[str, Source]) -> None:
        """Scores data sets in the middle of a training and writes it into the history."""
        scores: dict[str, Any] = {}
        self._trainer.updates.settle()
        before = rng.capture(self._trainer.device)
        try:
            with self._trainer.signals.scoring(), self._workers.consensus(self._info):
                for name, source in sources.items():
                    scores |= score(self._trainer, source, name)
        except Interrupted:
            rng.restore(before, self._trainer.device)
            raise
        self._trainer.updates.touched()
        self._info.history.at(self._info.row()).update(scores)
        self.call("on_validation_end", self._info, scores)

    def report(self, reported: Set[str], counters: dict[str, Any]) -> None:
        """The report of this step is complete, with what was logged: what has not been `reported` of it goes out."""
        info = self._info
        if info.extra_numbers:
            info.history.at(counters).update(info.extra_numbers)
            info.extra_numbers = {}
        if not info.history.keys_at(info.step) - reported:
            return
        row = {key: value for key, value in info.history.rows[-1].items() if key in counters or key not in reported}
        self._checkpointer.wait_for_first()
        self.call("on_report", info, row)
        self._checkpointer.report(row, info.counters.minutes)
        self._at.done.add("row")

    def keep_best(self) -> None:
        """The weights of this step are kept, if a callback or whoever drives the loop has marked it."""
        info = self._info
        if not self._workers.keeps(info, self.common):
            return
        if info.best is not None and info.step == info.best.step != info.history.marked:
            info.history.marked = info.step
            with self._workers.consensus(self._info):
                self._checkpointer.mark_best(self._trainer.model)
            self._trainer.updates.touched()
        if "best" not in self._at.done:
            self._at.done.add("best")
            self.save = True

    def _save_is_due(self) -> bool:
        """Whether a checkpoint is to be written. Where data have no state, it waits for the end of the epoch."""
        self._put_off |= self._checkpointer.due(self._info)
        due = self._put_off and (self._at.initial is not None or self._info.ends_epoch)
        self._put_off &= not due
        return due

    def call(self, hook: str, *arguments: Any) -> None:
        """Calls a hook, and does what is asked for there."""
        self._info.sealed = hook in AFTER_THE_REPORT
        self._plan.callbacks.call(hook, *arguments)
        self._info.sealed = False
        if hook in self._plan.callbacks.acting:
            self._trainer.updates.touched()
        if self._info.asked:
            self.grant()

    def grant(self) -> None:
        """What callbacks have asked for is done, in the order in which they have."""
        asked, self._info.asked = self._info.asked, []
        self._trainer.updates.touched()
        if self._info.leased:
            raise ConfigError(
                f"a callback asks to change {', '.join(what for what, _ in asked)}, which workers at a center cannot "
                "agree on: each goes at its own pace. Use a strategy without a center."
            )
        for what, value in asked:
            if what == "rate":
                self._at.set_rate(value)
            elif what == "freeze":
                self._at.frozen.freeze(*value)
            else:
                self._at.frozen.thaw(*value)


def warn_if_nothing_was_learnt(tried: int, left_out: int, skipped: int) -> None:
    """Warns if all updates that were tried were left out, since no row counted, or were skipped by the guard."""
    if tried and max(left_out, skipped) >= tried:
        why = "no row counted. Look at the labels that are ignored, and at the weights of rows and classes."
        if skipped:
            why = "a loss or a gradient was not finite. Lower the rate, clip it, look for NaN in the data."
        warnings.warn(f"none of the {tried} updates was made, and the weights are as they were: {why}", stacklevel=4)
