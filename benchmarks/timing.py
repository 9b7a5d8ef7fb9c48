"""Interleaved timing of rivals on one machine, and the plain table that shows it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """A prepared call to be timed once, and a score, taken afterwards, that shows it did the work."""

    run: Callable[[], object]
    score: Callable[[], float]


@dataclass
class Sample:
    """What one rival took, repeat by repeat; `score` is the one of its last run."""

    seconds: list[float] = field(default_factory=list)
    score: float = float("nan")


@dataclass(frozen=True)
class Ratio:
    """Median and range of the per-repeat quotients of two rivals."""

    median: float
    low: float
    high: float


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Send what a framework prints to the null device: the printing is timed, the terminal is not."""
    with open(os.devnull, "w") as sink, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield


def interleave(
    prepare: Mapping[str, Callable[[], Job]], repeats: int, often: Collection[str], passes: int
) -> dict[str, Sample]:
    """Time every rival once per repeat, those in `often` by the median of `passes` runs in each repeat.

    Only `Job.run` is on the clock. The order is drawn anew for every pass, so that drift and the caches that
    the one before left behind hit all alike.
    """
    samples = {name: Sample() for name in prepare}
    quick = [name for name in prepare if name in often]
    slow = [name for name in prepare if name not in often]
    draw = random.Random(0)
    gc.collect()
    gc.freeze()  # what the peers' imports allocated must not slow each other's garbage collections
    for _ in range(repeats):
        seconds: dict[str, list[float]] = {name: [] for name in prepare}
        for names in (*[quick] * passes, slow):
            for name in draw.sample(names, len(names)):
                seconds[name].append(time_once(prepare[name], samples[name]))
        for name, taken in seconds.items():
            samples[name].seconds.append(statistics.median(taken))
    return samples


def time_once(prepare: Callable[[], Job], sample: Sample) -> float:
    """Seconds of one fresh job; its score is noted."""
    with silence():
        job = prepare()
        gc.collect()
        start = time.perf_counter()
        job.run()
        seconds = time.perf_counter() - start
        sample.score = job.score()
    return seconds


def ratio(of: Sample, to: Sample) -> Ratio:
    """Quotients repeat by repeat: neighbours in time share the machine's mood."""
    quotients = [a / b for a, b in zip(of.seconds, to.seconds, strict=True)]
    return Ratio(statistics.median(quotients), min(quotients), max(quotients))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first is flush left, the others flush right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join((first.strip().ljust(widths[0]), *rest)).rstrip()

    return "\n".join((line(head), line(["-" * width for width in widths]), *map(line, rows)))
