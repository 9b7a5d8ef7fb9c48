"""The batch size: it doubles until memory, data or the gain in speed run out."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.reader import rewound
from ..data.source import Source
from ..errors import ConfigError, HeadraceError, OutOfMemoryError, is_out_of_memory
from ..step import check
from ..step.memory import groups
from ..watch.charts import new_figure
from .rate import rate_setter
from .untouched import Steps, untouched, updates

if TYPE_CHECKING:
    from .trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WARM = 2  # updates that are not timed
TIMED = (3, 50)  # updates that are, at least and at most
GAIN = 1.05  # in speed, by which one of two larger sizes has to be better for another to be tried
NEAR = 0.95  # of the best speed: a smaller batch that comes so near is as good
ROOM = 0.9  # of a host's memory that may be used: whoever takes all of it is killed


@dataclass(frozen=True, slots=True)
class Trial:
    """What one size gave."""

    batch_size: int
    rows_per_s: float
    peak_bytes: int | None
    """The most that torch held on a GPU, or the whole process on a CPU; `None` where nobody can tell."""


@dataclass(frozen=True, slots=True)
class BatchFinding:
    """Speed and memory by batch size, and what they suggest."""

    trials: list[Trial]
    suggestion: int
    """The smallest size that is about as fast as the fastest."""
    how: str
    """Why no larger one was tried."""

    @property
    def largest(self) -> int:
        """The largest size that was used without trouble."""
        return self.trials[-1].batch_size

    def __repr__(self) -> str:
        tried = ", ".join(f"{t.batch_size}: {t.rows_per_s:,.0f} rows/s{_memory(t)}" for t in self.trials)
        return f"BatchFinding(suggestion={self.suggestion}; {tried}; {self.how})"

    def plot(self) -> Figure:
        """Speed against size, with the suggestion."""
        figure = new_figure(width=6.0, height=3.5)
        axes = figure.axes[0]
        axes.plot([t.batch_size for t in self.trials], [t.rows_per_s for t in self.trials], "o-", color="#3b7dd8")
        axes.axvline(self.suggestion, color="#d64545", linestyle="--", label=f"suggestion: {self.suggestion}")
        axes.set(xscale="log", xlabel="rows in a batch", ylabel="rows a second")
        axes.legend()
        return figure

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{t.batch_size}</td><td>{t.rows_per_s:,.0f}</td><td>{_memory(t, '')}</td></tr>"
            for t in self.trials
        )
        head = "<tr><th>batch size</th><th>rows/s</th><th>peak memory</th></tr>"
        said = html.escape(f"suggestion: {self.suggestion}; {self.how}")
        return f"<p>{said}</p><table>{head}{rows}</table>"


def find_batch_size(
    trainer: Trainer,
    steps_of: Steps,
    train: Any,
    *,
    smallest: int = 8,
    largest: int | None = None,
    memory_bytes: int | None = None,
    seconds: float = 0.5,
) -> BatchFinding:
    """Makes a few updates with batches of `smallest` rows, of twice as many, and so on, for about `seconds` each.

    It ends with `largest`, with the rows there are, when two sizes in a row are no faster than those before, when
    memory runs out, or before a size that is expected to take more than `memory_bytes`: if not given, what there is of
    a host's memory, or of a container's. Rates are 0 meanwhile. Everything is as it was afterwards.
    """
    for name, value in {"smallest": smallest, "largest": largest, "memory_bytes": memory_bytes}.items():
        check.positive(name, value, whole=True)
    check.positive("seconds", seconds)
    if largest is not None and largest < smallest:
        raise ConfigError(f"largest= is not below smallest=, got {largest} and {smallest}.")
    with untouched(trainer, train) as source:
        if source.own_size:
            raise ConfigError(f"{source.title} has batches of its own size. Try the data that it loads, or another.")
        rate_setter(trainer)(0.0)
        trials, how = _rise(
            trainer, steps_of, source, smallest, largest, memory_bytes or _room(trainer.device), seconds
        )
    fastest = max(trial.rows_per_s for trial in trials)
    return BatchFinding(trials, next(t.batch_size for t in trials if t.rows_per_s >= NEAR * fastest), how)


def _rise(
    trainer: Trainer,
    steps_of: Steps,
    source: Source,
    smallest: int,
    largest: int | None,
    limit: int | None,
    seconds: float,
) -> tuple[list[Trial], str]:
    """The trials, and why there are no more."""
    trials: list[Trial] = []
    size, rows = smallest, source.batches(1)
    while True:
        try:
            trial, whole = _try(trainer, steps_of, source, size, seconds)
        except (HeadraceError, MemoryError, RuntimeError) as error:
            if not trials or not any(is_out_of_memory(e) for e in (error, error.__cause__) if e is not None):
                raise
            return trials, f"memory ran out with {size} rows"
        over = limit is not None and trial.peak_bytes is not None and trial.peak_bytes > limit
        if over and not trials:
            raise OutOfMemoryError(
                f"{size} rows take {_mb(trial.peak_bytes)}, more than {_mb(limit)}. Lower smallest=."
            )
        if over:
            return trials, f"{size} rows take {_mb(trial.peak_bytes)}, more than {_mb(limit)}"
        trials.append(trial)
        if why := _why_enough(trials, largest, rows if whole else size, limit):
            return trials, why
        size *= 2


def _why_enough(trials: Sequence[Trial], largest: int | None, rows: int | None, limit: int | None) -> str:
    """Why the next size is not tried, if it is not."""
    following = 2 * trials[-1].batch_size
    if largest is not None and following > largest:
        return f"{largest} rows are the most that was asked for"
    if rows is not None and following > rows:
        return f"there are {rows} rows" if rows != trials[-1].batch_size else "an epoch has no more rows"
    before = max((trial.rows_per_s for trial in trials[:-2]), default=0.0)
    if before and max(trial.rows_per_s for trial in trials[-2:]) < GAIN * before:
        return "two sizes in a row were no faster"
    peaks = [trial.peak_bytes for trial in trials[-2:] if trial.peak_bytes is not None]
    expected = peaks[-1] + 2 * (peaks[-1] - peaks[0]) if len(peaks) == 2 else 0
    if limit is not None and expected > limit:
        return f"{following} rows would take about {_mb(expected)}, more than {_mb(limit)}"
    return ""


def _try(trainer: Trainer, steps_of: Steps, source: Source, size: int, seconds: float) -> tuple[Trial, bool]:
    """A few updates with batches of this size; and whether there was a batch with as many rows."""
    vars(trainer)["batch_size"] = size
    most, start, before, seen, whole = WARM + TIMED[1], 0.0, 0, 0, False
    _begin_peak(trainer.device)
    with rewound(source), updates(steps_of, source, most) as made:
        for info in made:
            whole, seen = whole or info.samples - seen >= size, info.samples
            if info.step == WARM:
                _wait(trainer.device)
                start, before = time.perf_counter(), info.samples
            elif info.step >= WARM + TIMED[0] and time.perf_counter() - start >= seconds:
                break
        _wait(trainer.device)
        rate = (info.samples - before) / max(time.perf_counter() - start, 1e-9)
    return Trial(size, rate, _peak(trainer.device)), whole


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _begin_peak(device: torch.device) -> None:
    """From now on the most that is held is counted anew, where that can be asked for."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Linux: the high water mark


def _peak(device: torch.device) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else _kilobytes("self/status", "VmHWM")


def _room(device: torch.device) -> int | None:
    """What this process may come to hold of a host's memory; a GPU says by itself when there is no more."""
    if device.type == "cuda":
        return None
    free, held = _kilobytes("meminfo", "MemAvailable"), _kilobytes("self/status", "VmRSS")
    if free is None or held is None:
        return None
    return int(ROOM * (min([free, *(group.free for group in groups())]) + held))


def _kilobytes(file: str, key: str) -> int | None:
    """A number of Linux's about memory, in bytes."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def _memory(trial: Trial, before: str = ", ") -> str:
    return "" if trial.peak_bytes is None else f"{before}{_mb(trial.peak_bytes)}"


def _mb(count: int | None) -> str:
    return f"{(count or 0) / 1e6:,.0f} MB"
