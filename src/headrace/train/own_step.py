"""An update by the trainer's `train_step`, which may be overridden: in a training, and by hand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..data.batch import Batch
from ..loss.outcome import Outcome, as_outcome
from ..step import check, evaluate
from ..step.arguments import deterministic_mode

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
        check.own_update(
            trainer.resume_settings | asdict(updates.settings),
            trainer.strategy.shares_updates or trainer.strategy.parts > 0,
        )
        updates.count += 1
    updates.watch(outcome)
    return outcome


def step_by_hand(trainer: Trainer, batch: Batch) -> dict[str, Any]:
    """One update without a training, by this worker's part of the batch; the losses by name."""
    last, updates = trainer.last_training, trainer.updates
    batch = trainer.workers.share(batch.to(trainer.device), trainer.model)
    try:
        if (streams := batch.streams) != last.streams:
            for objective in trainer.objectives.values():
                objective.prepare(streams, {})
            last.streams = streams
        plain = not trainer.has_own_train_step and all(each.training for each in trainer.all_modules)  # and stays so
        with (
            nullcontext() if plain else evaluate.mode(trainer.all_modules, training=True),
            deterministic_mode(trainer.deterministic),
        ):
            outcome = update(trainer, batch)
            (updates if trainer.has_own_train_step else updates.guard).settle()
    except BaseException as error:
        trainer.workers.mark_failed(error)
        raise
    return outcome.losses
