"""Trains a run again without some rows: from before they were first used, with weight 0 for each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Table, fingerprint_of, forwarded
from ..errors import ConfigError
from ..loss.objective import losses_of
from ..step.arguments import source_on
from ..step.config import differences
from ..store.checkpoints import Store
from ..store.run import CHECKPOINTS
from ..train.runs import Run
from ..train.trainer import Trainer
from ..watch.history import History

if TYPE_CHECKING:
    from .record import Record


class Weightless(Table):
    """A table in which some rows have the weight 0 in streams of weights. Otherwise it is that table."""

    def __init__(self, table: Table, rows: Sequence[int], weights: Sequence[str]) -> None:
        self._table, self._rows, self._weights = table, np.asarray(rows), weights
        self.thread_safe, self.block = table.thread_safe, table.block

    streams, encoding = (forwarded(f"_table.{name}") for name in ("streams", "encoding"))

    def __len__(self) -> int:
        return len(self._table)

    def take(self, indices: Tensor) -> Batch:
        return self._changed(self._table.take(indices), np.asarray(indices.cpu()))

    def rows(self, start: int, stop: int) -> Batch:
        return self._changed(self._table.rows(start, stop), np.arange(start, stop))

    def lengths(self, stream: str) -> Tensor:
        return self._table.lengths(stream)

    def fingerprint(self) -> str:
        """Another one than the table's: a run without rows does not go on with them unasked."""
        return fingerprint_of(self._table.fingerprint(), "without", *self._rows)

    def _changed(self, batch: Batch, numbers: Any) -> Batch:
        hits = np.flatnonzero(np.isin(numbers, self._rows))
        return weightless(batch, self._weights, hits) if len(hits) else batch


def weightless(batch: Batch, streams: Sequence[str], rows: Any) -> Batch:
    """A batch in which some rows have weight 0."""
    changed, fields = copy.copy(batch), dict(batch.fields)
    for name in streams:
        weights = fields[name].clone()
        weights[torch.from_numpy(rows).to(weights.device)] = 0
        fields[name] = weights
    changed.fields, changed.macrobatch = fields, None
    return changed


def train_without(
    record: Record, rows: Sequence[int], trainer: Trainer, train: Any, run: Path, fit: Mapping[str, Any]
) -> History:
    """Goes on from the last checkpoint before any of the rows was used; the bits are those of a training that had them
    at weight 0 from the beginning.

    Every term that looks at data has to name a stream of weights. The rows still are in their batches, so that batch
    normalisation measures them.
    """
    weights = weight_streams(trainer)
    source = source_on(train, trainer.device, "train", trainer.order, trainer.seed, resumes=True)
    if not isinstance(source, Reader):
        raise ConfigError("rows can be left out of a table only, and these data are batches.")
    used = [step for row in rows for step in record.when(row, train)]
    first = min(used, default=record.steps + 1)
    at = record.before(first - 1)
    config = record.settings
    every = {name: config[name] for name in ("log_every", "validate_every") if name in config}
    known = {name: value for name, value in trainer.resume_settings.items() if name in config}
    if changed := differences({name: config[name] for name in known}, known):
        raise ConfigError(
            f"{record.path} was trained with other settings: {'; '.join(changed)}. Set them as they were."
        )
    options = {"progress": False, **record.checkpoint(at).common["limits"], **every, **fit}
    begins = not run.exists() or Store(run / CHECKPOINTS, None).steps() in ([], [at])  # with data that are others now
    kept = Run(run, parent=f"{record.path}@{at}", override=begins)
    table = Weightless(source.table, rows, weights)
    return trainer.fit(source.over(table) if trainer.augment is None else table, run=kept, **options)


def weight_streams(trainer: Trainer) -> list[str]:
    """The streams of weights; raises unless every term has one."""
    found = []
    for objective in trainer.objectives.values():
        losses = [loss for loss in losses_of(objective) if not loss.training_only]
        names = [loss.row_weight for loss in losses if loss.row_weight is not None]
        if len(names) < max(1, len(losses)):
            raise ConfigError(
                "a row is left out by its weight, and this loss has terms without weights. Train with "
                "hr.CrossEntropy(weight='w'), and give the data a column 'w' of ones: then rows can be left out."
            )
        found += names
    return list(dict.fromkeys(found))
