"""What all that a person sees costs: everything on beside nothing on, as ratios, all in one run.

    python benchmarks/everything.py [--quick] [--repeats N] [--epochs N]

Work a of `overhead.py` for some epochs, one thread. On: the progress bar, log.txt, metrics.jsonl, curves for
TensorBoard, a CSV file, and a checkpoint after every epoch, in a run on the disk of this checkout. Every repeat times
every way, in an order drawn anew; a ratio is the median of the repeats' quotients. `again` is nothing on once more:
its distance from 1 is the noise of the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import in_words, machine
from overhead import Verdict, print_verdicts
from peers import headrace_trainer, job
from timing import Job, interleave, ratio, silence, table
from work import WORKS, Work

import headrace as hr

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "everything.json"
SCRATCH = ROOT / "runs"  # where runs are: on a disk, which /tmp need not be
LIMIT = 1.03
WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "nothing": lambda run: {"progress": False},
    "again": lambda run: {"progress": False},
    "bar": lambda run: {"progress": "bar"},
    "run": lambda run: {"progress": False, "run": hr.Run(run, logs=False)},
    "everything": lambda run: {"progress": "bar", "run": run},
}


def main() -> None:
    """Measures, prints the table and the target, writes everything as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats: a glance, not a measurement")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 9)")
    parser.add_argument("--epochs", type=int, default=10, help="of each training (10)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    SCRATCH.mkdir(exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix="everything-", dir=SCRATCH))
    try:
        record = measured(room, options.repeats or (3 if options.quick else 9), options.epochs)
    finally:
        shutil.rmtree(room)
    options.out.write_text(json.dumps(record, indent=2) + "\n")


def measured(room: Path, repeats: int, epochs: int) -> dict[str, Any]:
    """Times every way; what is written."""
    work, where = WORKS["a"], machine()
    x, y = work.data()
    print(in_words(where))
    prepare = {name: partial(trained, name, room, work, x, y, epochs) for name in WAYS}
    for one in prepare.values():  # imports and first calls are not timed
        with silence():
            one().run()
    samples = interleave(prepare, repeats, (), 1)
    rows, ways = [], {}
    for name, sample in samples.items():
        to = ratio(sample, samples["nothing"])
        ms = 1e3 * statistics.median(sample.seconds) / epochs
        rows.append((name, f"{ms:.1f}", f"{to.median:.3f}", f"{to.low:.3f}-{to.high:.3f}"))
        ways[name] = {"ms_per_epoch": ms, "to_nothing": asdict(to), "seconds": sample.seconds}
    print(f"{work.title}; {epochs} epochs of {work.steps} steps")
    print(table(("on", "ms/epoch", "x nothing", "min-max"), rows))
    verdict = Verdict("everything/nothing", "<=", LIMIT, ways["everything"]["to_nothing"]["median"])
    print_verdicts([verdict])
    targets = [{**asdict(verdict), "reached": verdict.reached}]
    return {"machine": where, "repeats": repeats, "epochs": epochs, "ways": ways, "targets": targets}


def trained(name: str, room: Path, work: Work, x: torch.Tensor, y: torch.Tensor, epochs: int) -> Job:
    """A training with all that belongs to this way."""
    model = work.model()
    trainer = headrace_trainer(work, model)
    options = WAYS[name](Path(tempfile.mkdtemp(dir=room)) / "run")
    return job(lambda: trainer.fit((x, y), epochs=epochs, **options), model, x, y)


if __name__ == "__main__":
    main()
