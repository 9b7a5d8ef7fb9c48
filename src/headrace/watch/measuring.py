"""Callbacks that measure: times and the norm of gradients; and one made of functions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.ragged import Ragged
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


PEAKS = {
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Floating-point operations a second of dense products in half precision, by what is in a device's name."""


class Timer(Callback):
    """Reports `time/epoch_s` and `time/rows_per_s` of every epoch, `time/val_s` and `time/test_s`.

    The seconds of an epoch are those of its updates and of waiting for data. The numbers are those of this machine at
    this time: they are all that differs in the history of a training that is made again. Of several workers, rows are
    those of all, and worker 0 counts tokens.

    Args:
        tokens: a stream whose items are counted, for `time/tokens_per_s`: the items of a `Ragged`, the true elements of
            a mask, the positions of another stream, without their channels
        flops: the floating-point operations of one row, or of one token where these are counted, for `time/mfu`
        peak: the operations a second that one device can make in half precision, which are known of usual GPUs
    """

    everywhere = False

    def __init__(self, tokens: str = "", flops: float | None = None, peak: float | None = None) -> None:
        if flops is not None and (isinstance(flops, str) or not flops > 0):
            raise ConfigError(f"Timer: flops= is a number of operations above 0, as 6 * parameters; got {flops!r}.")
        if peak is not None and not peak > 0:
            raise ConfigError(f"Timer: peak= is a number of operations a second above 0; got {peak!r}.")
        self._stream, self._flops, self._peak = tokens, flops, peak
        self.epoch_s: list[float] = []
        """Of every epoch so far, in this process."""
        self.forget()

    def forget(self) -> None:
        self.epoch_s.clear()
        self._begin()

    def _begin(self) -> None:
        self._spent_s, self._rows = 0.0, 0
        self._counted, self._tokens = 0, 0.0  # rows of this worker, and the tokens in them
        self._masked: Any = 0  # those of masks, which are on a device
        self._last = time.perf_counter()

    def _check(self, info: Info) -> None:
        names = [stream.name for stream in info.train.streams or ()]
        if self._stream and names and self._stream not in names:
            raise ConfigError(f"Timer: {unknown('stream', self._stream, names)}")
        if self._flops is not None and self._peak is None:
            device = info.trainer.device
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
            known = [peak for key, peak in PEAKS.items() if key in name.replace("-", " ").split() or key in name]
            if not known:
                raise ConfigError(f"Timer: the operations a second of {name!r} are not known. Pass them: peak=312e12.")
            self._peak = known[0]

    def _change(self, info: Info, batch: Batch) -> Batch:
        """Counts the tokens of a batch, which stays as it is."""
        value = batch[self._stream] if self._stream else None
        self._counted += batch.rows
        if isinstance(value, Ragged):
            self._tokens += value.items
        elif isinstance(value, Tensor) and value.dtype is torch.bool:
            self._masked = self._masked + value.sum()
        elif isinstance(value, Tensor):
            self._tokens += value.shape[:2].numel()
        elif self._stream:
            raise ConfigError(f"Timer: tokens={self._stream!r} is a {type(value).__name__}, whose items do not count.")
        return batch

    def on_epoch_start(self, info: Info) -> None:
        self._begin()

    def on_step_end(self, info: Info) -> None:
        self._spent_s += self._lap()
        self._rows += info.rows
        if (self._stream or self._flops) and not isinstance(self._masked, Tensor):
            info.per_row = self._of_a_row(self._tokens, info)

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        name = next(iter(scores)).partition("/")[0]
        info.log({f"time/{name}_s": self._lap()})

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        if self._rows:  # else the training has been taken up at the end of an epoch
            self.epoch_s.append(self._spent_s)
            rate = self._rows / max(self._spent_s, 1e-9)
            info.per_row = self._of_a_row(float(self._tokens + self._masked), info)
            more = {f"time/{name}": rate * each for name, each in info.per_row.items()}
            info.log({"time/epoch_s": self._spent_s, "time/rows_per_s": rate, **more})

    def _of_a_row(self, tokens: float, info: Info) -> dict[str, float]:
        """What a row stands for, on average: tokens, and a share of the operations of a second."""
        found = {"tokens_per_s": tokens / max(self._counted, 1)} if self._stream else {}
        if self._flops is not None and self._peak is not None:
            flops = self._flops * found.get("tokens_per_s", 1.0)
            found["mfu"] = flops / (self._peak * info.trainer.workers.comm.count)
        return found

    def _lap(self) -> float:
        """Seconds since the last call."""
        last, self._last = self._last, time.perf_counter()
        return self._last - last


class GradientNorm(Callback):
    """Reports the norm of the gradients of the last update, before they are clipped, once in each `every`.

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
