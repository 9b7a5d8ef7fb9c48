"""Passes over data that change nothing: scores of a model, and its predictions."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..data.batch import Batch, concat
from ..data.feed import Feed
from ..data.fields import Rows, cat, map_tensors
from ..data.ragged import Ragged
from ..data.shard import Shard
from ..errors import CheckpointError, DataError
from ..loss.base import Term
from ..loss.call import first_call
from ..loss.objective import Objective, Supervised, Terms, scoring, terms_of
from ..loss.outcome import Outcome, merged
from ..loss.tally import BLOCK_BYTES, Tally
from ..workers.comm import Comm
from .guard import Scalar
from .settings import Precision
from .tape.tapes import Tapes


@contextmanager
def mode(models: Sequence[nn.Module], training: bool) -> Iterator[None]:
    """Train or eval mode for a while; every module gets its own mode back.

    A model that is in train mode keeps the modules that its owner has put in eval mode. A `train` or an `eval` of the
    user's own is called, as a loop calls it: it may keep a layer in eval mode, or change weights.
    """
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        if not training:
            model.eval()
        elif not model.training:
            model.train()
        elif any(map(_has_own_mode, model.modules())):
            rests = [module for module in model.modules() if not module.training]
            model.train()
            _put_back((module, False) for module in rests)
    try:
        yield
    finally:
        _put_back(before)


def _put_back(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Gives modules these modes, each module before those in it."""
    for module, was in modes:
        if module.training is was:
            continue
        if _has_own_mode(module):
            module.train(was)
        else:
            module.training = was


def _has_own_mode(module: nn.Module) -> bool:
    """Whether its `train` is not torch's."""
    return getattr(module.train, "__func__", None) is not nn.Module.train


def measure(
    objectives: Mapping[str, Objective],
    model: nn.Module,
    batch: Batch,
    precision: Precision,
    read: Callable[[Scalar], Scalar],
    scored: bool,
) -> Outcome:
    """The terms of one batch, and the outputs, which have to be there if they are `scored` by metrics."""
    outcomes, compared = {}, scoring(objectives)
    for key, objective in objectives.items():
        with precision.context():
            outcome = outcomes[key] = _read(terms_of(objective, model, batch), batch, read)
            if scored and key == compared and not outcome.outputs:
                outcome.outputs.append((objective.outputs(model, batch), batch))
    return outcome if len(outcomes) == 1 else merged(outcomes.items(), compared)


def _read(terms: Mapping[str, Term], batch: Batch, read: Callable[[Scalar], Scalar]) -> Outcome:
    """Terms as numbers, with the outputs that they come from."""
    found = {
        name: Term(read(term.sum) * term.times, read(term.weight), term.coefficient, counts=term.counts)
        for name, term in terms.items()
    }
    return Outcome(found, [(terms.outputs, batch)] if isinstance(terms, Terms) else [], part=batch.part)


def limited(feed: Iterable[Batch], limit: int | None, check: Callable[[], None]) -> Iterator[Batch]:
    """The batches of a pass up to the one with which their rows reach the limit; `check` is called before each."""
    rows = 0
    for batch in feed:
        check()
        if batch.rows:  # a worker may have none of a small one
            yield batch
        rows += batch.total
        if limit is not None and rows >= limit:
            return


def outcomes_by_block(
    objective: Supervised,
    model: nn.Module,
    batches: Iterable[Batch],
    precision: Precision,
    read: Callable[[Scalar], Scalar],
    scored: Sequence[str],
    tapes: Tapes,
) -> Iterator[Outcome]:
    """The outcomes of a pass: the model is called once for each batch, the loss once for a block of outputs.

    A block has only the streams that the loss compares with, or metrics do: those `scored`.
    """

    def outputs_of(batch: Batch) -> Any:
        with precision.context():
            return tapes.outputs(batch, lambda batch: objective.answers(model, batch))

    streams = list(dict.fromkeys([*objective.compared(), *scored]))
    for outputs, batch in _blocks(((outputs_of(batch), batch) for batch in batches), streams):
        with precision.context():
            yield _read(objective.terms(model, batch, outputs), batch, read)


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


AddUp = Callable[[Tally], tuple[dict[str, float], dict[str, Any]]]
"""Losses and metrics of the rows of this worker and of others."""


def score(outcomes: Iterable[Outcome], name: str, tally: Tally, add_up: AddUp) -> dict[str, Any]:
    """Loss, terms and metrics over one pass, by keys that begin with `name`."""
    with torch.no_grad():
        for outcome in outcomes:
            tally.add(outcome)
    row = report(name, tally, add_up)
    if not row:
        raise DataError(f"the {name} data gave no rows. Pass data with at least one.")
    return row


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


Gather = Callable[[list[Any], Sequence[int]], list[Any]]
"""The outputs of all workers, batch by batch, from those of this one and the rows of each whole batch."""


def predictions(
    objective: Objective,
    model: nn.Module,
    feed: Feed,
    batches: Iterable[Batch],
    precision: Precision,
    gather: Gather | None,
    tapes: Tapes,
) -> Any:
    """What the model returns for every row, in order, on the host; moved there a macrobatch at a time."""
    on_host: list[Any] = []
    on_device: list[Any] = []
    totals: list[int] = []
    outputs = outputs_of(objective)
    with torch.no_grad(), precision.context():
        for batch in batches:
            totals.append(batch.total)
            if not batch.rows:  # a worker may have none of a small batch
                pass
            elif on_device or on_host:
                on_device.append(tapes.outputs(batch, partial(outputs, model)))
            else:
                on_device.append(first_call(outputs, model, batch))
                if outputs is objective.call:  # the streams stay what they are: no need to ask again
                    outputs = objective.call.way(tuple(batch.fields))
            if feed.ends_macrobatch:
                on_host += on_device if feed.device.type == "cpu" else _to_host(on_device, join=gather is None)
                on_device = []
    if gather is not None:
        on_host = gather(on_host, totals)
    if not on_host:
        raise DataError("the predict data gave no rows. Pass data with at least one.")
    joined = _joined(on_host)
    return tree_map(lambda leaf: map_tensors(leaf, _as_float), joined) if precision.halves else joined


def outputs_of(objective: Objective) -> Callable[[nn.Module, Batch], Any]:
    """What calls a model for predictions."""
    return objective.outputs if type(objective).outputs is not Objective.outputs else objective.call


def _as_float(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _to_host(outputs: list[Any], join: bool) -> list[Any]:
    """Consecutive outputs on the host; `join`: tensors may be joined, which makes one copy of them."""
    if outputs and join and all(isinstance(leaf, Tensor) for leaf in tree_flatten(outputs[0])[0]):
        outputs = [_joined(outputs)]
    return [
        tree_map(lambda leaf: leaf.to("cpu") if isinstance(leaf, Tensor | Rows) else leaf, part) for part in outputs
    ]


def _joined(outputs: list[Any]) -> Any:
    """Consecutive outputs as one: tensors end to end, whatever they are held in; other things in a list."""
    if all(type(output) is Tensor and output.dim() for output in outputs):
        return _column(outputs) if len(outputs) > 1 else outputs[0]
    if isinstance(outputs[0], PackedSequence):
        raise DataError(
            "a PackedSequence of several batches cannot be joined. Return a Ragged: words.with_padded(...)."
        )
    form = tree_flatten(outputs[0])[1]
    if any(tree_flatten(output)[1] != form for output in outputs):
        raise DataError("the model returns several kinds of outputs, or dicts with keys in another order: return one.")
    columns = zip(*(tree_flatten(output)[0] for output in outputs), strict=True)
    return tree_unflatten([_column(list(leaves)) for leaves in columns], form)


def _column(leaves: list[Any]) -> Any:
    """One part of consecutive outputs: tensors with rows end to end, single numbers as a row each, others in a list."""
    if isinstance(leaves[0], Rows):
        return cat(leaves)
    if not isinstance(leaves[0], Tensor):
        return leaves
    if len({leaf.shape[1:] for leaf in leaves}) > 1:
        shapes = " and ".join(sorted({str(list(leaf.shape)) for leaf in leaves})[:2])
        raise DataError(
            f"the outputs of several batches, of shape {shapes}, cannot be joined. For sequences, return a Ragged: "
            "words.with_values(...) or words.with_padded(...)."
        )
    return torch.cat(leaves) if leaves[0].dim() else torch.stack(leaves)


RAGGED = "headrace.Ragged"


def gathered(comm: Comm, shard: Shard, outputs: list[Any], totals: Sequence[int]) -> list[Any]:
    """The outputs of all workers in the order of the rows; `totals`: how many rows each batch has."""
    try:
        flat = [tree_flatten(output) for output in outputs]
        every = comm.all_gather([[_sent(leaf) for leaf in leaves] for leaves, _ in flat])
    except CheckpointError as error:
        raise DataError(f"what several workers predict has to be made of tensors: {error}") from None
    rest = [iter(sent) for sent in every]
    shards = [replace(shard, index=k) for k in range(comm.count)]
    joined: list[Any] = []
    for total in totals:
        for shard, theirs in zip(shards, rest, strict=True):
            start, stop = shard.of(total)
            if start < stop:
                leaves = [_received(leaf) for leaf in next(theirs)]
                if flat:
                    joined.append(tree_unflatten(leaves, flat[0][1]))
                else:  # this worker had no rows, and does not know the form
                    joined.append(leaves[0] if len(leaves) == 1 else tuple(leaves))
    return joined


def _sent(leaf: Any) -> Any:
    """A part of an output as it travels: sequences as what they are made of."""
    return {RAGGED: [_sent(leaf.values), leaf.offsets]} if isinstance(leaf, Ragged) else leaf


def _received(sent: Any) -> Any:
    """What `_sent` was given."""
    return Ragged(*map(_received, sent[RAGGED])) if isinstance(sent, dict) else sent
