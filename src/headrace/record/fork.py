"""A run that goes on from a step of another."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from ..store import disk
from ..store.checkpoints import Store
from ..store.document import read_document
from ..store.rows import encoded_line
from ..store.run import CHECKPOINTS, METRICS, RUN, run_id
from ..train.trainer import Trainer
from .replay import advance, replaying

if TYPE_CHECKING:
    from .record import Record


def begin_fork(record: Record, run: Path, at: int, trainer: Trainer | None, train: Any, fit: Mapping[str, Any]) -> None:
    """Makes a run whose only checkpoint is that of a step of another run."""
    if run.exists() and any(run.iterdir()):
        raise RunError(f"{run} is there already. Name a run that does not exist.")
    if at in record.checkpoints:
        _copy(record, record.path, run, at)
        return
    assert trainer is not None
    first = record.before(at)
    with replaying(record.path, first, record.checkpoint(first), trainer, train, fit) as (loop, place):
        if advance(loop, at) is None:
            raise RunError(f"the training ended before step {at}.")
        loop.close()
        _copy(record, place, run, at)


def _copy(record: Record, source: Path, run: Path, at: int) -> None:
    """The checkpoint gets the new run's id, the settings stay, and so do the reports up to it."""
    contents = Store(source / CHECKPOINTS, run_id(source)).load(at)
    facts = read_document(record.path / RUN) | {
        "id": uuid.uuid4().hex,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "parent": {"run": str(record.path), "id": record.id, "step": at},
    }
    with disk.failing(f"making the run {run}", run):
        disk.make_dirs(run / CHECKPOINTS)
        disk.write_file(run / RUN, json.dumps(facts, indent=2).encode() + b"\n")
        rows = [row for row in record.reports if row["step"] <= at]
        disk.write_file(run / METRICS, b"".join(map(encoded_line, rows)))
    Store(run / CHECKPOINTS, facts["id"]).save(contents)
