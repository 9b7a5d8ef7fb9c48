"""Orders of epochs far longer than memory: what an index costs, what it takes to hold, and how soon the first comes."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from checkpoint import Report, interleave
from overhead import Verdict
from torch import Tensor

import headrace as hr
from headrace.data.reader import STRETCH

FAR, NEAR, LONG = 10**12, 10**7, 10**9
BLOCK, MIX, BATCH, FEATURES = 65_536, 8, 128, 32
INDEX_NS, FIRST_MS, MEMORY = 300, 10, 1.1


@dataclass(frozen=True)
class Kind:
    """An order, as a Reader is told."""

    order: str
    mix: int = 1

    def __str__(self) -> str:
        return f"{self.order}, mix={self.mix}" if self.mix > 1 else self.order

    def of(self, n: int) -> hr.Order:
        return hr.Order(n, self.order, block=BLOCK, mix=self.mix)


SHUFFLED = (Kind("full"), Kind("blocks"), Kind("blocks", MIX))
KINDS = (*SHUFFLED, Kind("blocks-only"), Kind("rows-only"), Kind("none"))


class Far(hr.Table):
    """So many rows, each made of its number."""

    streams = (hr.Stream("x", (FEATURES,)), hr.Stream("y", (), "int64"))

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": indices.float()[:, None].repeat(1, FEATURES), "y": indices})


def orders(quick: bool, repeats: int, report: Report) -> None:
    """All of it."""
    count = 200_000 if quick else 1_000_000
    cost(count, repeats, report)
    memory(count, report)
    first_batches(repeats, report)


def cost(count: int, repeats: int, report: Report) -> None:
    """Nanoseconds of an index, asked for as a Reader does, a stretch at a time."""
    report.say(f"\norder: {count} indices of an epoch of {FAR:.0e} rows, beside torch.randperm({NEAR:.0e})")
    randperm = f"torch.randperm({NEAR:.0e})"
    rivals: dict[str, Callable[[], float]] = {str(kind): _per_index(kind.of(FAR), count) for kind in SHUFFLED}
    rivals[randperm] = lambda: _timed(lambda: torch.randperm(NEAR)) / NEAR
    samples = interleave(rivals, repeats, passes=1)
    lines = []
    for name, sample in samples.items():
        times = [1e9 * seconds for seconds in sample.seconds]
        wanted = "" if name == randperm else f"<= {INDEX_NS}"
        lines.append((name, f"{statistics.median(times):.0f}", f"{min(times):.0f}-{max(times):.0f}", wanted))
        if name != randperm:
            report.verdicts.append(Verdict(f"order: ns an index, {name}", "<=", INDEX_NS, statistics.median(times)))
    report.show(("order", "ns/index", "min-max", "wanted"), lines)
    report.record["order"] = {"indices": count, "seconds": {name: s.seconds for name, s in samples.items()}}


def memory(count: int, report: Report) -> None:
    """What is held at most while an index is asked for, far and near."""
    report.say("\norder: bytes held at most while asking")
    lines, record = [], {}
    for kind in SHUFFLED:
        near, far = (_peak(kind.of(n), count) for n in (NEAR, FAR))
        lines.append((str(kind), f"{near / 1e3:.0f}", f"{far / 1e3:.0f}", f"{far / near:.2f}", f"<= {MEMORY}"))
        record[str(kind)] = {"near": near, "far": far}
        report.verdicts.append(Verdict(f"order: memory far/near, {kind}", "<=", MEMORY, far / near))
    report.show(("order", f"kB at {NEAR:.0e}", f"kB at {FAR:.0e}", "x", "wanted"), lines)
    report.record["order"]["peak_bytes"] = record


def first_batches(repeats: int, report: Report) -> None:
    """From nothing to the first batch, at any position of a long epoch."""
    report.say(f"\norder: milliseconds to the first batch of {BATCH} rows of {LONG:.0e}, from a cursor")
    places = {"0": 0, "10 %": LONG // 10 + 77, "90 %": LONG * 9 // 10 + 12_345, "the end": LONG - 1}
    rivals = {f"{kind}@{place}": _first(kind, position) for kind in KINDS for place, position in places.items()}
    samples = interleave(rivals, repeats, passes=3)
    lines = []
    for kind in KINDS:
        found = {place: 1e3 * statistics.median(samples[f"{kind}@{place}"].seconds) for place in places}
        lines.append((str(kind), *(f"{ms:.2f}" for ms in found.values()), f"<= {FIRST_MS}"))
        report.verdicts.append(Verdict(f"order: ms to the first batch, {kind}", "<=", FIRST_MS, max(found.values())))
    report.show(("order", *(f"at {place}" for place in places), "wanted"), lines)
    report.record["order"]["first_batch_s"] = {name: sample.seconds for name, sample in samples.items()}


def _stretches(order: hr.Order, count: int) -> Any:
    start = order.n // 3
    for at in range(start, min(order.n, start + count), STRETCH):
        yield order.indices(1, at, min(order.n, at + STRETCH))


def _per_index(order: hr.Order, count: int) -> Callable[[], float]:
    def one() -> float:
        return _timed(lambda: [None for _ in _stretches(order, count)]) / count

    return one


def _peak(order: hr.Order, count: int) -> int:
    for _ in _stretches(order, STRETCH):
        pass
    tracemalloc.start()
    for _ in _stretches(order, count):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _first(kind: Kind, position: int) -> Callable[[], float]:
    def one() -> float:
        start = time.perf_counter()
        reader = hr.Reader(Far(LONG), kind.order, block=BLOCK, mix=kind.mix)
        reader.load_state_dict({**reader.state_dict(), "position": position})
        with hr.Feed(reader, batch_size=BATCH) as feed:
            next(iter(feed))
            return time.perf_counter() - start

    return one


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
