"""What a directory of TensorBoard's holds, read in two ways; and what it has to hold, by the reports of a run."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.late import late

event_accumulator, event_file_loader = (
    late(f"tensorboard.backend.event_processing.event_{name}") for name in ("accumulator", "file_loader")
)

COUNTERS = ("epoch", "step", "samples")
Curves = dict[str, list[tuple[int, float]]]
"""Steps and values by tag."""


def raw(folder: Path) -> list[Any]:
    """Every event of every file, in order."""
    return [
        event
        for path in sorted(folder.glob("*tfevents*"))
        for event in event_file_loader.LegacyEventFileLoader(str(path)).Load()
    ]


def raw_curves(folder: Path) -> Curves:
    """What the files hold, whether a reader would show it or not."""
    curves: Curves = {}
    for event in raw(folder):
        for value in event.summary.value:
            curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def times(folder: Path) -> dict[tuple[str, int], float]:
    """When each number was written."""
    return {(value.tag, event.step): event.wall_time for event in raw(folder) for value in event.summary.value}


def accumulator(folder: Path) -> Any:
    """TensorBoard's own reader, which leaves nothing out."""
    return event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})


def shown(reader: Any) -> Curves:
    """What TensorBoard shows, once it has looked again."""
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def wanted(run: Path) -> Curves:
    """Every number that the run has reported, as 32 bits hold it."""
    import numpy as np

    curves: Curves = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key, value in row.items():
            if key not in COUNTERS and not isinstance(value, list):
                points = curves.setdefault(key, [])
                if not points or points[-1][0] < row["step"]:  # the rate stands beside the scores of the test too
                    points.append((row["step"], float(np.float32(value))))
    return curves


BLOCK, HEAD = 1 << 15, 7  # bytes of a block of W&B's files, and of what a file or a piece of a record begins with
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a file of W&B's, which is like a log of LevelDB, up to one that is cut short."""
    data, record, at = path.read_bytes(), b"", HEAD
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        piece = data[at + HEAD : at + HEAD + length]
        if len(piece) < length or kind not in (WHOLE, FIRST, MIDDLE, LAST):
            return
        record = piece if kind in (WHOLE, FIRST) else record + piece
        if kind in (WHOLE, LAST):
            yield record
        at += HEAD + length
