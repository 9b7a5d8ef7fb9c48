"""Passes over data that change nothing: scores and predictions of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..adapters.samples import CollatedSource
from ..data.batch import Batch
from ..data.feed import Feed
from ..data.shard import WHOLE
from ..data.source import Source
from ..data.wrapped import rewound
from ..loss.objective import Supervised, measured_by, scoring
from ..loss.outcome import Outcome, as_outcome
from ..loss.tally import Tally
from ..step import check, evaluate
from ..step.arguments import data_sets, source_on
from ..step.weights import encoding_of
from ..store import rng
from ..watch.callback import Callback
from ..watch.passes import PassCallbacks
from .plan import all_callbacks

if TYPE_CHECKING:
    from .trainer import Trainer


def validate(
    trainer: Trainer, data: Any, name: str, batch_size: int | None, limit: int | None, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    """See `Trainer.validate`."""
    row: dict[str, Any] = {}
    known = trainer.last_training.trained_on or trainer.last_training.streams
    for each, one_set in data_sets(data, name, known, trainer.target).items():
        source = _source_of(trainer, one_set, each, batch_size, limit)
        for objective in trainer.eval_objectives.values():
            objective.prepare(source.streams, {each: check.columns_of(source)})
        if trainer.metrics:
            check.measurable(trainer.eval_objectives, source.streams, trainer.target, trainer.metrics.by_output)
        row |= score(trainer, source, each, batch_size, limit, callbacks)
    return row


def predict(trainer: Trainer, data: Any, batch_size: int | None, callbacks: Sequence[Callback]) -> Any:
    """See `Trainer.predict`."""
    if isinstance(data, CollatedSource):
        data = data.in_order()
    source = _source_of(trainer, data, "predict", batch_size)
    objective = next(iter(trainer.eval_objectives.values()))
    with _once(trainer, source, batch_size) as feed:
        outputs = partial(evaluate.outputs_of(objective), trainer.model)
        batches = _with_callbacks(trainer, callbacks, feed, _in_step(trainer, feed, outputs))
        tapes = trainer.updates.answers(objective, bool(callbacks))
        how = batches, trainer.precision, trainer.workers.gather, tapes
        return evaluate.predictions(objective, trainer.model, feed, *how)


def score(
    trainer: Trainer,
    source: Source,
    name: str,
    batch_size: int | None = None,
    limit: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Loss and metrics over data; losses are computed a block at a time where that is the same."""
    objective, team = trainer.eval_objectives[scoring(trainer.eval_objectives)], trainer.workers
    shares = all(each.splits for each in trainer.eval_objectives.values())  # otherwise each worker scores all rows
    compared = measured_by(trainer.eval_objectives, trainer.target)
    tally = team.tally(trainer.metrics, compared) if shares else Tally(trainer.metrics, compared, device=trainer.device)
    joins = not trainer.has_own_evaluate_step and len(trainer.eval_objectives) == 1
    parts = trainer.strategy.parts if shares else 0
    with _once(trainer, source, batch_size, shares, times=parts or 1) as feed:
        joined = objective if joins and isinstance(objective, Supervised) and objective.joins else None
        answers = trainer.evaluate_step if joined is None else partial(joined.answers, trainer.model)
        limited = evaluate.limited(_in_step(trainer, feed, answers), limit, trainer.signals.check_scoring)
        batches = _with_callbacks(trainer, callbacks, feed, limited)
        if parts:
            batches = _parts(trainer, name, batches)
        outcomes: Iterable[Outcome] = (
            replace(as_outcome(trainer.evaluate_step(batch), "evaluate_step", batch), part=batch.part)
            for batch in batches
        )
        if joined is not None:
            read, scored = trainer.updates.guard.read, tally.targets
            tapes = trainer.updates.answers(objective, bool(callbacks))
            outcomes = evaluate.outcomes_by_block(
                joined, trainer.model, batches, trainer.precision, read, scored, tapes
            )
        return evaluate.score(outcomes, name, tally, team.scored if shares else team.scored_by_each)


def _in_step(trainer: Trainer, feed: Iterable[Batch], call: Callable[[Batch], Any]) -> Iterable[Batch]:
    """The batches of a pass. Where a model is sharded, a worker without rows calls it too, with those of before."""
    return _calling_in_step(trainer, feed, call) if trainer.strategy.shards else feed


def _calling_in_step(trainer: Trainer, feed: Iterable[Batch], call: Callable[[Batch], Any]) -> Iterator[Batch]:
    last: Batch | None = None
    for batch in feed:
        if batch.rows:
            last = batch
        else:
            with torch.no_grad(), trainer.precision.context():
                call(last or trainer.updates.stand_ins.rows)
        yield batch


def _parts(trainer: Trainer, name: str, batches: Iterable[Batch]) -> Iterator[Batch]:
    """This worker's parts of batches that are scored. What a model draws for one is keyed, as in an update."""
    before, key = rng.capture(trainer.device), f"{trainer.seed} {name} {trainer.updates.count}"
    try:
        for number, batch in enumerate(batches):
            for part in trainer.workers.cut(batch):
                rng.seed(f"{key} {number} {part.part}", trainer.device)
                yield part
    finally:
        rng.restore(before, trainer.device)


@contextmanager
def _once(
    trainer: Trainer, source: Source, batch_size: int | None, shares: bool = True, times: int = 1
) -> Iterator[Feed]:
    """The batches of one pass over data in eval mode; this worker's part of them if they are shared.

    `times`: how many times as many rows a batch has as pass the model at once.
    """
    feed = Feed(
        source,
        trainer.device,
        batch_size=(batch_size or trainer.batch_sizes.first) * times,
        macrobatch=trainer.macrobatch,
        waiting=trainer.signals.check_scoring,
        shard=trainer.workers.shard if shares else WHOLE,
        once=True,
    )
    with evaluate.mode(trainer.all_modules, training=False), rewound(source), feed, trainer.strategy.passing():
        yield feed


def _source_of(trainer: Trainer, data: Any, name: str, batch_size: int | None, limit: int | None = None) -> Source:
    """Data for one pass, checked; `name` is what errors call them."""
    check.positive("batch_size", batch_size, whole=True)
    known = encoding_of(trainer.model)
    source = source_on(data, trainer.device, name, encoding=known)
    check.positive("limit", limit, whole=True)
    check.ends(source, name, limit)
    check.same_encoding(known, source.encoding, name)
    return source


def _with_callbacks(
    trainer: Trainer, callbacks: Sequence[Callback], feed: Feed, batches: Iterable[Batch]
) -> Iterable[Batch]:
    """The batches of a pass, after each of which callbacks are called."""
    if not callbacks:
        return batches
    called = all_callbacks(callbacks, False, False, leader=trainer.workers.comm.leader)
    return PassCallbacks(trainer, called)(feed, batches)
