"""What must be measured in a process of its own: the cost of importing headrace, and peak memory.

Run as a script with a mode (`bare`, `raw` or `headrace`) it trains one epoch and prints its peak memory
as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
from timing import silence
from torch import nn

IMPORT = """
import time
import torch
start = time.perf_counter()
import headrace
print(time.perf_counter() - start)
"""
FIRST = """
import sys, time, torch
import headrace as hr
torch.set_num_threads(1)
x, y = torch.randn(1024, 64), torch.randint(10, (1024,))
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
tape = {"auto": "auto", "False": False}[sys.argv[1]]
trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=128, tape=tape)
start = time.perf_counter()
trainer.fit((x, y), epochs=1, progress=False)
print(time.perf_counter() - start)
"""
ROWS, BATCH, MACROBATCH = 20_000, 128, 1024
# Freed tensors go back to the system at once: a peak is then what is alive, the same in every run, and not
# what the heap's fragments (+-20 MB) happen to hold. glibc only, ignored elsewhere.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def import_seconds(repeats: int) -> list[float]:
    """Seconds that `import headrace` adds to `import torch`, each in a fresh interpreter."""
    return [float(python("-c", IMPORT)) for _ in range(repeats)]


def first_seconds(repeats: int, tape: str) -> list[float]:
    """Seconds of a process's first eight updates, among which a tape is recorded, or none is; imports included."""
    return [float(python("-c", FIRST, tape)) for _ in range(repeats)]


def memory(repeats: int, modes: tuple[str, ...]) -> dict[str, int]:
    """Peak bytes of each mode (the highest of the repeats), and those of the parameters and a macrobatch."""
    peaks = dict.fromkeys(modes, 0)
    facts: dict[str, int] = {}
    for _ in range(repeats):
        for mode in modes:
            facts = json.loads(python(__file__, mode))
            peaks[mode] = max(peaks[mode], facts.pop("peak"))
    return peaks | facts


def python(*arguments: str) -> str:
    """Standard output of a fresh interpreter; what it printed as an error when it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | MALLOC, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"a measuring process failed with {done.returncode}:\n{done.stderr}")
    return done.stdout


def wide_mlp(inputs: int, hidden: int) -> nn.Module:
    """inputs-hidden-hidden-10."""
    layers = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def fit_raw(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One epoch of Adam by hand."""
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    order = torch.randperm(len(x))
    for start in range(0, len(x), BATCH):
        rows = order[start : start + BATCH]
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()


def fit_headrace(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One epoch of Adam by headrace, with macrobatches of a known size."""
    import headrace as hr

    trainer = hr.Trainer(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(model.parameters()),
        batch_size=BATCH,
        macrobatch=MACROBATCH,
        metrics=["accuracy"],
    )
    with silence():
        trainer.fit((x, y), epochs=1, progress="plain")


def peak_bytes() -> int:
    """The most memory this process has had resident.

    Linux hands a parent's `ru_maxrss` down to the processes it starts; there, the process's own high-water
    mark is read instead.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def measure(mode: str) -> dict[str, int]:
    """Train once; unless `bare`, a tiny headrace fit comes first, so that libraries count in both modes."""
    torch.set_num_threads(1)
    if mode != "bare":
        fit_headrace(wide_mlp(8, 8), torch.randn(256, 8), torch.randint(10, (256,)))
    model = wide_mlp(1024, 2048)
    x, y = torch.randn(ROWS, 1024), torch.randint(10, (ROWS,))
    fit = fit_headrace if mode == "headrace" else fit_raw
    fit(model, x, y)
    return {
        "peak": peak_bytes(),
        "parameters": sum(p.numel() * p.element_size() for p in model.parameters()),
        "macrobatch": MACROBATCH * (x[0].numel() * x.element_size() + y.element_size()),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
