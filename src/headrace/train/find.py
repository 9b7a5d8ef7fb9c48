"""Suggests a learning rate or a batch size, by short trainings of a copy of the trainer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.reader import rewound
from ..data.source import Source
from ..errors import ConfigError, HeadraceError, NonFiniteError, OutOfMemoryError, is_out_of_memory
from ..length import whole
from ..step import check
from ..step.arguments import groups_of, put_rate, shares_of
from ..watch.charts import new_figure
from .copied import copied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 10  # updates that show anything
WARM, TIMED = 2, (3, 50)  # updates that are not timed, and those that are: at least and at most
GAIN, NEAR = 1.05, 0.95  # speed that is worth another size; share of the best speed that is as good
ROOM = 0.9  # of a host's memory that may be used: the system ends a process that takes all of it


@dataclass(frozen=True, slots=True, repr=False)
class LrFinding:
    """Losses by rate, and the rate at which the smoothed loss falls fastest (`None` if it does not fall)."""

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float | None
    how: str

    def __repr__(self) -> str:
        rate = "nothing" if self.suggestion is None else f"{self.suggestion:.2g}"
        return f"LrFinding(suggestion={rate}: {self.how})"

    def plot(self) -> Figure:
        """Loss against rate."""
        figure = new_figure(width=6.0, height=3.5)
        axes = figure.axes[0]
        axes.plot(self.rates, self.losses, color="#c8ccd2", label="loss")
        axes.plot(self.rates, self.smoothed, color="#3b7dd8", label="smoothed")
        lowest, first = min(self.smoothed), max(self.smoothed[:FEWEST])
        height = (first - lowest) or 1.0
        axes.set_ylim(lowest - 0.2 * height, lowest + 2 * height)  # losses that diverge would flatten the rest
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=f"suggestion: {self.suggestion}")
        axes.legend()
        return figure


@dataclass(frozen=True, slots=True)
class Trial:
    """The speed with one batch size, and the most memory held until then: by torch on a GPU, else by the process."""

    batch_size: int
    rows_per_s: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class BatchFinding:
    """Speed and memory by batch size, and the smallest size that is about as fast as the fastest."""

    trials: list[Trial]
    suggestion: int
    how: str

    def __repr__(self) -> str:
        rows = [f"{t.batch_size:10} {t.rows_per_s:10,.0f} {_mb(t.peak_bytes):>12}" for t in self.trials]
        return "\n".join(["batch size     rows/s  peak memory", *rows, f"suggestion: {self.suggestion}; {self.how}"])


def find_lr(
    trainer: Any, made_by: type, train: Any, *, lowest: float = 1e-7, highest: float = 10.0, steps: int = 100
) -> LrFinding:
    """Trains for up to `steps` updates, while the rate rises from `lowest` to `highest` by equal factors.

    It ends as soon as the loss diverges. Groups of parameters keep their ratios; there is no schedule.
    Smith, https://arxiv.org/abs/1506.01186.
    """
    if not 0 < lowest < highest < math.inf:
        raise ConfigError(f"lowest= is above 0 and below highest=, got {lowest!r} and {highest!r}.")
    if (count := whole(steps, FEWEST)) is None:
        raise ConfigError(f"steps= is a number of updates, at least {FEWEST}, got {steps!r}: fewer show nothing.")
    rates = [float(rate) for rate in np.geomspace(lowest, highest, count)]
    losses: list[float] = []
    with copied(trainer, made_by, train) as (tried, source):
        groups = groups_of(tried.optimizers.values())
        if not (shares := shares_of(groups)):
            raise ConfigError("the first group's rate is 0, so that others are in no proportion to it. Give it a rate.")
        updates = tried.steps(source, steps=count, log_every=f"{count} steps")
        with closing(updates):
            while len(losses) < count and not _diverged(losses):
                for group, share in zip(groups, shares, strict=True):
                    put_rate(group, rates[len(losses)] * share)
                try:
                    if (info := next(updates, None)) is None:  # a train_step has stopped the training
                        break
                    losses.append(float(info.outcome.losses["total_loss"]))
                except NonFiniteError:
                    losses.append(math.inf)
    why = f"up to {rates[len(losses) - 1]:.2g} it did not diverge"
    if _diverged(losses):
        why = f"it diverged at {rates[len(losses) - 1]:.2g}"
    if not math.isfinite(losses[-1]) and len(losses) <= FEWEST:
        raise NonFiniteError(
            f"the loss is not finite after {len(losses) - 1} updates, at a rate of {rates[len(losses) - 1]:.2g}: too "
            "few to see anything. Lower lowest=, or look for bad rows: fit(..., scan=True)."
        )
    finite = losses if math.isfinite(losses[-1]) else losses[:-1]
    return _suggest(rates[: len(finite)], finite, why)


def _diverged(losses: Sequence[float]) -> bool:
    """Whether the last loss is not finite, or a mean of five is far above the best one."""
    if not losses or not math.isfinite(losses[-1]):
        return bool(losses)
    means = [float(np.mean(losses[max(0, end - 5) : end])) for end in range(1, len(losses) + 1)]
    return means[-1] > min(means) + 3 * max(abs(min(means)), 0.1 * abs(losses[0]))


def _suggest(rates: list[float], losses: list[float], why: str) -> LrFinding:
    """The steepest descent before the lowest point, if the loss falls by more than its noise."""
    half = max(1, len(losses) // 20)
    padded = np.pad(losses, half, mode="reflect", reflect_type="odd")  # so that a mean at an end is of its trend
    smoothed = np.convolve(padded, np.full(2 * half + 1, 1 / (2 * half + 1)), mode="valid")
    lowest = half + int(smoothed[half : max(half + 1, len(losses) - half)].argmin())
    noise = float(np.std(np.array(losses)[: lowest + 1] - smoothed[: lowest + 1]))
    if smoothed[half] - smoothed[lowest] <= 2 * noise:
        how = f"the loss does not fall by more than its noise between {rates[0]:.2g} and {rates[-1]:.2g}; {why}"
        return LrFinding(rates, losses, smoothed.tolist(), None, how)
    slopes = np.gradient(smoothed, np.log10(rates))
    steepest = half + int(slopes[half : lowest + 1].argmin())
    how = f"there the loss, a mean of {2 * half + 1}, falls fastest by the logarithm of the rate; {why}"
    return LrFinding(rates, losses, smoothed.tolist(), rates[steepest], how)


def find_batch_size(
    trainer: Any,
    made_by: type,
    train: Any,
    *,
    smallest: int = 8,
    largest: int | None = None,
    memory_bytes: int | None = None,
    seconds: float = 0.5,
) -> BatchFinding:
    """Makes a few updates with batches of `smallest` rows, of twice as many, and so on, for about `seconds` each.

    It ends with `largest`, with the rows there are, when two sizes in a row are no faster than those before, when
    memory runs out, or before a size that is expected to need more than `memory_bytes` (if not given, nine tenths of
    what a host has). In a container give the container's memory. The rates are 0 meanwhile.
    """
    for name, value in {"smallest": smallest, "largest": largest, "memory_bytes": memory_bytes}.items():
        check.positive(name, value, whole=True)
    check.positive("seconds", seconds)
    if largest is not None and largest < smallest:
        raise ConfigError(f"largest= is not below smallest=, got {largest} and {smallest}.")
    size, trials, how = int(smallest), list[Trial](), ""
    changed = {"microbatch": None} if trainer.microbatch == "auto" else {}  # which would hide that memory runs out
    with copied(trainer, made_by, train, **changed) as (tried, source):
        if source.own_size:
            raise ConfigError(f"{source.title} has batches of its own size. Try the data that it loads, or another.")
        for group in groups_of(tried.optimizers.values()):
            put_rate(group, 0.0)
        limit, rows = memory_bytes or _room(tried.device), source.batches(1)
        while not how:
            try:
                trials.append(_try(tried, source, size, seconds))
            except (HeadraceError, MemoryError, RuntimeError) as error:
                if not trials or not any(is_out_of_memory(e) for e in (error, error.__cause__) if e is not None):
                    raise
                how = f"memory ran out with {size} rows"
            else:
                how = _why_enough(trials, largest, rows, limit)
            size *= 2
    fitting = [trial for trial in trials if limit is None or (trial.peak_bytes or 0) <= limit]
    if not fitting:
        taken = f"{trials[0].batch_size} rows take {_mb(trials[0].peak_bytes)}, more than {_mb(limit)}"
        raise OutOfMemoryError(f"{taken}. Lower smallest=.")
    fastest = max(trial.rows_per_s for trial in fitting)
    return BatchFinding(trials, next(t.batch_size for t in fitting if t.rows_per_s >= NEAR * fastest), how)


def _why_enough(trials: Sequence[Trial], largest: int | None, rows: int | None, limit: int | None) -> str:
    """Why the next size is not tried, if it is not."""
    following, peak = 2 * trials[-1].batch_size, trials[-1].peak_bytes
    if largest is not None and following > largest:
        return f"{largest} rows are the most that was asked for"
    if rows is not None and following > rows:
        return f"there are {rows} rows"
    before = max((trial.rows_per_s for trial in trials[:-2]), default=0.0)
    if before and max(trial.rows_per_s for trial in trials[-2:]) < GAIN * before:
        return "two sizes in a row were no faster"
    grown = (peak or 0) - (trials[-2].peak_bytes or 0) if len(trials) > 1 else 0
    if limit is not None and peak is not None and peak + 2 * grown > limit:
        return f"{following} rows would take about {_mb(peak + 2 * grown)}, more than {_mb(limit)}"
    return ""


def _try(trainer: Any, source: Source, size: int, seconds: float) -> Trial:
    """A few updates with batches of this size, timed."""
    trainer.batch_size, cuda = size, trainer.device.type == "cuda"
    start, before, most = 0.0, 0, WARM + TIMED[1]
    with rewound(source), closing(trainer.steps(source, steps=most, log_every=f"{most} steps")) as updates:
        for info in updates:
            if info.step == WARM:
                if cuda:
                    torch.cuda.synchronize(trainer.device)
                start, before = time.perf_counter(), info.samples
            elif info.step >= WARM + TIMED[0] and time.perf_counter() - start >= seconds:
                break
        if cuda:
            torch.cuda.synchronize(trainer.device)
        rate = (info.samples - before) / max(time.perf_counter() - start, 1e-9)
    peak = torch.cuda.max_memory_allocated(trainer.device) if cuda else _kilobytes("self/status", "VmHWM")
    return Trial(size, rate, peak)


def _room(device: torch.device) -> int | None:
    """The memory that this process may use on a host; a GPU raises when there is no more."""
    free, used = _kilobytes("meminfo", "MemAvailable"), _kilobytes("self/status", "VmRSS")
    return None if device.type == "cuda" or free is None or used is None else int(ROOM * (free + used))


def _kilobytes(file: str, key: str) -> int | None:
    """A number that Linux states in kilobytes, in bytes."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def _mb(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.0f} MB"
