"""What several workers cost and gain by headrace, beside DistributedDataParallel, Accelerate and Ray, all in one run.

    python benchmarks/workers.py [--quick] [--only steps,link,center,virtual]

Two processes of one thread each, unless said otherwise; on two hosts joined by a slow link for `link`, which needs
root. Every repeat times every rival, in an order drawn anew; a ratio is the median of the repeats' quotients. The
peers come with `pip install .[bench]`, Ray with `.[ray]`; what is missing is skipped.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from checkpoint import Report, has
from overhead import Target, Verdict, some
from timing import Sample, interleave, ratio
from worker_team import Link, run

RESULTS = Path(__file__).parent / "results" / "workers.json"
PARTS = ("steps", "link", "center", "virtual")
WORKS = ({"hidden": 128, "steps": 300}, {"hidden": 512, "steps": 150}, {"hidden": 2048, "steps": 40})
DDP, SYNCHRONOUS, PERIODIC = "ddp", "headrace synchronous", "headrace periodic"
SAME = 1e-5
MBIT = 100


def main() -> None:
    """Measure the chosen parts; print tables and targets, and write both them and a record."""
    options = arguments()
    torch.set_num_threads(1)
    report = Report()
    for part in options.only:
        MEASURES[part](options.quick, options.repeats, report)
    report.show_targets(".3g")
    report.write(options.out, options.repeats, ("accelerate", "ray"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats of fewer updates: a glance, not a measurement")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 7)")
    parser.add_argument("--only", type=partial(some, PARTS), default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 7)
    return options


def measure_steps(quick: bool, repeats: int, report: Report) -> None:
    """Milliseconds an update of perceptrons of three widths; of the smallest, local updates too."""
    for work in WORKS:
        given = work | {"steps": work["steps"] // (3 if quick else 1)}
        names = [DDP, "ddp-again", *(["accelerate"] if has("accelerate") else []), SYNCHRONOUS]
        names += [PERIODIC] if work is WORKS[0] else []
        found = run({"part": "steps", "work": given, "rivals": names, "repeats": repeats})
        samples = {name: Sample(one["seconds"], one["loss"]) for name, one in found.items()}
        report.say(f"\nsteps: MLP 784-{work['hidden']}-{work['hidden']}-10, SGD; 2 workers, 64 rows each, {given}")
        rows = []
        for name, sample in samples.items():
            faster = ratio(samples[DDP], sample)
            ms = [1e3 * seconds / given["steps"] for seconds in sample.seconds]
            rows.append(
                (
                    name,
                    f"{statistics.median(ms):.3f}",
                    f"{faster.median:.2f}",
                    f"{faster.low:.2f}-{faster.high:.2f}",
                    f"{sample.score:.3f}",
                    f"{found[name]['from_ddp']:.1e}",
                )
            )
        report.show(("what", "ms/step", "x DDP's throughput", "min-max", "loss", "weights from DDP's"), rows)
        report.record.setdefault("steps", []).append({"work": given, "rivals": found})
        judge(f"width {work['hidden']}", samples, STEPS_TARGETS, report)
        apart = found[SYNCHRONOUS]["from_ddp"]
        report.verdicts.append(Verdict(f"width {work['hidden']}: weights from DDP's", "<=", SAME, apart))


STEPS_TARGETS = (
    Target("throughput of synchronous / DDP", DDP, SYNCHRONOUS, ">=", 1.0),
    Target("throughput of periodic / DDP", DDP, PERIODIC, ">=", 3.0),
)


def judge(part: str, samples: Mapping[str, Sample], targets: tuple[Target, ...], report: Report) -> None:
    """The targets whose two rivals were both timed."""
    for t in targets:
        if t.of in samples and t.to in samples:
            measured = ratio(samples[t.of], samples[t.to]).median
            report.verdicts.append(Verdict(f"{part}: {t.part}", t.sign, t.limit, measured))


def measure_link(quick: bool, repeats: int, report: Report) -> None:
    """Seconds until digits are known well enough, by workers on two hosts."""
    if reason := Link.missing():
        report.say(f"\nlink: skipped, {reason}")
        return
    found = run({"part": "race", "repeats": min(repeats, 3)}, link=Link(MBIT))
    samples = {name: Sample(one["seconds"], one["losses"][-1]) for name, one in found.items()}
    report.say(f"\nlink: digits to a validation loss of 0.15, over {MBIT} Mbit/s; 2 workers, 64 rows each")
    rows = []
    for name, sample in samples.items():
        faster = ratio(samples[DDP], sample)
        epochs = statistics.median(found[name]["epochs"])
        span = f"{faster.low:.2f}-{faster.high:.2f}"
        taken = f"{statistics.median(sample.seconds):.2f}"
        rows.append((name, taken, f"{faster.median:.2f}", span, f"{epochs:g}", f"{sample.score:.3f}"))
    report.show(("what", "seconds", "x DDP's speed", "min-max", "epochs", "loss"), rows)
    report.record["link"] = {"mbit": MBIT, "rivals": found}
    local = [name for name in samples if name != DDP and "synchronous" not in name]
    best = min(local, key=lambda name: statistics.median(samples[name].seconds))
    judge(f"link: {best}", samples, (Target("speed / DDP's", DDP, best, ">=", 5.0),), report)


def measure_center(quick: bool, repeats: int, report: Report) -> None:
    """A push and a pull of 4 MB by Ray's center, beside the bare call of an actor."""
    if not has("ray"):
        report.say("\ncenter: skipped, Ray is not installed")
        return
    from worker_center import CALLS, CENTER, RAW, measure

    samples = measure(repeats)
    report.say(f"\ncenter: 4 MB to a Ray actor and 4 MB back, {CALLS} times")
    rows = []
    for name, sample in samples.items():
        more, ms = ratio(sample, samples[RAW]), [1e3 * seconds / CALLS for seconds in sample.seconds]
        rows.append((name, f"{statistics.median(ms):.2f}", f"{more.median:.2f}", f"{more.low:.2f}-{more.high:.2f}"))
    report.show(("what", "ms", "x raw", "min-max"), rows)
    report.record["center"] = {name: sample.seconds for name, sample in samples.items()}
    judge("center", samples, (Target("push and pull / raw call", CENTER, RAW, "<=", 2.0),), report)


def measure_virtual(quick: bool, repeats: int, report: Report) -> None:
    """Seconds of many virtual workers, beside those of one that makes as many updates."""
    from worker_virtual import ALONE, EPOCHS, SHARE, WORKERS, data, rivals

    per_epoch = 4 if quick else 15
    x, y = data(per_epoch)
    steps = per_epoch * EPOCHS
    samples = interleave(rivals(x, y), min(repeats, 5), (), 0)
    report.say(
        f"\nvirtual: {WORKERS} workers in one process, {steps} updates each, {SHARE} rows each; MLP 784-128-128-10"
    )
    rows = []
    for name, sample in samples.items():
        more, us = ratio(sample, samples[ALONE]), [1e6 * s / (steps * WORKERS) for s in sample.seconds]
        span = f"{more.low:.2f}-{more.high:.2f}"
        rows.append((name, f"{statistics.median(us):.0f}", f"{more.median:.2f}", span, f"{sample.score:.3f}"))
        if name != ALONE:
            report.verdicts.append(Verdict(f"virtual: {name} / one worker", "<=", 1.3, more.median))
    report.show(("what", "µs/update", "x one worker", "min-max", "loss"), rows)
    report.record["virtual"] = {"workers": WORKERS, "updates": steps} | {
        "seconds": {name: sample.seconds for name, sample in samples.items()}
    }


MEASURES: dict[str, Callable[[bool, int, Report], Any]] = {
    "steps": measure_steps,
    "link": measure_link,
    "center": measure_center,
    "virtual": measure_virtual,
}


if __name__ == "__main__":
    main()
