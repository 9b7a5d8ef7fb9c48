"""Files larger than one would hold: headrace's feed of them beside memory, torch's loader and the disk itself.

Run as a script with a way to read (`headrace` or `plain`) and a file, it drops what the system has of the file in
memory, reads it once, and prints as JSON what that took.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint import Report
from feeding import BATCH, loader
from overhead import Target, Verdict
from rates import Race, Rival
from timing import silence
from torch import Tensor
from torch.utils.data import Dataset, Subset

import headrace as hr
from headrace.formats.table import open_table

WIDTH, BLOCK = 256, 16_384  # numbers of a row, and rows that lie together
ROW_BYTES = 4 * WIDTH
FILE, MEMORY = "headrace: Feed of the file", "headrace: Feed of memory"
ANEW = "headrace: the file opened anew"
LOADER_2, BY_HAND = "DataLoader of its rows, 2 workers", "by hand, block by block"
GROWTH_MB, REQUEST_KB, TIMES_READ = 400, 128, 1.05
COLD_REPEATS = 3
LOOK = 64  # batches between two looks at the memory of this process


def files(gigabytes: float, scratch: Path, quick: bool, repeats: int, report: Report) -> None:
    """A file of each kind, read in blocks: what it takes from the disk, and how fast it is once it is in memory."""
    if not Path("/proc/self/io").exists():
        report.say("\nfiles: skipped, this system has no /proc/self/io")
        return
    rows = int(gigabytes * 1e9 / ROW_BYTES)
    free = shutil.disk_usage(scratch).free
    if free < 1.2 * rows * ROW_BYTES:
        report.say(f"\nfiles: skipped, {scratch} has {free / 1e9:.1f} GB for {gigabytes:g}: use less --gigabytes")
        return
    for kind, make in (("npy", make_npy), ("arrow", make_arrow)):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            path = Path(folder) / f"rows.{kind}"
            make(path, rows)
            cold(path, rows, 1 if quick else min(repeats, COLD_REPEATS), report)
            cached(path, rows, 20_000 if quick else 100_000, repeats, report)


# --- in memory already ----------------------------------------------------------------------------------------


def cached(path: Path, rows: int, few: int, repeats: int, report: Report) -> None:
    """Rows a second of a file that the system has in memory."""
    with silence():  # torch warns of arrays that must not be written
        held, views = in_memory(path, rows), views_of(path)
    some = Subset(Rows(views), torch.randperm(rows)[:few].tolist())
    by_two = loader(some, 2)
    rivals = [
        Rival(FILE, _feed(open_table(path))),
        Rival(MEMORY, _feed(hr.ArrayTable({"x": held})), part=len(held) < rows),
        Rival(ANEW, lambda: _feed(open_table(path))()),
        Rival(BY_HAND, lambda: by_hand(views)),
        Rival(LOADER_2, lambda: ([x] for x in by_two), part=True),
    ]
    targets = [
        Target("memory/file, cached", MEMORY, FILE, ">=", 0.8),
        Target("DataLoader/file, cached", LOADER_2, FILE, ">=", 5),
    ]
    size = f"{path.suffix} of {rows * ROW_BYTES / 1e9:.2f} GB, {ROW_BYTES} bytes a row"
    title = f"{size}, cached; blocks of {BLOCK} rows shuffled, batch {BATCH}; {few} rows by DataLoader"
    Race(f"files {path.suffix}", title, rivals, targets).run(repeats, report)


def _feed(table: hr.Table) -> Any:
    batches = hr.Feed(hr.Reader(table, "blocks", block=BLOCK), batch_size=BATCH)
    return lambda: ([batch["x"]] for batch in batches)


def in_memory(path: Path, rows: int) -> Tensor:
    """The rows, as many as fit beside the file."""
    fit = int((available() - 1.3 * rows * ROW_BYTES) * 0.8 / ROW_BYTES)
    held, filled = torch.empty(min(rows, max(fit, BLOCK)), WIDTH), 0
    for view in views_of(path):
        for start in range(0, min(len(view), len(held) - filled), BLOCK):
            part = torch.from_numpy(view[start : start + BLOCK])[: len(held) - filled]
            held[filled : filled + len(part)] = part
            filled += len(part)
    return held


def views_of(path: Path) -> list[Any]:
    """What numpy sees of a file, mapped into memory."""
    if path.suffix == ".npy":
        return [np.load(path, mmap_mode="r")]
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    columns = (reader.get_batch(k).column(0) for k in range(reader.num_record_batches))
    return [column.flatten().to_numpy().reshape(-1, WIDTH) for column in columns]


def by_hand(views: Sequence[Any]) -> Iterator[Sequence[Tensor]]:
    """Blocks in a shuffled order, their rows shuffled."""
    blocks = [view[start : start + BLOCK] for view in views for start in range(0, len(view), BLOCK)]
    for k in torch.randperm(len(blocks)).tolist():
        block = torch.from_numpy(blocks[k])
        for rows in torch.randperm(len(block)).split(BATCH):
            yield [block[rows]]


class Rows(Dataset[Tensor]):
    """A mapped file row by row, as torch's loaders ask for it."""

    def __init__(self, views: Sequence[Any]) -> None:
        self._views, self._firsts = views, [0, *accumulate(map(len, views))]

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, row: int) -> Tensor:
        k = bisect_right(self._firsts, row) - 1
        return torch.from_numpy(self._views[k][row - self._firsts[k]].copy())


# --- from the disk --------------------------------------------------------------------------------------------


def cold(path: Path, rows: int, repeats: int, report: Report) -> None:
    """What one epoch takes from the disk, each in a process of its own."""
    report.say(f"\nfiles {path.suffix}: {rows * ROW_BYTES / 1e9:.2f} GB from the disk, none of it in memory before")
    found: dict[str, list[dict[str, Any]]] = {"headrace": [], "plain": []}
    for _ in range(repeats):
        for way, facts in found.items():
            facts.append(_process(way, path))
    lines = []
    for way, facts in found.items():
        middle = {name: _median([fact[name] for fact in facts]) for name in facts[0]}
        if (middle["times_read"] or 0) < 0.95:
            report.say(f"the disk was not read: the system kept {path.suffix} in memory, against advice")
        lines.append((way, *(_shown(middle[name]) for name in ("mb_per_s", "request_kb", "times_read", "growth_mb"))))
        if way == "headrace":
            _judge(path.suffix, middle, report)
    report.show(("way", "MB/s", "kB a request", "times read", "MB more of RssAnon"), lines)
    report.record[f"cold {path.suffix}"] = found


def _judge(kind: str, facts: dict[str, Any], report: Report) -> None:
    wanted = {
        "growth_mb": ("MB more of RssAnon", "<=", GROWTH_MB),
        "request_kb": ("kB a request", ">=", REQUEST_KB),
        "times_read": ("times read", "<=", TIMES_READ),
    }
    for name, (what, sign, limit) in wanted.items():
        if facts[name] is not None:
            report.verdicts.append(Verdict(f"cold {kind}: {what}", sign, limit, facts[name]))


def _process(way: str, path: Path) -> dict[str, Any]:
    """Another process reads the file."""
    command = [sys.executable, __file__, way, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"reading {path.name} failed with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read(way: str, path: Path) -> dict[str, Any]:
    """One pass over a file that has to come from the disk."""
    torch.set_num_threads(1)
    drop(path)
    size, before, at = path.stat().st_size, read_bytes(), disk(path)
    facts = read_headrace(path) if way == "headrace" else read_plain(path)
    requests = [now - then for now, then in zip(disk(path), at, strict=True)]
    return {
        "mb_per_s": size / 1e6 / facts.pop("seconds"),
        "times_read": facts.pop("read_bytes", read_bytes() - before) / size,
        "request_kb": requests[1] / requests[0] / 1e3 if requests and requests[0] else None,
        **facts,
    }


def read_headrace(path: Path) -> dict[str, Any]:
    """An epoch in blocks from the disk, and another one for what it does to memory."""
    before, start = read_bytes(), time.perf_counter()
    table = open_table(path)
    feed = hr.Feed(hr.Reader(table, "blocks"), batch_size=BATCH)
    first = most = anonymous()
    rows = 0
    for number, batch in enumerate(feed):
        rows += batch.rows
        if number % LOOK == 0:
            most = max(most, anonymous())
    seconds, taken = time.perf_counter() - start, read_bytes() - before
    if rows != len(table):
        raise RuntimeError(f"an epoch of {len(table)} rows gave {rows}")
    for number, _ in enumerate(feed):
        if number % LOOK == 0:
            most = max(most, anonymous())
    feed.close()
    return {
        "seconds": seconds,
        "read_bytes": taken,
        "growth_mb": (most - first) / 1e6,
    }


def read_plain(path: Path) -> dict[str, Any]:
    """The bytes from first to last, as fast as the disk gives them."""
    room, start = bytearray(1 << 20), time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(room):
            pass
    return {"seconds": time.perf_counter() - start, "growth_mb": None}


# --- what the system says -------------------------------------------------------------------------------------


def drop(path: Path) -> None:
    """Has the system forget what it has of a file in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bytes() -> int:
    """What this process has had read from disks."""
    return _number("/proc/self/io", "read_bytes:")


def anonymous() -> int:
    """Bytes of memory of this process that are not those of a file."""
    return _number("/proc/self/status", "RssAnon:") * 1024


def available() -> int:
    """Bytes of memory that are free or could be."""
    return _number("/proc/meminfo", "MemAvailable:") * 1024


def disk(path: Path) -> list[int]:
    """Requests to the disk of a file since the system began, and the bytes they were for; nothing if nobody says."""
    device = path.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        major, minor, _, requests, _, sectors, *_ = line.split()
        if (int(major), int(minor)) == (os.major(device), os.minor(device)):
            return [int(requests), int(sectors) * 512]
    return []


def _number(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


# --- files ----------------------------------------------------------------------------------------------------


def make_npy(path: Path, rows: int) -> None:
    """As np.save writes it, block by block."""
    said = {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, said)
        for block in blocks(rows):
            block.tofile(file)


def make_arrow(path: Path, rows: int) -> None:
    """A record batch for each block."""
    import pyarrow as pa

    schema = pa.schema({"x": pa.list_(pa.float32(), WIDTH)})
    with pa.ipc.new_file(str(path), schema) as writer:
        for block in blocks(rows):
            column = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), type=schema.field(0).type)
            writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))


def blocks(rows: int) -> Iterator[Any]:
    """The same noise again and again; the first number of each row is that of the row."""
    noise = np.random.default_rng(0).standard_normal((BLOCK, WIDTH), np.float32)
    for start in range(0, rows, BLOCK):
        block = noise[: rows - start]
        block[:, 0] = np.arange(start, start + len(block))
        yield block


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], Path(sys.argv[2]))))
