"""Passes over data that change nothing: scores of a model, and its predictions."""

import copy
from collections.abc import Callable, Iterator, Mapping
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
from .metric import Metrics
from .objective import Objective, Terms, first_call
from .precision import Precision
from .step import Outcome, as_outcome
from .tally import Tally


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
        for name, term in terms.items():
            full = name if len(objectives) == 1 else key if len(terms) == 1 else f"{key}/{name}"
            outcome.terms[full] = Term(read(term.sum) * term.times, read(term.weight), term.coefficient)
        if isinstance(terms, Terms):
            outcome.outputs.append((terms.outputs, batch))
    return outcome


def score(
    step: Callable[[Batch], Outcome],
    feed: Feed,
    name: str,
    metrics: Metrics,
    objective: Objective,
    target: str,
    limit: int | None = None,
) -> dict[str, Any]:
    """Loss, terms and metrics over one pass, by keys that begin with `name`."""
    tally, rows = Tally(), 0
    with torch.no_grad():
        for batch in feed:
            record(as_outcome(step(batch), "evaluate_step"), tally, metrics, objective, target)
            rows += batch.total
            if limit is not None and rows >= limit:
                break
    if not rows:
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
    with torch.no_grad():
        for batch in feed:
            with precision.context():
                held.append(
                    first_call(objective.outputs, model, batch) if not found else objective.outputs(model, batch)
                )
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
