"""What an update, or a batch of a validation, showed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .batch import Batch
from .errors import ConfigError
from .field import Rows, map_tensors
from .loss import Term


@dataclass(slots=True)
class Outcome:
    """What an update, or a batch of a validation, showed: every term, and what the model returned.

    The terms are those of the whole update, their sums and weights numbers where the host knows them.
    """

    terms: dict[str, Term]
    outputs: list[tuple[Any, Batch]] = field(default_factory=list)
    applied: bool | Tensor = True
    """Whether the update was made; on a device perhaps a flag that the host has not read."""

    @property
    def losses(self) -> dict[str, Any]:
        """`total_loss` and every term, as means over the batch."""
        means = {name: _mean(term) for name, term in self.terms.items()}
        total = sum((self.terms[n].coefficient * mean for n, mean in means.items() if self.terms[n].coefficient), 0.0)
        return {"total_loss": total, **means}


def as_outcome(result: Any, giver: str) -> Outcome:
    """What a `train_step` or an `evaluate_step` may return: an Outcome, or losses by name."""
    if isinstance(result, Outcome):
        return result
    if not isinstance(result, Mapping):
        raise ConfigError(f"{giver} returns an Outcome or losses by name, got a {type(result).__name__}.")
    if not result:
        raise ConfigError(f"{giver} returned no losses. Name at least one: {{'loss': loss}}.")
    terms = {name: loss for name, loss in result.items() if name != "total_loss"} or {"loss": result["total_loss"]}
    return Outcome({name: Term(_number(loss), 1.0) for name, loss in terms.items()})


def merged(outcomes: Iterable[tuple[str, Outcome]], scored: str) -> Outcome:
    """Several updates as one outcome: a key's only term goes by the key, several by key and name.

    The outputs are those of the key that is `scored` by metrics.
    """
    whole = Outcome({})
    for key, outcome in outcomes:
        for name, term in outcome.terms.items():
            whole.terms[key if len(outcome.terms) == 1 else f"{key}/{name}"] = term
        whole.applied = whole.applied & outcome.applied
        whole.outputs += outcome.outputs if key == scored else []
    return whole


def detached(outputs: Any) -> Any:
    """Outputs without the graph that made them; `detach` of what is no tensor is its own affair."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if isinstance(outputs, Rows):
        return map_tensors(outputs, Tensor.detach)
    if isinstance(outputs, Mapping):
        return {key: detached(value) for key, value in outputs.items()}
    return tuple(map(detached, outputs)) if isinstance(outputs, tuple | list) else outputs


def _mean(term: Term) -> Any:
    if isinstance(term.weight, Tensor):
        return torch.where(term.weight > 0, term.sum / term.weight, torch.zeros_like(term.weight, dtype=torch.float32))
    return term.sum / term.weight if term.weight else 0.0


def _number(loss: Any) -> float | Tensor:
    return loss.detach() if isinstance(loss, Tensor) else float(loss)
