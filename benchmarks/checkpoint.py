"""What it costs to save, to verify and to go on: ratios to the same by hand, beside the peers, all in one run.

    python benchmarks/checkpoint.py [--quick] [--repeats N]

About 100 MB of state, in a few tensors and in a thousand, on the disk of this checkout; one thread. Every repeat
times every rival, in an order drawn anew; a ratio is the median of the repeats' quotients. `clone()` is the copy
that one would write, and finds its memory new, page by page; `copy_()` goes into the memory of an earlier copy, as
headrace's own do from the second save on. The frameworks come with `pip install .[bench]`; a missing one is skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import in_words, machine
from overhead import Target, Verdict
from saving import (
    BATCH,
    STATES,
    Headrace,
    Lightning,
    Loader,
    Saved,
    Seen,
    State,
    Timed,
    Training,
    Way,
    copies,
    lightning_save,
    settle,
)
from timing import Sample, ratio, silence, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "checkpoint.json"
SCRATCH = ROOT / "runs"  # where runs are: on a disk, which /tmp need not be
CLONE, COPY = "clone() into new memory", "copy_() into an earlier copy"
HELD, WAITED = "headrace: a save holds the loop", "headrace: the same, wait"
SAVE, BY_HAND = "headrace: Store.save", "by hand: save_file, fsync, sha256"
LIGHTNING = "lightning: save_checkpoint, no fsync"
VERIFY, HASH = "headrace: Store.verify", "by hand: sha256 of bytes in memory"
TARGETS = (
    Target("a save holds the loop / clone()", HELD, CLONE, "<=", 1.3),
    Target("Store.save / by hand", SAVE, BY_HAND, "<=", 1.3),
    Target("bytes/s of Store.verify / of sha256", HASH, VERIFY, ">=", 0.8),
)
LATE = 0.9  # of an epoch: where a training stops and goes on
FAR, FAR_LIMIT_MS = 10**9, 50.0
PASSES = 5  # of a resume, which waits for the disk a few times: the median of so many in each repeat


@dataclass
class Report:
    """What is printed, and what is recorded beside it."""

    lines: list[str] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.lines.append(text)

    def show(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.say(table(head, rows))

    def show_targets(self, form: str) -> None:
        """What was asked for and what was measured, as numbers of this form."""
        rows = [
            (v.what, f"{v.sign} {v.limit:g}", format(v.measured, form), "yes" if v.reached else "NO")
            for v in self.verdicts
        ]
        self.say("")
        self.show(("target", "wanted", "measured", "reached"), rows)

    def write(self, out: Path, repeats: int, libraries: Sequence[str]) -> None:
        """The record as JSON, the tables as text beside it."""
        where = machine(libraries)
        print(in_words(where))
        lines = [in_words(where), *self.lines]
        targets = [{**asdict(verdict), "reached": verdict.reached} for verdict in self.verdicts]
        record = {"machine": where, "repeats": repeats, **self.record, "targets": targets}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2) + "\n")
        out.with_suffix(".txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Measure the saves of each state, then resumes; print tables and targets, and write both them and a record."""
    options = arguments()
    torch.set_num_threads(1)
    report = Report()
    SCRATCH.mkdir(exist_ok=True)
    for state in STATES:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            measure_saves(state, Path(scratch), options.repeats, report)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        measure_resumes(10**5 if options.quick else 10**6, Path(scratch), options.repeats, report)
    report.show_targets(".3f")
    report.write(options.out, options.repeats, ("safetensors", "torchdata"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats, fewer rows for peers: a glance")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 9)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 9)
    return options


def measure_saves(state: State, scratch: Path, repeats: int, report: Report) -> None:
    """Copies, saves and verifications of one state."""
    tensors = state.tensors()
    loop, waiting = Training(state, scratch / "loop", wait=False), Training(state, scratch / "waiting", wait=True)
    clone, copy = copies(tensors)
    saved = Saved(loop.run, scratch)
    rivals = {CLONE: clone, COPY: copy, HELD: loop.held, WAITED: waiting.held, SAVE: saved.save}
    rivals |= {BY_HAND: saved.by_hand, VERIFY: saved.verify, HASH: saved.hash}
    if has("lightning"):
        with silence():
            rivals[LIGHTNING] = lightning_save(state, scratch)
    samples = interleave(rivals, repeats, passes=1)
    size = sum(tensor.nbytes for tensor in tensors)
    report.say(f"\n{state.key}: {len(tensors)} tensors, {size / 1e6:.1f} MB; checkpoint of {saved.size / 1e6:.1f} MB")
    show_saves(samples, report)
    report.say(f"the first save, whose copy is made in new memory, holds the loop for {1e3 * loop.first:.1f} ms")
    report.record[state.key] = {
        "tensors": len(tensors),
        "bytes": size,
        "checkpoint_bytes": saved.size,
        "first_save_s": loop.first,
        "seconds": {name: sample.seconds for name, sample in samples.items()},
    }
    for target in TARGETS:
        measured = ratio(samples[target.of], samples[target.to]).median
        report.verdicts.append(Verdict(f"{state.key}: {target.part}", target.sign, target.limit, measured))


def show_saves(samples: Mapping[str, Sample], report: Report) -> None:
    """Milliseconds, and the ratios to what one would write."""
    rows = []
    for name, sample in samples.items():
        times = [1e3 * seconds for seconds in sample.seconds]
        ratios = [f"{ratio(sample, samples[to]).median:.2f}" for to in (CLONE, COPY, BY_HAND, HASH)]
        rows.append((name, f"{statistics.median(times):.1f}", f"{min(times):.1f}-{max(times):.1f}", *ratios))
    report.show(("what", "ms", "min-max", "x clone", "x copy_", "x by hand", "x sha256"), rows)


def measure_resumes(rows: int, scratch: Path, repeats: int, report: Report) -> None:
    """Going on at 90 % of an epoch, and at its start. Only an epoch that a peer can finish is counted."""
    ways: list[Way] = [Headrace(FAR, jumps=True), Headrace(rows, jumps=False)]
    if has("lightning"):
        ways.append(Lightning(rows, stateful=False))
    if has("torchdata"):
        ways += [Lightning(rows, stateful=True)] if has("lightning") else []
        ways.append(Loader(rows))
    report.say(f"\ngoing on within an epoch: milliseconds to the next update; batches of {BATCH}")
    lines = []
    for number, way in enumerate(ways):
        with silence():
            resumed = Resumed(way, scratch / str(number), counted=way.rows < FAR)
        lines.append(resume_line(way, resumed, interleave(resumed.places, repeats, PASSES), report))
    head = ("way", "rows", "at the start", "at 90 %", "more", "batches again", "batches left out")
    report.show(head, lines)


def resume_line(way: Way, resumed: Resumed, samples: Mapping[str, Sample], report: Report) -> tuple[str, ...]:
    """One line of the table; headrace's, of the long epoch, is judged."""
    start, late = samples["start"].seconds, samples["late"].seconds
    more_ms = 1e3 * statistics.median([b - a for a, b in zip(start, late, strict=True)])
    if way.rows == FAR:
        report.verdicts.append(Verdict("ms more at 90 % of 10**9 rows", "<=", FAR_LIMIT_MS, more_ms))
    again, left_out = resumed.batches_amiss() or (None, None)
    report.record.setdefault("resume", []).append(
        {"way": way.name, "rows": way.rows, "seconds": {"start": start, "late": late}, "more_ms": more_ms}
        | {"batches_again": again, "batches_left_out": left_out}
    )
    times = [f"{1e3 * statistics.median(seconds):.1f}" for seconds in (start, late)]
    return (
        way.name,
        f"{way.rows:.0e}",
        *times,
        f"{more_ms:.1f}",
        *("" if n is None else str(n) for n in (again, left_out)),
    )


class Resumed:
    """A training by one of the ways, stopped after the first update of an epoch, and after 90 % of it."""

    def __init__(self, way: Way, scratch: Path, *, counted: bool) -> None:
        self._way, self._scratch = way, scratch
        batches = -(-way.rows // BATCH)
        self._steps = {"start": 1, "late": int(batches * LATE)}
        self.seen: Seen = np.zeros(way.rows, np.uint8) if counted else None
        """How often each row is used in the epoch that was stopped at 90 %, gone on with and finished."""
        scratch.mkdir()
        for place, steps in self._steps.items():
            way.train(scratch / place, steps, self.seen if place == "late" else None)
        if counted:
            way.train(shutil.copytree(scratch / "late", scratch / "whole"), batches, self.seen)

    @property
    def places(self) -> dict[str, Timed]:
        """Where it goes on."""
        return {place: partial(self._go_on, place) for place in self._steps}

    def batches_amiss(self) -> tuple[int, int] | None:
        """Batches' worth of rows that the epoch used more than once, and not at all, where rows are counted."""
        if self.seen is None:
            return None
        return round(int((self.seen > 1).sum()) / BATCH), round(int((self.seen == 0).sum()) / BATCH)

    def _go_on(self, place: str) -> float:
        """Seconds until the next update, from a copy of the run."""
        run = shutil.copytree(self._scratch / place, self._scratch / "copy")
        settle()
        seconds = self._way.train(run, self._steps[place] + 1)
        shutil.rmtree(run)
        return seconds


def interleave(rivals: Mapping[str, Timed], repeats: int, passes: int) -> dict[str, Sample]:
    """Seconds of every rival in every repeat, the median of some passes; the order is drawn anew for each."""
    samples = {name: Sample() for name in rivals}
    draw = random.Random(0)
    for _ in range(repeats):
        seconds: dict[str, list[float]] = {name: [] for name in rivals}
        for name in [name for _ in range(passes) for name in draw.sample(list(rivals), len(rivals))]:
            with silence():
                seconds[name].append(rivals[name]())
        for name, taken in seconds.items():
            samples[name].seconds.append(statistics.median(taken))
    return samples


@cache
def has(package: str) -> bool:
    """Whether a peer is installed; one that is not is named."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"skipped: {package} is not installed")
    return found


if __name__ == "__main__":
    main()
