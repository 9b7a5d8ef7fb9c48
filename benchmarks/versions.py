"""Two checkouts of headrace beside each other: whole programs, started in turn, as ratios of time and peak memory.

    python benchmarks/versions.py BEFORE [--repeats N] [--only NAME ...]

BEFORE is another checkout, as `git worktree add` makes one. Every program uses public names alone and runs on one
thread; a ratio is the median of the pairs' quotients, below 1 where this checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from machine import in_words, machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
LIMIT = 1.02
COMMON = """
import tempfile, warnings
import torch
from torch import nn
import headrace as hr

warnings.simplefilter("ignore")
torch.set_num_threads(1)

def data(rows=20_000):
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    return x, x[:, :10].argmax(1)

def trainer(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64, device="cpu", **options)
def saved_in(run):
    if hasattr(hr, "Run"):
        return {"run": hr.Run(run, every="20 steps", logs=False)}
    return {"run": run, "checkpoint_every": "20 steps", "logs": False}  # version 0.2
"""
PROGRAMS = {
    "import": "import headrace as hr; hr.Trainer",
    "fit": COMMON + "trainer().fit(data(), epochs=40, progress=False)",
    "fit, measured": COMMON
    + 'trainer(metrics="accuracy").fit(data(), val=data(4000), epochs=30, progress=False, log_every="50 steps")',
    "step by hand": COMMON
    + """
made, (x, y) = trainer(), data(19_968)
for _ in range(12):
    for start in range(0, len(x), 64):
        made.step((x[start : start + 64], y[start : start + 64]))
""",
    "validate, predict": COMMON
    + """
made, held = trainer(), data(100_000)
for _ in range(12):
    made.validate(held)
    made.predict(held[0])
""",
    "save, resume": COMMON
    + """
with tempfile.TemporaryDirectory() as place:
    for epochs in (8, 10):
        run = place + "/run"
        trainer().fit(data(), epochs=epochs, progress=False, **saved_in(run))
""",
    "read a file": COMMON
    + """
with tempfile.TemporaryDirectory() as place:
    x, y = data(200_000)
    hr.write_table(hr.ArrayTable({"x": x, "y": y}), place + "/rows.arrow")
    table = hr.open_table(place + "/rows.arrow")
    for reader in (hr.Reader(table, "full"), hr.Reader(table, "blocks", block=1000), hr.Reader(table, "none")):
        with hr.Feed(reader, torch.device("cpu"), batch_size=64) as feed:
            for _ in range(12):
                for batch in feed:
                    pass
""",
    "parse CTF": COMMON
    + """
import random
random.seed(0)
def line():
    dense = " ".join(f"{random.random():.5f}" for _ in range(20))
    return f"|x {dense} |w {random.randint(0, 999)}:1 {random.randint(1000, 1999)}:1 |y {random.randint(0, 9)}:1\\n"
lines = [line() for _ in range(5000)]
streams = [hr.Stream("x", (20,)), hr.Stream("w", (2000,), layout="sparse"), hr.Stream("y", (10,), layout="sparse")]
with tempfile.TemporaryDirectory() as place:
    with open(place + "/rows.ctf", "w") as file:
        for _ in range(40):
            file.writelines(lines)
    len(hr.open_ctf(place + "/rows.ctf", streams))
""",
    "virtual workers": COMMON
    + """
def main(strategy):
    trainer(strategy=strategy).fit(data(6000), epochs=6, progress=False)
for workers, strategy in ((4, hr.Periodic("10 steps")), (3, hr.Synchronous())):
    hr.launch(main, strategy, workers=workers, network=hr.Network(rows_per_s=1e5))
""",
    "processes": COMMON
    + """
def main():
    trainer().fit(data(), epochs=10, progress=False)
if __name__ == "__main__":
    hr.launch(main, workers=2, engine="processes")
""",
}


class Run(NamedTuple):
    """What a program took, with the processes that it waited for."""

    seconds: float
    peak_mib: float


def run(program: Path, checkout: Path) -> Run:
    """Starts a program with the headrace of a checkout."""
    path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    begun = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{program.stem} ended with {child.returncode} in {checkout}")
    return Run(time.perf_counter() - begun, used.ru_maxrss / 1024)


def main() -> None:
    """Measures, prints the table, writes everything as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs, after one that does not count (5)")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="some of the programs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    record = {}
    print(f"{'program':18} {'time':>6} {'min-max':>13} {'peak memory':>12}")
    with tempfile.TemporaryDirectory() as place:
        for name in options.only:
            program = Path(place, f"{list(PROGRAMS).index(name)}.py")
            program.write_text(PROGRAMS[name])
            pairs = [(run(program, ROOT), run(program, options.before)) for _ in range(options.repeats + 1)][1:]
            times = sorted(now.seconds / before.seconds for now, before in pairs)
            peaks = [now.peak_mib / before.peak_mib for now, before in pairs]
            record[name] = {"time": times, "peak": peaks}
            time_, peak = statistics.median(times), statistics.median(peaks)
            verdict = "" if max(time_, peak) <= LIMIT else f"   more than {LIMIT}"
            print(f"{name:18} {time_:6.3f} {times[0]:6.3f}-{times[-1]:.3f} {peak:12.3f}{verdict}", flush=True)
    where = {**machine(), "threads": 1}  # those of the programs; torch is imported here only now, in nobody's time
    print(in_words(where))
    options.out.write_text(json.dumps({"machine": where, "programs": record}, indent=2) + "\n")


if __name__ == "__main__":
    main()
