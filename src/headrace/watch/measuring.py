"""Callbacks that measure: times, learning rates, a profile; and one made of functions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, unknown
from ..length import Length, interval
from ..store import disk
from .callback import HOOKS, Callback
from .files import OutputPath

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


class LearningRateMonitor(Callback):
    """Reports the rate of each group as `rate/<optimizer>/<group>`, at every `every`; momenta too with `momentum`.

    A report has the first group's as "rate" anyway. A group's name is its "name", if it has one, or its number.
    """

    everywhere = False

    def __init__(self, every: str | Length = "1 epoch", *, momentum: bool = False) -> None:
        self.every, self.momentum = interval(every, "every"), momentum

    def on_step_end(self, info: Info) -> None:
        if info.fires(self.every):
            info.log(self._found(info))

    def _found(self, info: Info) -> dict[str, float]:
        found = {}
        for key, optimizer in info.trainer.optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                name = "/".join(part for part in (key, str(group.get("name", number))) if part)
                name = f"{name}/{number}" if f"rate/{name}" in found else name
                found[f"rate/{name}"] = float(group["lr"])
                if self.momentum and (momentum := _momentum(group)) is not None:
                    found[f"momentum/{name}"] = momentum
        return found


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


def _momentum(group: dict[str, Any]) -> float | None:
    """As torch's optimizers call it: `momentum`, or the first of `betas`."""
    found = group.get("momentum", group.get("betas"))
    return float(found[0] if isinstance(found, tuple | list) else found) if found is not None else None


class Profile(Callback):
    """Profiles `steps` updates after the first `wait`, and writes what took how long.

    Into `path`, or the run's profile/: trace.json for chrome://tracing or https://ui.perfetto.dev, and table.txt, the
    operations by the time that they took. Options of `torch.profiler.profile`, as record_shapes or profile_memory, are
    passed on.
    """

    everywhere = False

    def __init__(self, steps: int = 10, *, wait: int = 10, path: str | Path | None = None, **options: Any) -> None:
        for name, value in (("steps", steps), ("wait", wait)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"Profile: {name}= is a number of updates, at least 1, got {value!r}.")
        self.steps, self.wait, self.path, self.options = steps, wait, path, options
        self._place = OutputPath(self, path, "profile")
        self._profiler: Any = None

    def on_fit_start(self, info: Info) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        if self.path is None and info.run is None:
            raise ConfigError("Profile writes into a run, and there is none: pass fit(run=) or Profile(path=).")
        self._folder = self._place.folder(info)
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (info.trainer.device.type == "cuda")
        when = schedule(wait=self.wait - 1, warmup=1, active=self.steps, repeat=1)
        try:
            self._profiler = profile(activities=activities, schedule=when, on_trace_ready=self._write, **self.options)
        except TypeError as error:
            raise ConfigError(f"Profile passes its other options on to torch.profiler.profile: {error}.") from None
        self._left = self.wait + self.steps
        self._profiler.start()

    def on_step_end(self, info: Info) -> None:
        if self._profiler is None:
            return
        self._left -= 1
        self._profiler.step()
        if not self._left:
            self._stop()

    def on_error(self, info: Info, error: BaseException) -> None:
        with suppress(RuntimeError):  # what is wrong has been said
            self._stop()

    def on_fit_end(self, info: Info) -> None:
        made = self.wait + self.steps - self._left
        if 0 < made <= self.wait and info.stopping != "left":
            warnings.warn(
                f"Profile had nothing to write: it begins after {self.wait} updates, and there were {made}. Make wait= "
                "smaller.",
                stacklevel=2,
            )
        self._stop()

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _write(self, profiler: Any) -> None:
        if self._left >= self.steps:  # it ended before it began
            return
        trace = self._folder / "trace.json"
        trace.unlink(missing_ok=True)  # it may be a link to somewhere else
        profiler.export_chrome_trace(str(trace))
        by = "self_cuda_time_total" if any("CUDA" in str(a) for a in profiler.activities) else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=50)
        disk.write_file(self._folder / "table.txt", table.encode())
