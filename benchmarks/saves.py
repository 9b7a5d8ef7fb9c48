"""A training of a model of 500 MB that saves every 5 updates, beside the same one that does not save.

    python benchmarks/saves.py [--quick]

Weights of 500 MB and SGD, two threads; the run is on the disk of this checkout. Rivals are `torch.save` with fsync, and
`async_save` of torch's distributed checkpoints. All take turns: a ratio is the median of the repeats' quotients, of
time and of the processor's time, in which other programs do not count. "first": until the first update is done. "last":
from the last update to the end. "memory": the most that a training has beyond the one that does not save, in copies of
the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import in_words, machine
from timing import table
from torch import nn

import headrace as hr

RESULTS = Path(__file__).parent / "results" / "saves"
SCRATCH = Path(__file__).parents[1] / "runs"
WIDTH, LAYERS, ROWS, EVERY, UPDATES = 5000, 5, 64, 5, 30
COPY_MB = 4e-6 * WIDTH * WIDTH * LAYERS
LIMIT, LAST_S = 1.15, 0.3
Save = Callable[[nn.Module, int], None]


def nothing(model: nn.Module, step: int) -> None:
    pass


def by_torch(folder: Path) -> Save:
    def save(model: nn.Module, step: int) -> None:
        with open(folder / "model.pt", "wb") as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())

    return save


def by_dcp(folder: Path) -> Save:
    """Each save waits for the one before it; the last one is waited for."""
    from torch.distributed import checkpoint

    before: list[Any] = []

    def save(model: nn.Module, step: int) -> None:
        if before:
            before.pop().result()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = checkpoint.FileSystemWriter(folder, overwrite=True)
            before.append(checkpoint.async_save(model.state_dict(), storage_writer=writer, no_dist=True))
        if step == UPDATES:
            before.pop().result()

    return save


def train(folder: Path, way: str) -> dict[str, float]:
    """Seconds of a training and of its parts, of the processor, and the most memory in megabytes."""
    torch.manual_seed(0)
    layers = [each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=1e-4), batch_size=ROWS)
    data = (torch.randn(640, WIDTH), torch.randn(640, WIDTH))
    run = hr.Run(folder / "run", every=f"{EVERY} steps", keep=1, logs=False) if way == "headrace" else None
    save = {"torch.save, fsync": by_torch, "dcp.async_save": by_dcp}.get(way, lambda folder: nothing)(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted from here on
    began, busy, times = time.perf_counter(), time.process_time(), []
    for info in trainer.steps(data, steps=UPDATES, progress=False, log_every="1000 steps", run=run):
        times.append(time.perf_counter())
        if info.step % EVERY == 0:
            save(model, info.step)
    ended = time.perf_counter()
    return {
        "time": ended - began,
        "processor": time.process_time() - busy,
        "first": times[0] - began,
        "last": ended - times[-1],
        "memory": _most_memory(),
    }


def _most_memory() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Measures, prints the table, and writes it and a record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two repeats, and headrace alone")
    quick = parser.parse_args().quick
    torch.set_num_threads(2)
    ways = ["nothing", "headrace", *([] if quick else ["torch.save, fsync", "dcp.async_save"])]
    repeats: list[dict[str, dict[str, float]]] = []
    SCRATCH.mkdir(exist_ok=True)
    for number in range(3 if quick else 8):
        found = {}
        for way in ways if number % 2 else ways[::-1]:
            with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
                found[way] = train(Path(folder), way)
        repeats.append(found)
        print(number, {way: {k: round(v, 2) for k, v in each.items()} for way, each in found.items()}, flush=True)
    del repeats[0]  # memory and the disk are warm after it
    record, rows = {}, []
    for way in ways:
        for what in ("time", "processor"):
            quotients = [each[way][what] / each["nothing"][what] for each in repeats]
            record.setdefault(way, {})[what] = statistics.median(quotients)
        for what in ("first", "last"):
            record[way][what] = statistics.median(each[way][what] for each in repeats)
        more = [(each[way]["memory"] - each["nothing"]["memory"]) / COPY_MB for each in repeats]
        record[way]["memory"] = statistics.median(more)
        rows.append([way, *(f"{record[way][what]:.2f}" for what in record[way])])
    reached = "reached" if record["headrace"]["time"] <= LIMIT and record["headrace"]["last"] <= LAST_S else "MISSED"
    about = machine()
    text = [
        in_words(about),
        f"a model of {COPY_MB:.0f} MB, a save every {EVERY} updates; target: time {LIMIT}, last {LAST_S} s: {reached}",
        table(["way", "time", "processor", "first, s", "last, s", "memory, copies"], rows),
    ]
    print("\n".join(text))
    if not quick:
        RESULTS.with_suffix(".txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(
            json.dumps({"machine": about, "ways": record, "repeats": repeats}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
