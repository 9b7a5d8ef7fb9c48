"""How long epochs and validations take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .callback import Callback

if TYPE_CHECKING:
    from .info import Info


class Timer(Callback):
    """Reports `time/epoch_s` and `time/rows_per_s` of every epoch, `time/val_s` and `time/test_s`.

    The seconds of an epoch are those of its updates and of waiting for data. The numbers are those of this machine at
    this time: they are all that differs in the history of a training that is made again.
    """

    everywhere = False

    def __init__(self) -> None:
        self.epoch_s: list[float] = []
        """Of every epoch so far, in this process."""
        self.forget()

    def forget(self) -> None:
        self.epoch_s.clear()
        self._spent_s, self._rows = 0.0, 0
        self._last = time.perf_counter()

    def on_epoch_start(self, info: Info) -> None:
        self._spent_s, self._rows = 0.0, 0
        self._last = time.perf_counter()

    def on_step_end(self, info: Info) -> None:
        self._spent_s += self._lap()
        self._rows += info.rows

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        name = next(iter(scores)).partition("/")[0]
        info.log({f"time/{name}_s": self._lap()})

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        if self._rows:  # else the training has been taken up at the end of an epoch
            self.epoch_s.append(self._spent_s)
            info.log({"time/epoch_s": self._spent_s, "time/rows_per_s": self._rows / max(self._spent_s, 1e-9)})

    def _lap(self) -> float:
        """Seconds since the last look."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last
