"""Passes over data that change nothing: scores of a model, and its predictions."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .batch import Batch
from .data.source import Source
from .errors import DataError
from .feed import Feed
from .metric import Metrics
from .objective import Objective, Terms
from .precision import Precision
from .step import Measured, Outcome
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
    state = source.state_dict()
    yield
    if state is not None:
        source.load_state_dict(state)


def measure(objectives: Mapping[str, Objective], model: nn.Module, batch: Batch, precision: Precision) -> Outcome:
    """The terms and outputs of one batch, without gradients."""
    outcome = Outcome({})
    for key, objective in objectives.items():
        with torch.no_grad(), precision.context():
            terms = objective.terms(model, batch)
        for name, term in terms.items():
            full = name if len(objectives) == 1 else key if len(terms) == 1 else f"{key}/{name}"
            outcome.terms[full] = Measured(term.sum * term.times, term.weight, term.coefficient)
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
    for batch in feed:
        outcome = step(batch)
        record(outcome, tally, metrics, objective, target)
        rows += batch.total
        if limit is not None and rows >= limit:
            break
    if not rows:
        raise DataError(f"the {name} data gave no rows. Pass data with at least one.")
    return report(name, tally, metrics)


def record(outcome: Outcome, tally: Tally, metrics: Metrics, objective: Objective, target: str) -> None:
    """Adds one batch to what is reported later."""
    for name, term in outcome.terms.items():
        tally.add(name, term.sum, term.weight, term.coefficient)
    if metrics:
        for outputs, batch in outcome.outputs:
            scored = objective.scored(outputs)
            metrics.add(scored.detach() if isinstance(scored, Tensor) else scored, batch[target])


def report(name: str, tally: Tally, metrics: Metrics) -> dict[str, Any]:
    """What has been added up since the last report; it starts anew."""
    losses = tally.read()
    row: dict[str, Any] = {f"{name}/loss": losses.pop("")}
    row |= {f"{name}/loss/{term}": value for term, value in losses.items()}
    row |= {f"{name}/{metric}": value for metric, value in metrics.compute().items()}
    tally.reset()
    metrics.reset()
    return row


def predictions(objective: Objective, model: nn.Module, feed: Feed, precision: Precision) -> Any:
    """What the model returns for every row, in order, on the host; moved there a macrobatch at a time."""
    moved: list[Any] = []
    held: list[Any] = []
    place = 1
    with torch.no_grad():
        for batch in feed:
            if feed.macrobatch != place:
                moved.append(_joined(held))
                held, place = [], feed.macrobatch
            with precision.context():
                held.append(objective.outputs(model, batch))
    if held:
        moved.append(_joined(held))
    return _joined(moved)


def _joined(parts: list[Any]) -> Any:
    """Outputs of consecutive batches as one, on the host: tensors, or tuples, lists and dicts of them."""
    first = parts[0]
    if isinstance(first, Tensor):
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu()
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_joined(list(column)) for column in zip(*parts, strict=True)))
    if isinstance(first, tuple | list):
        return type(first)(_joined(list(column)) for column in zip(*parts, strict=True))
    return parts
