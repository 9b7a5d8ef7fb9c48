"""Passes over data that change nothing: scores of a model, and its predictions."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .batch import Batch
from .data.source import Source
from .errors import DataError
from .feed import Feed
from .guard import Scalar
from .loss import Term
from .metric import BLOCK_BYTES, Metrics
from .objective import Objective, Supervised, Terms, first_call
from .precision import Precision
from .step import Outcome, as_outcome
from .tally import Tally

BLOCK_BATCHES = 64  # as many batches at most wait for their loss to be computed together


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Train or eval mode for a while; every module gets its own mode back.

    A model that is in train mode keeps the modules that its owner has put in eval mode.
    """
    before = [(module, module.training) for module in model.modules()]
    if not training or not model.training:
        model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


@contextmanager
def rewound(source: Source) -> Iterator[None]:
    """A source that stands afterwards where it stood before, if it can."""
    state = copy.deepcopy(source.state_dict())
    try:
        yield
    finally:
        if state is not None:
            source.load_state_dict(state)


def measure(
    objectives: Mapping[str, Objective],
    model: nn.Module,
    batch: Batch,
    precision: Precision,
    read: Callable[[Scalar], Scalar],
) -> Outcome:
    """The terms and outputs of one batch."""
    outcome = Outcome({})
    for key, objective in objectives.items():
        with precision.context():
            terms = objective.terms(model, batch)
        found = _read(terms, batch, read)
        outcome.outputs += found.outputs
        for name, term in found.terms.items():
            full = name if len(objectives) == 1 else key if len(terms) == 1 else f"{key}/{name}"
            outcome.terms[full] = term
    return outcome


def _bytes(outputs: Any) -> int:
    if type(outputs) is Tensor:
        return outputs.nbytes
    return sum(leaf.nbytes for leaf in tree_flatten(outputs)[0] if isinstance(leaf, Tensor))


def _read(terms: Mapping[str, Term], batch: Batch, read: Callable[[Scalar], Scalar]) -> Outcome:
    """Terms as numbers, with the outputs that they come from."""
    found = {
        name: Term(read(term.sum) * term.times, read(term.weight), term.coefficient) for name, term in terms.items()
    }
    return Outcome(found, [(terms.outputs, batch)] if isinstance(terms, Terms) else [])


def _block(held: list[tuple[Any, Batch]], streams: list[str]) -> tuple[Batch, Any]:
    """Consecutive batches and their outputs as one; of the streams, those that the loss compares with."""
    if len(held) == 1:
        outputs, batch = held[0]
        return batch, outputs
    fields = {name: torch.cat([batch[name] for _, batch in held]) for name in streams}
    return Batch(fields, sum(batch.rows for _, batch in held)), _joined([outputs for outputs, _ in held])


def limited(feed: Iterable[Batch], limit: int | None) -> Iterator[Batch]:
    """The batches of a pass up to the one with which their rows reach the limit."""
    rows = 0
    for batch in feed:
        yield batch
        rows += batch.total
        if limit is not None and rows >= limit:
            return


def together(
    objective: Supervised,
    model: nn.Module,
    batches: Iterable[Batch],
    precision: Precision,
    read: Callable[[Scalar], Scalar],
) -> Iterator[Outcome]:
    """The outcomes of a pass: the model sees a batch at a time, the loss a block of outputs."""
    held: list[tuple[Any, Batch]] = []
    size = 0

    def judged() -> Outcome:
        block, outputs = _block(held, objective.compared())
        with precision.context():
            return _read(objective.judge(model, outputs, block), block, read)

    for batch in batches:
        with precision.context():
            outputs = objective.answers(model, batch)
        held.append((outputs, batch))
        size += _bytes(outputs)
        if size >= BLOCK_BYTES or len(held) == BLOCK_BATCHES:
            yield judged()
            held, size = [], 0
    if held:
        yield judged()


def apart(step: Callable[[Batch], Any], batches: Iterable[Batch]) -> Iterator[Outcome]:
    """The outcomes of a pass, a batch at a time."""
    for batch in batches:
        yield as_outcome(step(batch), "evaluate_step")


def score(
    outcomes: Iterable[Outcome], name: str, metrics: Metrics, objective: Objective, target: str
) -> dict[str, Any]:
    """Loss, terms and metrics over one pass, by keys that begin with `name`."""
    tally, found = Tally(), False
    with torch.no_grad():
        for outcome in outcomes:
            record(outcome, tally, metrics, objective, target)
            found = True
    if not found:
        raise DataError(f"the {name} data gave no rows. Pass data with at least one.")
    return report(name, tally, metrics)


def record(outcome: Outcome, tally: Tally, metrics: Metrics, objective: Objective, target: str) -> None:
    """Adds one batch to what is reported later; an update that was left out does not count."""
    if outcome.applied is False:
        return
    for name, term in outcome.terms.items():
        total, weight = term.sum, term.weight
        if isinstance(outcome.applied, Tensor):
            total = torch.where(outcome.applied, total, 0.0) if isinstance(total, Tensor) else total * outcome.applied
            weight = weight * outcome.applied
        tally.add(name, total, weight, term.coefficient)
    if metrics:
        for outputs, batch in outcome.outputs:
            scored = objective.scored(outputs)
            metrics.add(scored.detach() if isinstance(scored, Tensor) else scored, batch[target])


def report(name: str, tally: Tally, metrics: Metrics) -> dict[str, Any]:
    """What has been added up since the last report, if anything; it starts anew."""
    losses = tally.read()
    row: dict[str, Any] = {f"{name}/loss{'/' if term else ''}{term}": value for term, value in losses.items()}
    row |= {f"{name}/{metric}": value for metric, value in metrics.compute().items()}
    tally.reset()
    metrics.reset()
    return row


def predictions(objective: Objective, model: nn.Module, feed: Feed, precision: Precision) -> Any:
    """What the model returns for every row, in order, on the host; moved there a macrobatch at a time."""
    found: list[list[Any]] = []
    held: list[Any] = []
    outputs = objective.outputs if type(objective).outputs is not Objective.outputs else objective.call
    with torch.no_grad(), precision.context():
        for batch in feed:
            held.append(outputs(model, batch) if held or found else first_call(outputs, model, batch))
            if feed.ends_macrobatch:
                found.append(held if feed.device.type == "cpu" else _on_host(held))
                held = []
    if not found:
        raise DataError("the predict data gave no rows. Pass data with at least one.")
    return _joined([output for part in found for output in part])


def _on_host(outputs: list[Any]) -> list[Any]:
    """Consecutive outputs on the host; tensors are joined before they travel."""
    if all(isinstance(leaf, Tensor) for leaf in tree_flatten(outputs[0])[0]):
        outputs = [_joined(outputs)]
    return [tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, part) for part in outputs]


def _joined(outputs: list[Any]) -> Any:
    """Consecutive outputs as one: tensors end to end, whatever they are held in; other things in a list."""
    if all(type(output) is Tensor and output.dim() for output in outputs):
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    form = tree_flatten(outputs[0])[1]
    columns = zip(*(tree_flatten(output)[0] for output in outputs), strict=True)
    return tree_unflatten([_column(list(leaves)) for leaves in columns], form)


def _column(leaves: list[Any]) -> Any:
    """One part of consecutive outputs: tensors with rows end to end, single numbers as a row each, others in a list."""
    if not isinstance(leaves[0], Tensor):
        return leaves
    return torch.cat(leaves) if leaves[0].dim() else torch.stack(leaves)
