"""A trace of some updates by torch's profiler."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store import disk
from .callback import Callback
from .tracker import Place

if TYPE_CHECKING:
    from .info import Info


class Profile(Callback):
    """Profiles `steps` updates after the first `wait`, and writes what took how long.

    Into `path`, or the run's profile/: trace.json for chrome://tracing or https://ui.perfetto.dev, and table.txt, the
    operations by the time that they took. Options of `torch.profiler.profile`, as record_shapes or profile_memory, are
    passed on.
    """

    everywhere = False

    def __init__(self, steps: int = 10, *, wait: int = 10, path: str | Path | None = None, **options: Any) -> None:
        for name, value, least in (("steps", steps, 1), ("wait", wait, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"Profile: {name}= is a number of updates, at least {least}, got {value!r}.")
        self.steps, self.wait, self.path, self.options = steps, wait, path, options
        self._place = Place(self, path, "profile")
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
