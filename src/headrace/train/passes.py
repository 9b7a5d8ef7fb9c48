"""Passes over data that train nothing, and the scores that they give."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.batch import Batch, concat
from ..data.feed import Feed
from ..data.shard import WHOLE
from ..data.source import Source
from ..data.wrapped import rewound
from ..errors import DataError
from ..formats.frames import is_frame
from ..loss.base import Term
from ..loss.objective import Supervised, Terms, measured_by, scoring, terms_of
from ..loss.outcome import Outcome, as_outcome, merged
from ..loss.tally import BLOCK_BYTES, Tally
from ..step import check
from ..step.arguments import data_sets, source_on
from ..step.settings import mode
from ..step.weights import encoding_of
from ..store import rng
from ..watch.callback import Callback
from ..watch.passes import PassCallbacks
from .plan import all_callbacks

if TYPE_CHECKING:
    from .trainer import Trainer

AddUp = Callable[[Tally], tuple[dict[str, float], dict[str, Any]]]
"""Losses and metrics of the rows of this worker and of others."""


def validate(
    trainer: Trainer, data: Any, name: str, batch_size: int | None, limit: int | None, callbacks: Sequence[Callback]
) -> dict[str, Any]:
    """See `Trainer.validate`."""
    row: dict[str, Any] = {}
    known = trainer.last_training.trained_on or trainer.last_training.streams
    for each, one_set in data_sets(data, name, known, trainer.target).items():
        source = source_of(trainer, one_set, each, batch_size, limit)
        for objective in trainer.eval_objectives.values():
            objective.prepare(source.streams, {each: check.columns_of(source)})
        if trainer.metrics:
            check.measurable(trainer.eval_objectives, source.streams, trainer.target, trainer.metrics.by_output)
        row |= score(trainer, source, each, batch_size, limit, callbacks)
    return row


def score(
    trainer: Trainer,
    source: Source,
    name: str,
    batch_size: int | None = None,
    limit: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Loss, terms and metrics over one pass, by keys that begin with `name`.

    Losses are computed a block at a time where that is the same.
    """
    objectives, workers = trainer.eval_objectives, trainer.workers
    objective, compared = objectives[scoring(objectives)], measured_by(objectives, trainer.target)
    shares = all(each.splits for each in objectives.values())  # otherwise each worker scores all rows
    tally = (
        workers.tally(trainer.metrics, compared) if shares else Tally(trainer.metrics, compared, device=trainer.device)
    )
    joins = not trainer.has_own_evaluate_step and len(objectives) == 1
    parts = trainer.strategy.parts if shares else 0
    with one_pass(trainer, source, batch_size, shares, times=parts or 1) as feed:
        joined = objective if joins and isinstance(objective, Supervised) and objective.joins else None
        answers = trainer.evaluate_step if joined is None else partial(joined.answers, trainer.model)
        limited = _limited(trainer, in_step(trainer, feed, answers), limit)
        batches = with_callbacks(trainer, callbacks, feed, limited)
        if parts:
            batches = _parts(trainer, name, batches)
        outcomes: Iterable[Outcome] = map(partial(_by_step, trainer), batches)
        if joined is not None:
            outcomes = _by_block(trainer, joined, batches, tally.targets, watched=bool(callbacks))
        with torch.no_grad():
            for outcome in outcomes:
                tally.add(outcome)
        row = report(name, tally, workers.scored if shares else workers.scored_by_each)
    if not row:
        raise DataError(f"the {name} data gave no rows. Pass data with at least one.")
    return row


def measure(trainer: Trainer, batch: Batch) -> Outcome:
    """The terms of one batch, and the outputs, which have to be there for metrics."""
    outcomes, compared = {}, scoring(trainer.eval_objectives)
    for key, objective in trainer.eval_objectives.items():
        with trainer.precision.context():
            outcome = outcomes[key] = _read(trainer, terms_of(objective, trainer.model, batch), batch)
            if trainer.metrics and key == compared and not outcome.outputs:
                outcome.outputs.append((objective.outputs(trainer.model, batch), batch))
    return outcome if len(outcomes) == 1 else merged(outcomes.items(), compared)


def report(name: str, tally: Tally, add_up: AddUp) -> dict[str, Any]:
    """The row of what was added since the last report, which is then forgotten; empty if nothing was."""
    weights, unmeasured = tally.weights, tally.metrics if tally.lacks_outputs else []
    losses, scores = add_up(tally)
    if empty := [term for term, loss in losses.items() if weights.get(term) == 0 and math.isnan(loss)]:
        warnings.warn(
            f"{name}: no row counted for {', '.join(empty)}, whose loss is NaN. Look at the labels that are ignored, "
            "and at the weights of rows and classes.",
            stacklevel=2,
        )
    if losses and unmeasured and not scores:
        warnings.warn(
            f"{', '.join(f'{name}/{metric}' for metric in unmeasured)}: not measured, for want of outputs. An "
            "Objective gives them as hr.Terms with .outputs, a train_step or an evaluate_step as "
            "hr.Outcome(losses, outputs).",
            stacklevel=2,
        )
    hidden = {"total_loss"}
    if losses.keys() == {"", "loss"} and not abs(losses[""] - losses["loss"]) > 0:  # the same, perhaps both NaN
        hidden.add("loss")
    row: dict[str, Any] = {
        f"{name}/loss{'/' if term else ''}{term}": value for term, value in losses.items() if term not in hidden
    }
    row |= {f"{name}/{metric}": value for metric, value in scores.items()}
    tally.reset()
    return row


def source_of(trainer: Trainer, data: Any, name: str, batch_size: int | None, limit: int | None = None) -> Source:
    """Data for one pass, checked; `name` is what errors call them."""
    check.positive("batch_size", batch_size, whole=True)
    known = encoding_of(trainer.model)
    source = source_on(data, trainer.device, name, encoding=known)
    check.positive("limit", limit, whole=True)
    check.ends(source, name, limit)
    check.same_encoding(known, source.encoding, name)
    if known is not None and (is_frame(data) or isinstance(data, str | Path)):  # which may lack what the model is given
        for scorer in trainer.eval_objectives.values():
            scorer.check_order([s.name for s in known.streams], [s.name for s in source.streams], f"the {name}")
    return source


@contextmanager
def one_pass(
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
    with mode(trainer.all_modules, training=False), rewound(source), feed, trainer.strategy.passing():
        yield feed


def in_step(trainer: Trainer, feed: Iterable[Batch], call: Callable[[Batch], Any]) -> Iterable[Batch]:
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


def with_callbacks(
    trainer: Trainer, callbacks: Sequence[Callback], feed: Feed, batches: Iterable[Batch]
) -> Iterable[Batch]:
    """The batches of a pass, after each of which callbacks are called."""
    if not callbacks:
        return batches
    called = all_callbacks(callbacks, False, False, leader=trainer.workers.comm.leader)
    return PassCallbacks(trainer, called)(feed, batches)


def _limited(trainer: Trainer, feed: Iterable[Batch], limit: int | None) -> Iterator[Batch]:
    """The batches of a pass up to the one with which their rows reach the limit, unless the training is to end."""
    rows = 0
    for batch in feed:
        trainer.signals.check_scoring()
        if batch.rows:  # a worker may have none of a small one
            yield batch
        rows += batch.total
        if limit is not None and rows >= limit:
            return


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


def _by_step(trainer: Trainer, batch: Batch) -> Outcome:
    return replace(as_outcome(trainer.evaluate_step(batch), "evaluate_step", batch), part=batch.part)


def _read(trainer: Trainer, terms: Mapping[str, Term], batch: Batch) -> Outcome:
    """Terms as numbers, with the outputs that they come from."""
    read = trainer.updates.guard.read
    found = {
        name: Term(read(term.sum) * term.times, read(term.weight), term.coefficient, counts=term.counts)
        for name, term in terms.items()
    }
    return Outcome(found, [(terms.outputs, batch)] if isinstance(terms, Terms) else [], part=batch.part)


# --- outcomes by block ------------------------------------------------------------------------------------


def _by_block(
    trainer: Trainer, objective: Supervised, batches: Iterable[Batch], scored: Sequence[str], watched: bool
) -> Iterator[Outcome]:
    """The outcomes of a pass: the model is called once for each batch, the loss once for a block of outputs.

    A block has only the streams that the loss compares with, or metrics do: those `scored`. `watched`: callbacks are
    called after each batch.
    """
    model, precision, tapes = trainer.model, trainer.precision, trainer.updates.answers(objective, watched)

    def outputs_of(batch: Batch) -> Any:
        with precision.context():
            return tapes.outputs(batch, partial(objective.answers, model))

    streams = list(dict.fromkeys([*objective.compared(), *scored]))
    for outputs, batch in _blocks(((outputs_of(batch), batch) for batch in batches), streams):
        with precision.context():
            yield _read(trainer, objective.terms(model, batch, outputs), batch)


def _blocks(pairs: Iterable[tuple[Any, Batch]], streams: Sequence[str]) -> Iterator[tuple[Any, Batch]]:
    """Joins consecutive outputs, as long as each is one tensor with a row for each of its batch."""
    blocks: dict[int, _Block] = {}  # those of each part of a batch have a block of their own
    for outputs, batch in pairs:
        few = Batch({name: batch[name] for name in streams}, batch.rows)
        fields: list[Any] = [outputs, *few.fields.values()]
        joins = all(type(field) is Tensor and field.dim() > 0 and len(field) == batch.rows for field in fields)
        shapes = [field.shape[1:] for field in fields] if joins else []
        block = blocks.get(batch.part)
        if block is not None and (block.shapes != shapes or block.size >= BLOCK_BYTES):
            yield blocks.pop(batch.part).joined(batch.part)
            block = None
        if not joins:
            yield outputs, batch
            continue
        block = block or blocks.setdefault(batch.part, _Block(shapes))
        block.pairs.append((outputs, few))
        block.size += sum(field.nbytes for field in fields)
    for part, block in blocks.items():
        yield block.joined(part)


@dataclass(slots=True)
class _Block:
    """Consecutive outputs, whose rows have these shapes, with the batches that they are of."""

    shapes: list[torch.Size]
    pairs: list[tuple[Tensor, Batch]] = field(default_factory=list)
    size: int = 0

    def joined(self, part: int) -> tuple[Tensor, Batch]:
        batches = [batch for _, batch in self.pairs]
        batch = Batch(concat(batches), sum(batch.rows for batch in batches))
        batch.part = part
        return torch.cat([outputs for outputs, _ in self.pairs]), batch
