"""Logging by CNTK's names: what a trainer tells while it trains, and the writers of it."""

import sys
import time
from enum import IntEnum
from typing import Any

from ...workers.here import here

_HEAD = (
    " average      since    average      since      examples",
    "    loss       last     metric       last              ",
    " ------------------------------------------------------",
)


class TraceLevel(IntEnum):
    """How much is told."""

    Error = 0
    Warning = 1
    Info = 2


class _Window:
    """What has been added up since the last summary, and where the last update was written."""

    def __init__(self, every: int, first: int) -> None:
        self._every, self._first = every, first
        self.updates_in_all = self._summaries = 0
        self._reset()

    def _reset(self) -> None:
        self._loss, self._metric = [0.0, 0.0], [0.0, 0.0]
        self._samples, self._updates = [0, 0], [0, 0]
        self._since = time.perf_counter()

    def update(self, samples: int, loss: Any, metric: Any, write: Any) -> None:
        if samples == 0:
            return
        self._samples[1] += samples
        self._updates[1] += 1
        self.updates_in_all += 1
        if not self._due(self._updates[1]):
            return
        self._loss[1], self._metric[1] = float(loss), float(metric)
        windows: list[list[Any]] = [self._samples, self._updates, self._loss, self._metric]
        write(*map(tuple, windows))
        for each in windows:
            each[0] = each[1]

    def summarize(self, loss: Any, metric: Any, write: Any) -> None:
        if self._samples[1]:
            self._loss[1], self._metric[1] = float(loss), float(metric)
        self._summaries += 1
        elapsed = int((time.perf_counter() - self._since) * 1000)
        write(self._samples[1], self._updates[1], self._summaries, self._loss[1], self._metric[1], elapsed)
        self._reset()

    def _due(self, update: int) -> bool:
        if self._every == 0:
            return (update + 1) & update == 0
        return update % self._every == 0 or update <= self._first


class ProgressWriter:
    """Is called with what a training and its tests come to: override the `on_write_` methods."""

    def __init__(
        self,
        freq: int,
        first: int,
        test_freq: int = sys.maxsize,
        test_first: int = 0,
        distributed_freq: int = sys.maxsize,
        distributed_first: int = 0,
    ) -> None:
        self._training = _Window(freq, first)
        self._test = _Window(test_freq, test_first)

    def update_training(self, samples: int, accumulated_loss: Any, accumulated_metric: Any) -> None:
        self._training.update(samples, accumulated_loss, accumulated_metric, self.on_write_training_update)
        self.on_training_update_end()

    def update_test(self, samples: int, accumulated_metric: Any) -> None:
        self._test.update(samples, 0.0, accumulated_metric, lambda s, u, _, m: self.on_write_test_update(s, u, m))

    def write_training_summary(self, accumulated_loss: Any, accumulated_metric: Any) -> None:
        self._training.summarize(accumulated_loss, accumulated_metric, self.on_write_training_summary)

    def write_test_summary(self, accumulated_metric: Any) -> None:
        write = self.on_write_test_summary
        self._test.summarize(0.0, accumulated_metric, lambda s, u, n, _, m, ms: write(s, u, n, m, ms))

    def write(self, key: str, value: Any) -> None:
        """A setting has a new value, such as the learning rate."""

    def __disown__(self) -> "ProgressWriter":
        """Itself: no other owner is to be told."""
        return self

    def on_training_update_end(self) -> None:
        """After every minibatch of the training."""

    def on_write_training_update(self, samples: Any, updates: Any, aggregate_loss: Any, aggregate_metric: Any) -> None:
        """Sums at the begin and at the end of what is written."""

    def on_write_test_update(self, samples: Any, updates: Any, aggregate_metric: Any) -> None:
        """The same of a test."""

    def on_write_distributed_sync_update(self, samples: Any, updates: Any, aggregate_metric: Any) -> None:
        """The same of workers that have agreed."""

    def on_write_training_summary(
        self, samples: int, updates: int, summaries: int, aggregate_loss: Any, aggregate_metric: Any, elapsed_ms: int
    ) -> None:
        """What a part of the training came to."""

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: Any, elapsed_milliseconds: int
    ) -> None:
        """What a test came to."""


def _average(numerator: Any, denominator: Any) -> float:
    """A mean of sums, or of what has been added between two of them; 0 of nothing."""
    top = numerator[1] - numerator[0] if isinstance(numerator, tuple) else numerator
    bottom = denominator[1] - denominator[0] if isinstance(denominator, tuple) else denominator
    return float(top / bottom) if bottom > 0 else 0.0


class ProgressPrinter(ProgressWriter):
    """Prints a line every `freq` minibatches (0: after 1, 2, 4...), and one for every summary.

    `log_to_file` names a file instead; with `rank`, each worker's own. On the standard output worker 0 prints alone.
    There are no heartbeats, and no lines for the tools that started CNTK.
    """

    def __init__(
        self,
        freq: int | None = None,
        first: int = 0,
        tag: str = "",
        log_to_file: str | None = None,
        rank: int | None = None,
        gen_heartbeat: bool = False,
        num_epochs: int | None = None,
        test_freq: int | None = None,
        test_first: int = 0,
        metric_is_pct: bool = True,
        distributed_freq: int | None = None,
        distributed_first: int = 0,
    ) -> None:
        every = [sys.maxsize if each is None else each for each in (freq, test_freq)]
        super().__init__(every[0], first, every[1], test_first)
        self.freq, self.first, self.test_freq = every[0], first, every[1]
        self.tag = f"[{tag}] " if tag else ""
        self.num_epochs = num_epochs
        self.metric_is_pct, self.metric_multiplier = metric_is_pct, 100.0 if metric_is_pct else 1.0
        self.logfilename = None
        if log_to_file is not None:
            self.logfilename = log_to_file + ("" if rank is None else f"rank{rank}")
            print("Redirecting log to file " + self.logfilename)
            with open(self.logfilename, "w", encoding="utf-8") as file:
                file.write(self.logfilename + "\n")
        if freq == 0:
            for line in _HEAD:
                self.log(line)

    def log(self, message: str) -> None:
        if self.logfilename is None:
            if here().leader:
                print(message)
            return
        with open(self.logfilename, "a", encoding="utf-8") as file:
            file.write(message + "\n")

    def end_progress_print(self, msg: str = "") -> None:
        if msg:
            self.log(msg)

    def write(self, key: str, value: Any) -> None:
        self.log(f"{key}: {value}")

    def on_write_training_update(self, samples: Any, updates: Any, aggregate_loss: Any, aggregate_metric: Any) -> None:
        self._line(samples, updates, aggregate_loss, aggregate_metric, self.freq, "")

    def on_write_test_update(self, samples: Any, updates: Any, aggregate_metric: Any) -> None:
        self._line(samples, updates, None, aggregate_metric, self.test_freq, "Evaluation ")

    def on_write_training_summary(
        self, samples: int, updates: int, summaries: int, aggregate_loss: Any, aggregate_metric: Any, elapsed_ms: int
    ) -> None:
        if self.freq == 0:
            return
        metric, seconds = self._metric(aggregate_metric, samples), elapsed_ms / 1000
        of = f" of {self.num_epochs}" if self.num_epochs is not None else ""
        self.log(
            f"Finished Epoch[{summaries}{of}]: {self.tag}loss = {_average(aggregate_loss, samples):0.6f} * {samples}, "
            f"metric = {metric} * {samples} {seconds:0.3f}s ({_average(samples, seconds):5.1f} samples/s);"
        )

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: Any, elapsed_milliseconds: int
    ) -> None:
        metric = self._metric(aggregate_metric, samples)
        self.log(f"Finished Evaluation [{summaries}]: Minibatch[1-{updates}]: metric = {metric} * {samples};")

    def _metric(self, total: Any, samples: Any) -> str:
        value = _average(total, samples) * self.metric_multiplier
        return f"{value:0.2f}%" if self.metric_is_pct else f"{value:0.6f}"

    def _line(self, samples: Any, updates: Any, loss: Any, metric: Any, every: int, what: str) -> None:
        if every == 0:
            pairs = [
                (_average(each[1], samples[1]), _average(each, samples)) if each else None for each in (loss, metric)
            ]
            columns = [f"{p[0]:8.3g}   {p[1]:8.3g}   " if p else f"{'':8s}   {'':8s}   " for p in pairs]
            self.log(f" {''.join(columns)} {samples[1]:10d}")
            return
        count = samples[1] - samples[0]
        parts = [] if loss is None else [f"loss = {_average(loss, samples):0.6f} * {count:d}"]
        parts.append(f"metric = {self._metric(metric, samples)} * {count:d}")
        self.log(f" {what}Minibatch[{updates[0] + 1:4d}-{updates[1]:4d}]: {', '.join(parts)};")
