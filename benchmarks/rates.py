"""Rivals that give batches, timed side by side: what a row costs with each of them."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checkpoint import Report
from overhead import Target, Verdict
from timing import Job, Sample, interleave, ratio, silence
from torch import Tensor

Batches = Iterable[Sequence[Tensor]]
PASSES = 5  # of a quick rival in each repeat
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Rival:
    """A way to get batches: tuples of tensors, the last one with an entry for each row."""

    name: str
    batches: Callable[[], Batches]
    """One pass over the rows."""
    beside: str = ""
    """The rival that it is compared with, if not the first one."""
    quick: bool = False
    """Whether it is timed several times in each repeat."""
    part: bool = False
    """Whether it is too slow to be asked for all rows."""


@dataclass(frozen=True)
class Pass:
    """What a rival gave in one pass: the sums show that all of them gave the same."""

    rows: int
    batches: int
    sums: tuple[float, ...]

    @classmethod
    def of(cls, batches: Batches) -> Pass:
        rows, count, sums = 0, 0, []
        for batch in batches:
            rows, count = rows + batch[-1].size(0), count + 1
            sums.append([float(tensor.double().sum()) for tensor in batch])
        return cls(rows, count, tuple(map(math.fsum, zip(*sums, strict=True))))

    def agrees(self, other: Pass) -> bool:
        """Whether the other one gave the same rows."""
        pairs = zip(self.sums, other.sums, strict=True)
        return self.rows == other.rows and all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6) for a, b in pairs)


@dataclass(frozen=True)
class Race:
    """Rivals, and what is wanted of them; the seconds of a `Sample` are those of one row."""

    key: str
    title: str
    rivals: Sequence[Rival]
    targets: Sequence[Target] = ()

    def run(self, repeats: int, report: Report) -> None:
        """One pass of each to compare what they give, then the clock; a table, and verdicts."""
        report.say(f"\n{self.key}: {self.title}")
        passes = self._first_passes()
        samples = self._timed(passes, repeats)
        self._show(samples, passes, report)
        report.record[self.key] = {
            "title": self.title,
            "ways": {name: self._facts(name, samples, passes[name]) for name in samples},
        }
        for target in self.targets:
            if target.of in samples and target.to in samples:
                measured = ratio(samples[target.of], samples[target.to]).median
                report.verdicts.append(Verdict(f"{self.key}: {target.part}", target.sign, target.limit, measured))

    def _first_passes(self) -> dict[str, Pass]:
        """Passes that are not timed: imports, first calls, and a look at what comes."""
        found: dict[str, Pass] = {}
        for rival in self.rivals:
            with silence():
                found[rival.name] = given = Pass.of(rival.batches())
            wanted = found[self.rivals[0].name]
            if not rival.part and not given.agrees(wanted):
                raise RuntimeError(f"{rival.name} gave {given}, {self.rivals[0].name} {wanted}.")
        return found

    def _timed(self, passes: Mapping[str, Pass], repeats: int) -> dict[str, Sample]:
        jobs = {rival.name: _job(rival, passes[rival.name]) for rival in self.rivals}
        often = [rival.name for rival in self.rivals if rival.quick]
        try:
            taken = interleave(jobs, repeats, often, PASSES)
        finally:
            gc.unfreeze()  # the rivals of the next race are others: these may go, and their workers with them
        return {
            name: Sample([seconds / passes[name].rows for seconds in sample.seconds]) for name, sample in taken.items()
        }

    def _beside(self, name: str) -> str:
        return next(rival.beside or self.rivals[0].name for rival in self.rivals if rival.name == name)

    def _facts(self, name: str, samples: Mapping[str, Sample], given: Pass) -> dict[str, Any]:
        beside = self._beside(name)
        return {
            "rows": given.rows,
            "batches": given.batches,
            "rows_per_s": 1 / statistics.median(samples[name].seconds),
            "beside": beside,
            "times_slower": asdict(ratio(samples[name], samples[beside])),
            "seconds_per_row": samples[name].seconds,
        }

    def _show(self, samples: Mapping[str, Sample], passes: Mapping[str, Pass], report: Report) -> None:
        wanted = {(target.of, target.to): f"{target.sign} {target.limit:g}" for target in self.targets}
        lines = []
        for name, sample in samples.items():
            seconds, given, beside = statistics.median(sample.seconds), passes[name], self._beside(name)
            slower, inverse = ratio(sample, samples[beside]), wanted.get((beside, name))
            lines.append(
                (
                    name,
                    scaled(1 / seconds),
                    f"{1e6 * seconds * given.rows / given.batches:.1f}",
                    f"{slower.median:.2f}",
                    f"{slower.low:.2f}-{slower.high:.2f}",
                    wanted.get((name, beside)) or (f"1/x {inverse}" if inverse else ""),
                    "" if beside == self.rivals[0].name else f"({beside})",
                )
            )
        report.show(("way", "rows/s", "µs/batch", "x slower", "min-max", "wanted", "than"), lines)


def _job(rival: Rival, wanted: Pass) -> Callable[[], Job]:
    """A pass that touches nothing of a batch but its length."""

    def prepare() -> Job:
        found = 0

        def run() -> None:
            nonlocal found
            for batch in rival.batches():
                found += batch[-1].size(0)

        def score() -> float:
            if found != wanted.rows:
                raise RuntimeError(f"{rival.name} gave {wanted.rows} rows, and another time {found}.")
            return float(found)

        return Job(run, score)

    return prepare


def scaled(number: float) -> str:
    """A number in thousands, millions or so."""
    for size, letter in UNITS:
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:.0f}"
