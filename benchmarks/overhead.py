"""What training by headrace costs, as ratios to the hand-written loop and to its peers, all in one run.

    python benchmarks/overhead.py [--quick] [--only a,b,validate] [--peers raw,headrace]

Every repeat times every peer with a fresh model (the quick ones several times, by their median); a ratio is
the median of the repeats' quotients. `raw-again` is the raw loop once more: its distance from 1 is the noise
of the run. The frameworks come with `pip install .[bench]`; a missing one is skipped.
"""

from __future__ import annotations

import argparse
import json
import operator
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from inference import INFERENCE
from logged import LOGGED
from machine import in_words, machine
from peers import OFTEN, PEERS, Peer
from process import first_seconds, import_seconds, memory
from timing import Job, Sample, interleave, ratio, silence, table
from work import WORKS, Work

RESULTS = Path(__file__).parent / "results" / "overhead.json"
PARTS = (*WORKS, *INFERENCE, *LOGGED, "import", "first", "memory")
WARM_UP_ROWS = 1024
COMPARE = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Target:
    """A promise about one part: the time of `of` divided by that of `to`, against a limit."""

    part: str
    of: str
    to: str
    sign: str
    limit: float


@dataclass(frozen=True)
class Verdict:
    """What a target asked for and what was measured."""

    what: str
    sign: str
    limit: float
    measured: float

    @property
    def reached(self) -> bool:
        """Whether the measured value is on the right side of the limit."""
        return bool(COMPARE[self.sign](self.measured, self.limit))


TARGETS = (
    Target("a", "headrace", "raw", "<=", 0.55),
    Target("b", "headrace", "raw", "<=", 0.50),
    Target("c", "headrace", "raw", "<=", 0.93),
    Target("d", "headrace", "raw", "<=", 0.90),
    Target("e", "headrace", "raw", "<=", 0.58),
    Target("f", "headrace", "raw", "<=", 0.87),
    Target("g", "headrace", "raw", "<=", 1.01),
    Target("a", "compiled", "headrace", ">=", 1.0),
    Target("a", "jax", "headrace", ">=", 0.8),
    Target("a", "lightning", "headrace", ">=", 14.0),
    Target("a", "keras", "headrace", ">=", 11.0),
    Target("a", "accelerate", "headrace", ">=", 6.0),
    Target("a", "ignite", "headrace", ">=", 2.0),
    Target("a", "skorch", "headrace", ">=", 2.0),
    Target("validate", "headrace", "raw", "<=", 1.00),
    Target("predict", "headrace", "raw", "<=", 1.00),
    Target("log", "headrace", "raw", "<=", 0.9),
)
IMPORT_LIMIT_S, RECORDING_LIMIT_S = 0.1, 1.0


def main() -> None:
    """Measure the chosen parts, print their tables and the targets, write everything as JSON."""
    options = arguments()
    torch.set_num_threads(1)
    peers = available(options.peers)
    parts: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    where = machine()
    print(in_words(where), flush=True)
    for part in options.only:
        measure = MEASURES.get(part, measure_speed)
        parts[part], judged = measure(part, peers, options.repeats)
        verdicts += judged
    print_verdicts(verdicts)
    record = {
        "machine": where,
        "repeats": options.repeats,
        "parts": parts,
        "targets": [{**asdict(v), "reached": v.reached} for v in verdicts],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line, lists checked against what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats: a glance, not a measurement")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 5)")
    parser.add_argument("--only", type=partial(some, PARTS), default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--peers", type=partial(some, PEERS), default=PEERS, help="raw is always among them")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 5)
    return options


def some(known: Collection[str], text: str) -> list[str]:
    """The comma-separated names of `text`, in the order of `known`."""
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return [name for name in known if name in names]


def available(names: Sequence[str]) -> list[Peer]:
    """The chosen peers that can be imported here; the others are named."""
    found = []
    for peer in PEERS.values():
        if peer.name not in names and peer.name != "raw":
            continue
        if reason := peer.missing():
            print(f"skipped: {peer.name} ({reason})")
        else:
            found.append(peer)
    return found


def measure_speed(part: str, peers: list[Peer], repeats: int) -> tuple[Any, list[Verdict]]:
    """Time one epoch of a training work, or one pass of inference over the rows of work a."""
    names = [peer.name for peer in peers]
    if part in INFERENCE:
        work, tolerance, passes = WORKS["a"], 1e-3, 6
        title = f"{part}, {work.title.split(',')[0]}"
        prepare = {name: one for name, one in INFERENCE[part].items() if name in names}
    elif part in LOGGED:
        work, tolerance, passes = WORKS["a"], 0.25, 2
        title = f"fit that logs every update, {work.title}"
        prepare = {name: one for name, one in LOGGED[part].items() if name in names}
    else:
        work, tolerance, passes = WORKS[part], 0.25, 4
        title = f"fit, {work.title}"
        prepare = {peer.name: peer.prepare for peer in peers if part in peer.works}
    print(f"\n{part}: {title}; {work.rows} rows, batch {work.batch_size}, {work.steps} steps", flush=True)
    samples = interleave(warmed(work, prepare), repeats, OFTEN, passes)
    record = {name: facts(sample, samples["raw"], work) for name, sample in samples.items()}
    print_speed(record, tolerance)
    return {"title": title, "rows": work.rows, "steps": work.steps, "peers": record}, judge(part, samples)


def warmed(work: Work, prepare: dict[str, Callable[..., Job]]) -> dict[str, Callable[[], Job]]:
    """Bind the data, after one small run of each: imports and first-call set-up are not timed."""
    x, y = work.data()
    for one in prepare.values():
        with silence():
            one(work, x[:WARM_UP_ROWS], y[:WARM_UP_ROWS]).run()
    return {name: partial(one, work, x, y) for name, one in prepare.items()}


def facts(sample: Sample, raw: Sample, work: Work) -> dict[str, Any]:
    """One line of a table, as JSON values."""
    return {
        "us_per_step": 1e6 * statistics.median(sample.seconds) / work.steps,
        "to_raw": asdict(ratio(sample, raw)),
        "loss": sample.score,
        "seconds": sample.seconds,
    }


def print_speed(record: dict[str, Any], tolerance: float) -> None:
    """The table of one part; a loss unlike the raw loop's is marked: that peer did other work."""
    wanted = record["raw"]["loss"]
    rows = []
    for name, line in record.items():
        to_raw = line["to_raw"]
        mark = "" if abs(line["loss"] - wanted) <= tolerance * wanted else " (!)"
        span = f"{to_raw['low']:.2f}-{to_raw['high']:.2f}"
        loss = f"{line['loss']:.3f}{mark}"
        rows.append((name, f"{line['us_per_step']:.1f}", f"{to_raw['median']:.3f}", span, loss))
    print(table(("peer", "µs/step", "x raw", "min-max", "loss"), rows), flush=True)


def judge(part: str, samples: dict[str, Sample]) -> list[Verdict]:
    """The targets of this part whose two rivals were both timed."""
    return [
        Verdict(f"{part}: {t.of}/{t.to}", t.sign, t.limit, ratio(samples[t.of], samples[t.to]).median)
        for t in TARGETS
        if t.part == part and t.of in samples and t.to in samples
    ]


def measure_import(_: str, peers: list[Peer], repeats: int) -> tuple[Any, list[Verdict]]:
    """Seconds of `import headrace` after `import torch`."""
    if "headrace" not in [peer.name for peer in peers]:
        return None, []
    seconds = import_seconds(repeats)
    median = statistics.median(seconds)
    print(f"\nimport headrace, on top of import torch: {1e3 * median:.1f} ms", flush=True)
    return {"seconds": seconds}, [Verdict("import: seconds", "<=", IMPORT_LIMIT_S, median)]


def measure_first(_: str, peers: list[Peer], repeats: int) -> tuple[Any, list[Verdict]]:
    """Seconds that recording adds to a process's first updates."""
    if "headrace" not in [peer.name for peer in peers]:
        return None, []
    taped, eager = (statistics.median(first_seconds(repeats, tape)) for tape in ("auto", "False"))
    print(f"\nthe first eight updates of a process: {taped:.3f} s with recording, {eager:.3f} s without", flush=True)
    more = Verdict("first: seconds of recording", "<=", RECORDING_LIMIT_S, taped - eager)
    return {"taped_s": taped, "eager_s": eager}, [more]


def measure_memory(_: str, peers: list[Peer], repeats: int) -> tuple[Any, list[Verdict]]:
    """Peak memory of `fit` beyond that of the raw loop, against one more model and two macrobatches."""
    has_headrace = "headrace" in [peer.name for peer in peers]
    record = memory(min(repeats, 2), ("bare", "raw", "headrace") if has_headrace else ("bare",))
    print("\nmemory: MLP 1024-2048-2048-10, Adam; raw and headrace both with headrace's libraries loaded")
    print(table(("what", "MB"), [(name, f"{size / 1e6:.1f}") for name, size in record.items()]), flush=True)
    if not has_headrace:
        return record, []
    extra = (record["headrace"] - record["raw"]) / (record["parameters"] + 2 * record["macrobatch"])
    return record, [Verdict("memory: extra/(parameters + 2 macrobatches)", "<=", 1.0, extra)]


MEASURES: dict[str, Callable[[str, list[Peer], int], tuple[Any, list[Verdict]]]] = {
    "import": measure_import,
    "first": measure_first,
    "memory": measure_memory,
}


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Every target with what was measured."""
    rows = []
    for v in verdicts:
        rows.append((v.what, f"{v.sign} {v.limit:.2f}", f"{v.measured:.3f}", "yes" if v.reached else "NO"))
    if rows:
        print(f"\n{table(('target', 'wanted', 'measured', 'reached'), rows)}")


if __name__ == "__main__":
    main()
