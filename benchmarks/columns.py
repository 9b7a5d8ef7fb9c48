"""Files of columns: how long opening them takes beside pandas and pyarrow, and the memory that a training on one takes.

    python benchmarks/columns.py [--repeats 7] [--gigabytes 2] [--write]

Rivals read the same file in turn, and the median of the ratios of neighbours is given, of time and of the processor's
time, in which other programs do not count. The training on a large file runs in a process of its own, whose memory that
is no file's is looked at all the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from reading import anonymous

import headrace as hr

BATCH, BLOCK = 4096, 16_384
FLOATS = {"x": "float32", "y": "float32"}
Race = tuple[str, str, Callable[[], Any], Callable[[], Any], float]


def races(folder: Path) -> list[Race]:
    """What is compared: ours, theirs, and the most that ours may take of theirs."""
    rng = np.random.default_rng(0)
    text, wide, rows = folder / "t.csv", folder / "wide.parquet", folder / "rows.npy"
    pa.csv.write_csv(pa.table({f"c{k}": rng.random(300_000).round(6) for k in range(10)}), text)
    pq.write_table(pa.table({f"c{k}": rng.random(100_000) for k in range(200)}), wide, row_group_size=20_000)
    np.save(rows, rng.random((400_000, 64), np.float32))
    return [
        ("CSV of 300,000 × 10", "pandas.read_csv", lambda: hr.open_table(text), lambda: pd.read_csv(text), 1.2),
        ("Parquet of 200 columns", "pyarrow", lambda: hr.open_table(wide), lambda: pq.read_table(wide), 1.2),
        ("an epoch of it", "by row groups", lambda: fit_table(wide, 1), lambda: fit_groups(wide, 1), 1.0),
        ("3 epochs of it", "by row groups", lambda: fit_table(wide, 3), lambda: fit_groups(wide, 3), 1.0),
        (".npy by blocks", "slices by hand", lambda: of_table(rows), lambda: by_hand(rows), 1.0),
    ]


def of_table(path: Path) -> None:
    for batch in hr.Feed(hr.Reader(hr.open_table(path), "blocks", block=BLOCK, max_epochs=1), batch_size=BATCH):
        batch["x"]


def by_hand(path: Path) -> None:
    """Blocks in a shuffled order, their rows shuffled."""
    array = torch.from_numpy(np.load(path, mmap_mode="c"))
    for k in torch.randperm(-(-len(array) // BLOCK)).tolist():
        block = array[k * BLOCK : (k + 1) * BLOCK]
        for rows in torch.randperm(len(block)).split(BATCH):
            block[rows]


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(199, 1), torch.nn.Flatten(0))
    return model, torch.optim.SGD(model.parameters(), 0.001)


def fit_table(path: Path, epochs: int) -> None:
    """Opens 199 columns side by side and a target, and trains on them, shuffled."""
    model, optimizer = linear()
    table = hr.open_table(path, columns={"x": [f"c{k}" for k in range(199)], "y": "c199"}, dtypes=FLOATS)
    hr.Trainer(model, hr.MSE(), optimizer, batch_size=BATCH).fit(table, epochs=epochs, progress=False)


def fit_groups(path: Path, epochs: int) -> None:
    """The same by hand: row group after row group, the rows of each shuffled."""
    model, optimizer = linear()
    file = pq.ParquetFile(path)
    for k in epochs * [*range(file.num_row_groups)]:
        columns = [each.to_numpy() for each in file.read_row_group(k).columns]
        x = torch.from_numpy(np.stack(columns[:199], 1)).float()
        y = torch.from_numpy(columns[199].copy()).float()
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()


def ratios_of(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[float, float, float, float]:
    """The medians of the ratios of time and of the processor's time, and of the seconds of both."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    ratios = zip(*([a / b for a, b in zip(*pair, strict=True)] for pair in pairs), strict=True)
    times = zip(*((mine[0], other[0]) for mine, other in pairs), strict=True)
    found = [statistics.median(each) for each in (*ratios, *times)]
    return found[0], found[1], found[2], found[3]


def seconds(act: Callable[[], Any]) -> tuple[float, float]:
    """How long something takes, and for how long the processor works on it."""
    start = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - start[0], time.process_time() - start[1]


# --- a training on a large file -------------------------------------------------------------------------------


def make_large(path: Path, gigabytes: float) -> None:
    """A file of 50 columns of numbers and one of labels, of about that size."""
    part = {f"c{k}": np.random.default_rng(k).random(100_000, np.float32) for k in range(50)}
    table = pa.table({**part, "y": np.arange(100_000) % 2})
    kind = pa.csv.CSVWriter if path.suffix == ".csv" else pq.ParquetWriter
    with kind(str(path), table.schema) as writer:
        while not path.exists() or path.stat().st_size < gigabytes * 1e9:
            writer.write_table(table)


def train(path: Path, memory_bytes: int) -> dict[str, float]:
    """Trains an epoch on a file that may take so much memory; the most that the process had more than before, in MB."""
    model = torch.nn.Linear(50, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.01), batch_size=BATCH)
    columns: dict[str, Any] = {"x": [f"c{k}" for k in range(50)], "y": "y"}
    before, most, ended = anonymous(), [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], anonymous() - before)

    threading.Thread(target=look, daemon=True).start()
    start = time.perf_counter()
    cache, dtypes = path.parent / "cache", {"x": "float32"}
    table = hr.open_table(path, columns=columns, dtypes=dtypes, memory_bytes=memory_bytes, cache=cache)
    opened = time.perf_counter() - start
    trainer.fit(table, epochs=1, progress=False)
    ended.set()
    return {"growth_mb": most[0] / 1e6, "open_s": opened, "all_s": time.perf_counter() - start, "rows": len(table)}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--gigabytes", type=float, default=2.0)
    options.add_argument("--scratch", type=Path)
    options.add_argument("--write", action="store_true", help="write results/columns.json and .txt")
    options.add_argument("--train", type=Path)
    asked = options.parse_args()
    if asked.train:
        print(json.dumps(train(asked.train, 1 << 28)))
        return
    lines, record = [], dict[str, Any]()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        for what, other, ours, theirs, limit in races(Path(folder)):
            ratio, work, mine, its = ratios_of(ours, theirs, asked.repeats)
            record[what] = {"ratio": ratio, "of_processor": work, "seconds": mine, other: its, "limit": limit}
            lines.append(
                f"{what:26} {mine:7.3f} s   {other:16} {its:7.3f} s   ratio {ratio:5.2f}, at most {limit}; "
                f"of the processor's time {work:5.2f}"
            )
            print(lines[-1], flush=True)
    for suffix in (".csv", ".parquet") if asked.gigabytes else ():
        with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
            path = Path(folder, "large" + suffix)
            make_large(path, asked.gigabytes)
            command = [sys.executable, __file__, "--train", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
            found = record[f"training on {suffix}"] = json.loads(done.stdout)
            lines.append(
                f"training on {path.stat().st_size / 1e9:.1f} GB of {suffix}: {found['growth_mb']:.0f} MB more memory, "
                f"at most 600; opened in {found['open_s']:.0f} s, an epoch of {found['rows']:,.0f} rows after "
                f"{found['all_s']:.0f} s"
            )
            print(lines[-1], flush=True)
    if asked.write:
        results = Path(__file__).parent / "results"
        (results / "columns.json").write_text(json.dumps(record, indent=1) + "\n")
        (results / "columns.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
