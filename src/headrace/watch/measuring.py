"""Callbacks that measure: times and the norm of gradients; and one made of functions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, unknown
from ..length import Length, interval
from .callback import HOOKS, Callback

if TYPE_CHECKING:
    from .info import Info


class Lambda(Callback):
    """Calls functions at hooks: `Lambda(on_epoch_end=lambda info, row: print(row["train/loss"]))`."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        for hook, function in functions.items():
            if hook not in HOOKS:
                raise ConfigError(unknown("hook", hook, HOOKS))
            if not callable(function):
                raise ConfigError(f"Lambda: {hook}= is a function, got a {type(function).__name__}.")
            setattr(self, hook, function)


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
        """Seconds since the last call."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


class GradientNorm(Callback):
    """Reports the norm of the gradients of the last update, before they are clipped, at every `every`.

    It is called "gradient_norm", and "gradient_norm/<optimizer>" where there are several. Gradients are those of the
    whole update: of all microbatches and, where workers make an update together, of all workers.
    """

    everywhere = False

    def __init__(self, every: str | Length = "1 epoch") -> None:
        self.every = interval(every, "every")
        self.forget()

    def forget(self) -> None:
        self._norms: dict[str, float] = {}  # as of the last checkpoint: not every optimizer is used at each step

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._norms} if len(self._norms) > 1 else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms = {str(key): float(norm) for key, norm in state["norms"].items()}

    def on_checkpoint(self, info: Info) -> None:
        self._norms |= {key: float(norm) for key, norm in info.trainer.updates.norms.items()}

    def on_fit_start(self, info: Info) -> None:
        info.trainer.updates.measures_norm = True

    def on_step_end(self, info: Info) -> None:
        if info.fires(self.every):
            norms = self._norms | info.trainer.updates.norms
            if not norms:
                warnings.warn("GradientNorm measures updates of the trainer, and so far there are none.", stacklevel=2)
            info.log({f"gradient_norm/{key}".rstrip("/"): float(norm) for key, norm in norms.items()})

    def on_error(self, info: Info, error: BaseException) -> None:
        info.trainer.updates.measures_norm = False

    def on_fit_end(self, info: Info) -> None:
        info.trainer.updates.measures_norm = False
