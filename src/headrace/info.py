"""What the loop shows of itself, to whoever drives `steps()` and to callbacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .history import History
from .length import Counters, Length

if TYPE_CHECKING:
    from .batch import Batch
    from .step import Outcome
    from .trainer import Trainer


@dataclass(slots=True)
class Info:
    """One object for the whole training, kept up to date; copy what you want to keep."""

    trainer: Trainer
    counters: Counters
    limits: list[Length]
    history: History
    batch: int = 0
    """The batch of this epoch just used, counted from 1."""
    batches: int | None = None
    macrobatch: int = 0
    macrobatches: int | None = None
    ends_epoch: bool = False
    outcome: Outcome | None = None
    stopping: str = ""
    """Why the loop ends after this update, if it does."""
    _began: float = 0.0

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self.counters.steps

    @property
    def samples(self) -> int:
        """Rows used so far, over all workers."""
        return self.counters.samples

    @property
    def epoch(self) -> int:
        """Whole passes over the data so far."""
        return self.counters.epochs

    @property
    def losses(self) -> dict[str, float]:
        """`total_loss` and every term of the last update, read from the device now."""
        return {} if self.outcome is None else {name: float(loss) for name, loss in self.outcome.losses.items()}

    @property
    def rate(self) -> float:
        """The learning rate, of the first group of the first optimizer."""
        return float(next(iter(self.trainer.optimizers.values())).param_groups[0]["lr"])

    @property
    def skipped(self) -> int:
        """Updates left out so far because a loss or a gradient was not finite (`nonfinite="skip"`)."""
        return self.trainer.skipped

    def start(self, batches: int | None, macrobatches: int | None) -> None:
        """The clock starts."""
        self.batches, self.macrobatches = batches, macrobatches
        self._began = time.perf_counter()

    def count(self, batch: Batch, macrobatch: int) -> None:
        """An update has been made of this batch."""
        counters = self.counters
        counters.steps += 1
        counters.samples += batch.total
        counters.epochs += batch.ends_epoch
        counters.minutes = (time.perf_counter() - self._began) / 60
        self.batch += 1
        self.macrobatch, self.ends_epoch = macrobatch, batch.ends_epoch
        for limit in self.limits:
            if limit.reached(counters):
                self.stop(f"{limit} reached")

    def stop(self, why: str) -> None:
        """Asks the loop to end after this update."""
        self.stopping = self.stopping or why

    def row(self) -> dict[str, Any]:
        """The counters, as a report begins with them."""
        return {"epoch": self.epoch, "step": self.step, "samples": self.samples, "rate": self.rate}
