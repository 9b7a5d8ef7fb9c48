"""A trainer's ways through data: the feed of a training, scores, and predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..data.batch import Batch
from ..data.feed import Feed
from ..data.reader import Epochs, Reader, rewound
from ..data.source import Source
from ..data.staging import Sizes
from ..errors import ConfigError
from ..length import Length
from ..loss.objective import Supervised, scoring
from ..loss.outcome import Outcome, as_outcome
from ..step import evaluate
from ..step.kept import Kept
from ..step.weights import categories_of, remember_categories
from ..watch.info import Info
from . import check
from . import plan as plans

if TYPE_CHECKING:
    from .trainer import Trainer

DEFAULT_BATCH = 128


def to_train(trainer: Trainer, source: Source, info: Info) -> Feed:
    """The batches of a training, whose size may depend on how far it has come."""
    crew, preemption = trainer._team, trainer._preemption
    return Feed(
        source,
        trainer.device,
        batch_size=Sizes(trainer.batch_size or DEFAULT_BATCH).times(crew.times),
        macrobatch=trainer.macrobatch,
        waiting=preemption.check,
        counters=lambda: info.counters,
        shard=crew.trains,
    )


def rows_of(source: Source) -> int | None:
    """How many rows an epoch has, where that is known."""
    if isinstance(source, Reader | Epochs):
        return source.epoch_rows if isinstance(source, Reader) else source.rows
    return None if source.own_size else source.batches(1)


def ends_alone(trainer: Trainer, source: Source, limits: Sequence[Length]) -> bool:
    """Whether it is certain that this worker's part of the last batch of an epoch, or of a microbatch, is one row."""
    sizes = Sizes(trainer.batch_size or DEFAULT_BATCH).times(trainer._team.times)
    batches = source.batches(sizes.first) if sizes.constant and isinstance(source, Reader | Epochs) else None
    if batches is None or (isinstance(source, Reader) and source.state_dict()["cross_epochs"]):
        return False
    rows = rows_of(source) or 0
    ends = {"epochs": 1, "steps": batches, "samples": rows, "minutes": math.inf}
    if any(limit.count < ends[limit.unit] for limit in limits):
        return False
    start, stop = trainer._team.trains.of(rows % sizes.first or min(rows, sizes.first))
    microbatch = trainer._step.microbatch or stop - start + 1
    return (stop - start) % microbatch == 1


def once(trainer: Trainer, source: Source, batch_size: int | None = None) -> Feed:
    """The batches of one pass over data, this worker's part of them."""
    return Feed(
        source,
        trainer.device,
        batch_size=batch_size or Sizes(trainer.batch_size or DEFAULT_BATCH).first,
        macrobatch=trainer.macrobatch,
        waiting=trainer._preemption.check_scoring,
        shard=trainer._team.scores,
        once=True,
    )


def batch_of(trainer: Trainer, batch: Any) -> Batch:
    """A batch of whatever `step` takes; strings keep the numbers that they have in the first one."""
    if isinstance(batch, Batch):
        return batch
    known = categories_of(trainer.model)
    found, held = plans.as_batch(batch, known)
    if known is None:
        remember_categories(trainer.model, held or None)
    return found


def update(trainer: Trainer, batch: Batch) -> Outcome:
    """One update by `train_step`. After one by an override, the guard checks the weights."""
    if trainer._updates_plainly:
        return trainer.train_step(batch)
    step, made = trainer._step, trainer._step.updates
    refusal = _refusal(trainer) if step.unproven else ""
    kept = kept_of(trainer) if refusal else None  # whether an update is its own is known once it is made
    step.expect()
    outcome = as_outcome(trainer.train_step(batch), "train_step", batch)
    if step.updates == made:
        if kept is not None:
            kept.restore()
        if refusal := refusal or _refusal(trainer):
            raise ConfigError(refusal)
        step.updates += 1
    step.unproven = False
    step.watch(outcome)
    return outcome


def _refusal(trainer: Trainer) -> str:
    return check.own_update(trainer._config | asdict(trainer._step.settings), trainer.strategy.shares_updates)


def kept_of(trainer: Trainer) -> Kept:
    """What an update changes, to be put back."""
    kept = Kept()
    for holder in (*(module for root in trainer._modules for module in root.modules()), *trainer.optimizers.values()):
        kept.keep(vars(holder))
    return kept


def source_of(trainer: Trainer, data: Any, name: str, batch_size: int | None, limit: int | None = None) -> Source:
    """Data for one pass, checked; `name` is what errors call them."""
    trainer._find_workers()
    check.positive("batch_size", batch_size, whole=True)
    known = categories_of(trainer.model)
    source = plans.source_on(data, trainer.device, name, categories=known)
    check.can_be_read(source, name, known, limit)
    return source


def score(
    trainer: Trainer, source: Source, name: str, size: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """A pass over data that changes nothing; losses are computed a block at a time where that is the same."""
    objective, crew = trainer.eval_objectives[scoring(trainer.eval_objectives)], trainer._team
    metrics = crew.metrics(trainer.metrics.fresh(objective.reads, objective.ignores))
    joins = trainer._evaluates_plainly and len(trainer.eval_objectives) == 1
    at_rest = evaluate.mode(trainer._modules, training=False)
    with at_rest, rewound(source), once(trainer, source, size) as feed:
        batches = evaluate.limited(feed, limit, trainer._preemption.check_scoring)
        outcomes = evaluate.apart(trainer.evaluate_step, batches)
        if joins and isinstance(objective, Supervised) and objective.joins:
            read, scored = trainer._step.guard.read, [trainer.target] if metrics else []
            outcomes = evaluate.together(objective, trainer.model, batches, trainer.precision, read, scored)
        return evaluate.score(outcomes, name, metrics, objective, trainer.target, crew.scored)


def predict(trainer: Trainer, source: Source, batch_size: int | None) -> Any:
    """What the model returns for every row, in order, on the host."""
    objective = next(iter(trainer.eval_objectives.values()))
    at_rest = evaluate.mode(trainer._modules, training=False)
    with at_rest, rewound(source), once(trainer, source, batch_size) as feed:
        return evaluate.predictions(objective, trainer.model, feed, trainer.precision, trainer._team.gather)
