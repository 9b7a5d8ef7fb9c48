"""An update by the trainer's `train_step`, which may be overridden."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..data.batch import Batch
from ..loss.outcome import Outcome, as_outcome
from ..step import check

if TYPE_CHECKING:
    from .trainer import Trainer


def update(trainer: Trainer, batch: Batch) -> Outcome:
    """One update by `train_step`. What an override has done is looked at."""
    updates, made = trainer.updates, trainer.updates.count
    if not trainer.has_own_train_step:
        return trainer.train_step(batch)
    updates.expect()
    unsaved = trainer.last_training.unsaved
    with nullcontext() if unsaved is None else unsaved.watching():
        outcome = as_outcome(trainer.train_step(batch), "train_step", batch)
    if updates.count == made:
        check.own_update(trainer.resume_settings | asdict(updates.settings), trainer.strategy.shares_updates)
        updates.count += 1
    updates.watch(outcome)
    return outcome
