"""What data cost by headrace, beside torch's loaders, Hugging Face's and loops by hand, all in one run.

    python benchmarks/data.py [--quick] [--only memory,sequences,files,ctf,order,torch] [--gigabytes 4]

Nothing is trained: what is timed is batches. One thread computes; workers and the thread that reads ahead come on top.
Every repeat times every rival, in an order drawn anew; a ratio is the median of the repeats' quotients. The files are
made on the disk of this checkout, one at a time, and removed. The peers come with
`pip install .[bench]`; a missing one is skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import feeding
import ordering
import parsing
import reading
import torch
from checkpoint import SCRATCH, Report
from overhead import some

RESULTS = Path(__file__).parent / "results" / "data.json"
PARTS = ("memory", "sequences", "files", "ctf", "order", "torch")


def main() -> None:
    """Measure the chosen parts; print tables and targets, and write both them and a record."""
    options = arguments()
    torch.set_num_threads(1)
    SCRATCH.mkdir(exist_ok=True)
    report = Report()
    measures: dict[str, Callable[[bool, int, Report], None]] = {
        "memory": feeding.rows,
        "sequences": feeding.sequences,
        "files": partial(reading.files, options.gigabytes, SCRATCH),
        "ctf": partial(parsing.texts, SCRATCH),
        "order": ordering.orders,
        "torch": feeding.with_torch,
    }
    for part in options.only:
        measures[part](options.quick, options.repeats, report)
    report.show_targets(".3g")
    report.write(options.out, options.repeats, ("pyarrow", "torchdata", "datasets"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats of less data: a glance, not a measurement")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 7)")
    parser.add_argument("--gigabytes", type=float, help="size of the files (default 4, quick 0.25)")
    parser.add_argument("--only", type=partial(some, PARTS), default=PARTS, help=f"of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 7)
    options.gigabytes = options.gigabytes or (0.25 if options.quick else 4.0)
    return options


if __name__ == "__main__":
    main()
