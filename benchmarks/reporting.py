"""What a report costs: the page of a run of 10,000 epochs, in a process of its own, and what it is made from.

    python benchmarks/reporting.py [--quick] [--repeats N]

The run has twelve numbers an epoch and a confusion matrix. Beside the whole process, those that only start an
interpreter or only parse the same reports.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint import Report
from overhead import Verdict

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reporting.json"
EPOCHS, CLASSES, LIMIT_S = 10_000, 10, 5.0
START, PARSE = "an interpreter that starts", "json.loads of the reports"
WRITE, PICTURES, COMMAND = "report.write", "report.write with pictures", "headrace report"


def main() -> None:
    """Time every process once per repeat; print tables, and write them and a record."""
    options = arguments()
    report = Report()
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "run")
        measure_processes(run, options.repeats, report)
    report.show_targets(".3g")
    report.write(options.out, options.repeats, ("matplotlib",))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats: a glance")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 9)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 9)
    return options


def make_run(path: Path) -> Path:
    """The directory of a run of 10,000 epochs, with all that a report is made of."""
    path.mkdir()
    draw = np.random.default_rng(0)
    (path / "run.json").write_text(json.dumps({"id": "0" * 32, "versions": {"headrace": "0.1.0"}}))
    (path / "config.json").write_text(json.dumps({"batch_size": 64, "seed": 0}))
    rows = [row(epoch, draw) for epoch in range(1, EPOCHS + 1)]
    rows[-1]["test/confusion"] = draw.integers(0, 100, (CLASSES, CLASSES)).tolist()
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    times = [{"step": each["step"], "samples": each["samples"], "minutes": each["epoch"] / 50} for each in rows]
    (path / "times.jsonl").write_text("".join(json.dumps(each) + "\n" for each in times))
    lines = "".join(f"2026-01-01 00:00:00 epoch {each['epoch']}  step {each['step']}\n" for each in rows)
    (path / "log.txt").write_text(f"2026-01-01 00:00:00 started\n{lines}2026-01-01 03:20:00 ended: enough\n")
    return path


def row(epoch: int, draw: np.random.Generator) -> dict[str, Any]:
    """The report of one epoch: noise around a curve."""
    measured = ("loss", "loss/cross_entropy", "accuracy", "f1")
    keys = [f"{name}/{what}" for name in ("train", "val") for what in measured]
    noise = draw.random(len(keys)) / 10 + math.exp(-5 * epoch / EPOCHS)
    counters = {"epoch": epoch, "step": 20 * epoch, "samples": 1257 * epoch, "rate": 1e-3}
    return counters | dict(zip(keys, noise.tolist(), strict=True))


def measure_processes(run: Path, repeats: int, report: Report) -> None:
    """Whole processes, in an order drawn anew for every repeat."""
    write = f"from headrace.watch.report import write; write({str(run)!r}"
    parse = f"import json; [json.loads(line) for line in open({str(run / 'metrics.jsonl')!r})]"
    commands = {
        START: ["-c", "pass"],
        PARSE: ["-c", parse],
        WRITE: ["-c", f"{write})"],
        PICTURES: ["-c", f"{write}, pictures=True)"],
        COMMAND: ["-m", "headrace", "report", str(run)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    draw = random.Random(0)
    for _ in range(repeats):
        for name in draw.sample(list(commands), len(commands)):
            start = time.perf_counter()
            subprocess.run([sys.executable, *commands[name]], check=True, capture_output=True, timeout=120)
            seconds[name].append(time.perf_counter() - start)
    report.say(f"a run of {EPOCHS:,} epochs, page of {(run / 'report.html').stat().st_size / 1e6:.2f} MB")
    rows = [(n, f"{statistics.median(t):.2f}", f"{min(t):.2f}", f"{max(t):.2f}") for n, t in seconds.items()]
    report.show(("process", "median s", "least", "most"), rows)
    report.record["seconds"] = seconds
    for name in (WRITE, COMMAND):
        report.verdicts.append(Verdict(f"{name}, s", "<=", LIMIT_S, statistics.median(seconds[name])))


if __name__ == "__main__":
    main()
