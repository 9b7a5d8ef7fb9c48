"""What several workers cost and gain by headrace, beside DistributedDataParallel, Accelerate and Ray, all in one run.

    python benchmarks/workers.py [--quick] [--only steps,launch,link,center,virtual,parts]

Two processes of one thread each, on one host; on two hosts joined by a slow link for `link`, which needs root; one
process for `virtual`; one, two and four for `parts`. Every repeat times every rival, in an order drawn anew; a ratio is
the median of the repeats' quotients. `ddp-again` is the loop by hand once more: its distance from 1 is the noise of the
run. The peers come with `pip install .[bench]`; a missing one is skipped.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from checkpoint import Report, has
from overhead import Target, Verdict, some
from timing import Sample, interleave, ratio
from worker_team import Link, run

RESULTS = Path(__file__).parent / "results" / "workers.json"
WORKS = ({"hidden": 128, "steps": 300}, {"hidden": 512, "steps": 150}, {"hidden": 2048, "steps": 40})
SHARE = 32  # rows of each worker in an update
DDP, AGAIN, ACCELERATE = "ddp", "ddp-again", "accelerate"
SYNCHRONOUS, PERIODIC = "headrace synchronous", "headrace periodic"
IN_PARTS, MICROBATCHES = "headrace in parts", "headrace in microbatches"
IN_PARTS_WORKS = ({"hidden": 512, "steps": 24}, {"hidden": 2048, "steps": 6})
IN_PARTS_BATCH = 2048  # rows of an update, whoever computes them
STEPS_TARGETS = (
    Target("throughput of synchronous / DDP's", DDP, SYNCHRONOUS, ">=", 1.0),
    Target("throughput of periodic / DDP's", DDP, PERIODIC, ">=", 3.0),
)
SAME = 1e-5
MBIT, LINK_SPEED = 100, 5.0
LINK_REPEATS, VIRTUAL_REPEATS = 3, 3  # at most: a repeat takes half a minute
CENTER_LIMIT_MS, LAUNCH_LIMIT_S = 8.0, 4.0
VIRTUAL_LIMITS = {"periodic": 1.5, "synchronous": 1.8}


def main() -> None:
    """Measure the chosen parts; print tables and targets, and write both them and a record."""
    options = arguments()
    torch.set_num_threads(1)
    report = Report()
    for part in options.only:
        PARTS[part](options.quick, options.repeats, report)
    report.show_targets(".3g")
    report.write(options.out, options.repeats, ("accelerate", "ray"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats of fewer updates: a glance, not a measurement")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 7)")
    parser.add_argument("--only", type=partial(some, PARTS), default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 7)
    return options


def measure_steps(quick: bool, repeats: int, report: Report) -> None:
    """Milliseconds an update of perceptrons of three widths; of the smallest, local updates too."""
    for work in WORKS:
        hidden, steps = work["hidden"], work["steps"] // (3 if quick else 1)
        names = [DDP, AGAIN, *([ACCELERATE] if has("accelerate") else []), SYNCHRONOUS]
        names += [PERIODIC] if work is WORKS[0] else []
        job = {"part": "steps", "work": {"hidden": hidden, "steps": steps, "share": SHARE}}
        found = run(job | {"rivals": names, "repeats": repeats})
        samples = {name: Sample(one["seconds"], one["loss"]) for name, one in found.items()}
        report.say(f"\nsteps: MLP 784-{hidden}-{hidden}-10, SGD; 2 workers, {SHARE} rows each, {steps} updates")
        more = {name: (f"{samples[name].score:.3f}", f"{found[name]['from_ddp']:.0e}") for name in samples}
        head = ("ms/update", "x DDP's throughput", "loss", "weights from DDP's")
        show(report, samples, DDP, steps / 1e3, head, more, faster=True)
        report.record.setdefault("steps", []).append(job["work"] | {"rivals": found})
        for target in STEPS_TARGETS:
            judge(report, f"width {hidden}: {target.part}", samples, target)
        apart = found[SYNCHRONOUS]["from_ddp"]
        report.verdicts.append(Verdict(f"width {hidden}: weights from DDP's", "<=", SAME, apart))


def measure_parts(quick: bool, repeats: int, report: Report) -> None:
    """Milliseconds an update whose bits do not depend on the number of workers, beside others of as many rows."""
    for work in IN_PARTS_WORKS:
        for workers in (1, 2, 4):
            rival = MICROBATCHES if workers == 1 else SYNCHRONOUS
            rivals = [DDP, SYNCHRONOUS, IN_PARTS, *([MICROBATCHES] if workers == 1 else [])]
            job = {"part": "steps", "repeats": repeats, "rivals": rivals}
            share = IN_PARTS_BATCH // workers
            found = run(job | {"work": work | {"share": share}}, workers=workers, limit_s=400.0)
            samples = {name: Sample(one["seconds"], one["loss"]) for name, one in found.items()}
            title = f"MLP 784-{work['hidden']}-{work['hidden']}-10, {IN_PARTS_BATCH} rows"
            report.say(f"\nparts: {title}; {workers} worker{'s' * (workers > 1)}")
            show(report, samples, rival, work["steps"] / 1e3, ("ms/update", f"x {rival}'s throughput"), faster=True)
            report.record.setdefault("parts", []).append(work | {"workers": workers, "rivals": found})
            wanted = Target("parts", rival, IN_PARTS, ">=", 1 / 1.05 if workers == 1 else 0.9)
            judge(report, f"parts: width {work['hidden']}, {workers} workers: throughput / {rival}'s", samples, wanted)


def measure_launch(quick: bool, repeats: int, report: Report) -> None:
    """Seconds from the call of `launch` until the function runs in both of two processes, all imports included."""
    script = [sys.executable, str(Path(__file__).with_name("worker_launch.py"))]
    ended = [subprocess.run(script, capture_output=True, check=True, timeout=60) for _ in range(repeats)]
    seconds = [float(each.stdout) for each in ended]
    median = statistics.median(seconds)
    report.say(f"\nlaunch: {median:.2f} s until two processes run the function ({min(seconds):.2f}-{max(seconds):.2f})")
    report.record["launch"] = seconds
    report.verdicts.append(Verdict("launch: seconds until two processes run", "<=", LAUNCH_LIMIT_S, median))


def measure_link(quick: bool, repeats: int, report: Report) -> None:
    """Seconds until digits are known well enough, by workers on two hosts."""
    reason = Link.missing() or (None if has("sklearn") else "scikit-learn is not installed")
    if reason:
        report.say(f"\nlink: skipped, {reason}")
        return
    found = run({"part": "race", "repeats": 1 if quick else min(repeats, LINK_REPEATS)}, link=Link(MBIT))
    samples = {name: Sample(one["seconds"], one["losses"][-1]) for name, one in found.items()}
    report.say(f"\nlink: digits to a validation loss of 0.15, over {MBIT} Mbit/s; 2 workers on 2 hosts")
    more = {
        name: (f"{statistics.median(one['epochs']):g}", f"{samples[name].score:.3f}") for name, one in found.items()
    }
    show(report, samples, DDP, 1.0, ("seconds", "x DDP's speed", "epochs", "loss"), more, faster=True)
    report.record["link"] = {"mbit": MBIT, "rivals": found}
    local = [name for name in samples if name != DDP and not name.startswith(SYNCHRONOUS)]
    best = min(local, key=lambda name: statistics.median(samples[name].seconds))
    judge(report, f"link: speed of {best} / DDP's", samples, Target("link", DDP, best, ">=", LINK_SPEED))


def measure_center(quick: bool, repeats: int, report: Report) -> None:
    """An exchange of 4 MB with the center, beside as many bytes over a bare connection."""
    from worker_center import CALLS, CENTER, RAW, measure

    samples = measure(repeats)
    report.say("\ncenter: 4 MB to a thread of worker 0 and 4 MB back; two processes")
    show(report, samples, RAW, CALLS / 1e3, ("ms", "x a bare connection"))
    report.record["center"] = {name: sample.seconds for name, sample in samples.items()}
    median_ms = 1e3 * statistics.median(samples[CENTER].seconds) / CALLS
    report.verdicts.append(Verdict("center: ms of an exchange", "<=", CENTER_LIMIT_MS, median_ms))


def measure_virtual(quick: bool, repeats: int, report: Report) -> None:
    """Seconds of many virtual workers, beside those of one that makes as many updates."""
    from worker_virtual import ALONE, SHARE, WORKERS, data, rivals

    updates = 24 if quick else 64
    samples = interleave(rivals(*data(updates)), min(repeats, VIRTUAL_REPEATS), (), 0)
    report.say(
        f"\nvirtual: {WORKERS} workers, {updates} updates of {SHARE} rows each, in one process; MLP 128-256-256-10"
    )
    more = {name: (f"{sample.score:.3f}",) for name, sample in samples.items()}
    show(report, samples, ALONE, updates * WORKERS / 1e6, ("µs/update", "x one worker", "loss"), more)
    seconds = {name: sample.seconds for name, sample in samples.items()}
    report.record["virtual"] = {"workers": WORKERS, "updates": updates, "rows": SHARE, "seconds": seconds}
    for name, limit in VIRTUAL_LIMITS.items():
        judge(report, f"virtual: {name} / one worker", samples, Target(name, name, ALONE, "<=", limit))


def show(
    report: Report,
    samples: Mapping[str, Sample],
    base: str,
    per: float,
    head: Sequence[str],
    more: Mapping[str, Sequence[str]] | None = None,
    faster: bool = False,
) -> None:
    """A table: the median of seconds by `per`, and the quotient with those of `base`, or its inverse."""
    rows = []
    for name, sample in samples.items():
        quotient = ratio(samples[base], sample) if faster else ratio(sample, samples[base])
        span = f"{quotient.low:.2f}-{quotient.high:.2f}"
        taken = f"{statistics.median(sample.seconds) / per:.4g}"
        rows.append((name, taken, f"{quotient.median:.2f}", span, *(more or {}).get(name, ())))
    report.show(("what", *head[:2], "min-max", *head[2:]), rows)


def judge(report: Report, what: str, samples: Mapping[str, Sample], target: Target) -> None:
    """A target whose two rivals were both timed."""
    if target.of in samples and target.to in samples:
        measured = ratio(samples[target.of], samples[target.to]).median
        report.verdicts.append(Verdict(what, target.sign, target.limit, measured))


PARTS: dict[str, Callable[[bool, int, Report], None]] = {
    "steps": measure_steps,
    "launch": measure_launch,
    "link": measure_link,
    "center": measure_center,
    "virtual": measure_virtual,
    "parts": measure_parts,
}


if __name__ == "__main__":
    main()
