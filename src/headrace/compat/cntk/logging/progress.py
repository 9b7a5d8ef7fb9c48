"""What a trainer tells while it trains: the counting of updates and summaries, which writers are called with."""

import sys
import time
from typing import Any


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
        self._syncs = _Window(distributed_freq, distributed_first)

    def update_training(self, samples: int, accumulated_loss: Any, accumulated_metric: Any) -> None:
        """A minibatch was trained on; sums since the last summary."""
        self._training.update(samples, accumulated_loss, accumulated_metric, self.on_write_training_update)
        self.on_training_update_end()

    def update_test(self, samples: int, accumulated_metric: Any) -> None:
        """A minibatch was tested."""
        self._test.update(samples, 0.0, accumulated_metric, lambda s, u, _, m: self.on_write_test_update(s, u, m))

    def write_training_summary(self, accumulated_loss: Any, accumulated_metric: Any) -> None:
        """A part of the training is over."""
        self._training.summarize(accumulated_loss, accumulated_metric, self.on_write_training_summary)

    def write_test_summary(self, accumulated_metric: Any) -> None:
        """A test is over."""
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
        self,
        samples: int,
        updates: int,
        summaries: int,
        aggregate_loss: Any,
        aggregate_metric: Any,
        elapsed_milliseconds: int,
    ) -> None:
        """What a part of the training came to."""

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: Any, elapsed_milliseconds: int
    ) -> None:
        """What a test came to."""


def average(numerator: Any, denominator: Any) -> float:
    """A mean of sums, or of what has been added between two of them; 0 of nothing."""
    top = numerator[1] - numerator[0] if isinstance(numerator, tuple) else numerator
    bottom = denominator[1] - denominator[0] if isinstance(denominator, tuple) else denominator
    return float(top / bottom) if bottom > 0 else 0.0
