"""What reports cost: the page of a run of 10,000 epochs in a process of its own, and a tracker whose server is dead.

    python benchmarks/reporting.py [--quick] [--repeats N]

The run has twelve numbers an epoch and a confusion matrix. Beside the complete process, those that only start an
interpreter or only parse the same reports. A small model is trained with a report every fifty updates: without a
tracker, with one whose server refuses connections, and with one whose server accepts them and does not answer.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint import Report
from overhead import Verdict
from torch import nn

import headrace as hr

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "reporting.json"
EPOCHS, CLASSES, LIMIT_S = 10_000, 10, 5.0
START, PARSE = "an interpreter that starts", "json.loads of the reports"
WRITE, COMMAND = "report.write", "headrace report"
PLAIN, REFUSES, HANGS = "without a tracker", "a server that refuses", "a server that does not answer"
STEPS, SHARE, END_S = 6000, 0.01, 5.0


def main() -> None:
    """Time every process once per repeat; print tables, and write them and a record."""
    options = arguments()
    report = Report()
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch) / "run")
        measure_processes(run, options.repeats, report)
    measure_dead_servers(options.repeats, report)
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


class Posts(hr.Tracker):
    """Sends the newest report to a server of this machine, and notes the computing time that this takes."""

    def __init__(self, port: int) -> None:
        self.url, self.cpu_s, self.end_s = f"http://127.0.0.1:{port}", 0.0, 0.0

    def begin(self, info: hr.Info) -> None:
        self.id = "run"

    def send(self, rows: Iterable[Any]) -> None:
        with self.computing():
            urllib.request.urlopen(self.url, json.dumps(list(rows)[-1]).encode(), timeout=30)

    def end(self, state: str) -> None:
        pass

    def on_report(self, info: hr.Info, row: dict[str, Any]) -> None:
        with self.computing():
            super().on_report(info, row)

    def on_fit_end(self, info: hr.Info) -> None:
        start = time.perf_counter()
        super().on_fit_end(info)
        self.end_s = time.perf_counter() - start

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Adds what the calling thread computes; waiting is none of it."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.cpu_s += time.thread_time() - start


class Clock(hr.Callback):
    """Notes the time from the beginning of a training to its last update, and the process's computing time."""

    seconds = cpu_s = 0.0

    def on_fit_start(self, info: hr.Info) -> None:
        self._start = time.perf_counter(), time.process_time()

    def on_fit_end(self, info: hr.Info) -> None:  # called before the tracker's
        start, cpu = self._start
        self.seconds, self.cpu_s = time.perf_counter() - start, time.process_time() - cpu


def measure_dead_servers(repeats: int, report: Report) -> None:
    """The updates of a training beside a server that is dead, and what its end waits."""
    torch.set_num_threads(1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refuses = closed.getsockname()[1]  # nobody listens there once it is closed
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {PLAIN: None, REFUSES: refuses, HANGS: silent.getsockname()[1]}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
        draw = random.Random(0)
        for _ in range(repeats):
            for name in draw.sample(list(ports), len(ports)):
                found[name].append(train(ports[name]))
    ratios = {name: [a["s"] / b["s"] for a, b in zip(found[name], found[PLAIN], strict=True)] for name in ports}
    rows = [
        (
            name,
            f"{statistics.median(each['s'] for each in of):.2f}",
            f"{statistics.median(ratios[name]):.3f} ({min(ratios[name]):.3f} to {max(ratios[name]):.3f})",
            f"{100 * max(each['share'] for each in of):.2f}",
            f"{max(each['end_s'] for each in of):.2f}",
            f"{max(each['warnings'] for each in of):.0f}",
        )
        for name, of in found.items()
    ]
    report.say(f"\n{STEPS:,} updates with a report every fifty")
    report.show(("tracker", "median s", "/ without", "computing %", "end s", "warnings"), rows)
    report.record["dead servers"] = found
    for name in (REFUSES, HANGS):
        most = {what: max(each[what] for each in found[name]) for what in ("share", "end_s", "warnings")}
        report.verdicts.append(Verdict(f"{name}: computing / the training's", "<=", SHARE, most["share"]))
        report.verdicts.append(Verdict(f"{name}: wait at the end, s", "<=", 1.1 * END_S, most["end_s"]))
        report.verdicts.append(Verdict(f"{name}: warnings", "<=", 1, most["warnings"]))


def train(port: int | None) -> dict[str, float]:
    """Seconds of the updates, the tracker's share of the computing time, seconds of the end, and warnings."""
    torch.manual_seed(0)
    x = torch.randn(6400, 64)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64)
    clock, trackers = Clock(), [] if port is None else [Posts(port)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options: Any = {"log_every": "50 steps", "callbacks": [clock, *trackers], "progress": False}
        trainer.fit((x, x[:, :4].argmax(1)), steps=STEPS, **options)
    share, end_s = sum(t.cpu_s for t in trackers) / clock.cpu_s, sum(t.end_s for t in trackers)
    return {"s": clock.seconds, "share": share, "end_s": end_s, "warnings": len(caught)}


if __name__ == "__main__":
    main()
