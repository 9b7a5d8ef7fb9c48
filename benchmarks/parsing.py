"""Text in CNTK's format: headrace's first look at a file, and its second, beside a parser in plain Python."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint import Report, interleave
from overhead import Verdict
from timing import Sample, ratio

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.formats.text import open_ctf

VOCABULARY, FEATURES, CLASSES = 10_000, 50, 5
ROWS = 65_536  # that are read together
FEW_BYTES = 4_000_000  # that the parser in plain Python reads
REPEATS = 5
FIRST, AGAIN = "headrace: first open", "headrace: open again"
PLAIN = "plain Python"
TIMES, AGAIN_GB_S = 8, 1.0
Row = dict[str, list[Any]]


@dataclass(frozen=True)
class Text:
    """A kind of file: its streams, and its lines from some row on."""

    name: str
    streams: Sequence[hr.Stream]
    lines: Callable[[int, Any], str]
    """So many rows from a number on."""

    def write(self, path: Path, size: int) -> None:
        """A file of about so many bytes."""
        draw, number = np.random.default_rng(0), 0
        with open(path, "w") as file:
            while file.tell() < size:
                file.write(self.lines(number, draw))
                number += 1000


def sentences(first: int, draw: Any) -> str:
    """Sequences of one-hot words, a line for each, and a label with the first."""
    lines = []
    for number in range(first, first + 1000):
        label = " ".join("1" if k == number % CLASSES else "0" for k in range(CLASSES))
        words = draw.integers(0, VOCABULARY, draw.integers(3, 20)).tolist()
        lines.append(f"{number} |words {words[0]}:1 |y {label}")
        lines += [f"{number} |words {word}:1" for word in words[1:]]
    return "\n".join(lines) + "\n"


def measurements(first: int, draw: Any) -> str:
    """Rows of numbers, with a label."""
    rows, labels = draw.standard_normal((1000, FEATURES)).tolist(), draw.integers(0, CLASSES, 1000).tolist()
    lines = [
        f"|x {' '.join(f'{number:.6g}' for number in row)} |y {label}" for row, label in zip(rows, labels, strict=True)
    ]
    return "\n".join(lines) + "\n"


WORDS = hr.Stream("words", (VOCABULARY,), layout="sparse", sequence=True)
TEXTS = (
    Text("words", (WORDS, hr.Stream("y", (CLASSES,))), sentences),
    Text("dense", (hr.Stream("x", (FEATURES,)), hr.Stream("y", (), "int64")), measurements),
)


def texts(scratch: Path, quick: bool, repeats: int, report: Report) -> None:
    """Both kinds of files."""
    for text in TEXTS:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            path = Path(folder) / f"{text.name}.ctf"
            text.write(path, 5_000_000 if quick else 50_000_000)
            ways = Ways(text, path)
            report.say(f"\nctf: {text.name}, {ways.size_mb:.1f} MB; every row is read once")
            gc.collect()
            gc.freeze()  # what imports allocated must not slow the garbage collections of plain Python
            samples = interleave(ways.rivals, min(repeats, REPEATS), passes=1)
            gc.unfreeze()
            show(text, samples, report)


class Ways:
    """Ways to read one file, in seconds of a megabyte, each by one core."""

    def __init__(self, text: Text, path: Path) -> None:
        self._text, self._path = text, path
        self.size_mb = path.stat().st_size / 1e6
        self._caches = (path.with_name(f"cache-{k}") for k in count())
        self._kept = self._new_cache()
        check(path, self._open(self._kept))
        few = path.read_bytes()[:FEW_BYTES]
        self._few = few[: few.rfind(b"\n") + 1]

    @property
    def rivals(self) -> dict[str, Callable[[], float]]:
        """Each of them."""
        return {FIRST: self._first, AGAIN: self._again, PLAIN: self._plain}

    def _first(self) -> float:
        cache = self._new_cache()
        with one_core():
            seconds = timed(lambda: pass_over(self._open(cache)))
        shutil.rmtree(cache)
        return seconds / self.size_mb

    def _again(self) -> float:
        with one_core():
            return timed(lambda: pass_over(self._open(self._kept))) / self.size_mb

    def _plain(self) -> float:
        with one_core():
            return timed(lambda: plain(self._few)) / (len(self._few) / 1e6)

    def _open(self, cache: Path) -> hr.Table:
        return open_ctf(self._path, self._text.streams, cache=cache)

    def _new_cache(self) -> Path:
        cache = next(self._caches)
        cache.mkdir()
        return cache


def show(text: Text, samples: Mapping[str, Sample], report: Report) -> None:
    """The table of one file, and what is wanted of it."""
    wanted = {FIRST: f">= {TIMES} x plain Python", AGAIN: f">= {1e3 * AGAIN_GB_S:g} MB/s"}
    lines = []
    for name, sample in samples.items():
        rates, faster = [1 / seconds for seconds in sample.seconds], ratio(samples[PLAIN], sample).median
        span = f"{min(rates):.1f}-{max(rates):.1f}"
        lines.append((name, f"{statistics.median(rates):.1f}", span, f"{faster:.1f}", wanted.get(name, "")))
    report.show(("way", "MB/s", "min-max", "x plain Python", "wanted"), lines)
    report.record[f"ctf {text.name}"] = {"seconds_per_mb": {name: sample.seconds for name, sample in samples.items()}}
    times = ratio(samples[PLAIN], samples[FIRST]).median
    again = statistics.median(1e-3 / seconds for seconds in samples[AGAIN].seconds)
    report.verdicts += [
        Verdict(f"ctf {text.name}: plain Python/headrace, first open", ">=", TIMES, times),
        Verdict(f"ctf {text.name}: GB/s, open again", ">=", AGAIN_GB_S, again),
    ]


def pass_over(table: hr.Table) -> int:
    """Takes every row once."""
    return sum(table.rows(start, min(len(table), start + ROWS)).rows for start in range(0, len(table), ROWS))


def plain(text: bytes) -> list[Row]:
    """The rows as lists of numbers, by stream: what one writes to read such a file."""
    rows: list[Row] = []
    last = None
    for line in text.decode().splitlines():
        head, *fields = line.split("|")
        number = head.strip()
        if not number or number != last:
            rows.append({})
            last = number
        row = rows[-1]
        for field in fields:
            name, *values = field.split()
            if values and ":" in values[0]:
                pairs = [value.split(":") for value in values]
                row.setdefault(name, []).append([(int(index), float(value)) for index, value in pairs])
            else:
                row.setdefault(name, []).append(list(map(float, values)))
    return rows


def check(path: Path, table: hr.Table) -> None:
    """Raises unless both ways find the same in the first rows."""
    with open(path, "rb") as file:
        found = plain(b"".join(line for line, _ in zip(file, range(2000), strict=False)))[:-1]
    batch = table.rows(0, len(found))
    for row, numbers in enumerate(found):
        for name, items in numbers.items():
            field = batch[name]
            held = field[row].indices.tolist() if isinstance(field, Ragged) else field[row].view(-1).tolist()
            flat = [n[0] if isinstance(n, tuple) else n for item in items for n in item]
            if not np.allclose(held, flat, rtol=1e-6):
                raise RuntimeError(f"{path.name}: row {row} of {name!r} is {held}, and by hand {flat}")


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call, without what it takes to forget what it gave."""
    gc.collect()
    start = time.perf_counter()
    held = work()
    seconds = time.perf_counter() - start
    del held
    return seconds


@contextmanager
def one_core() -> Iterator[None]:
    """What this thread does, and what it begins, is done by one core, where the system can do so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
