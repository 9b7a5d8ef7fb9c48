"""The result of an update, or of a batch of a validation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.fields import Rows, map_tensors
from ..errors import ConfigError
from .base import Term


@dataclass(slots=True)
class Outcome:
    """The result of an update, or of a batch of a validation: every term, and the outputs of the model.

    The terms are those of the complete update; their sums and weights are numbers if the host knows them. A
    `train_step` or an `evaluate_step` may instead return losses by name, as means over the rows of its batch, and
    outputs.
    """

    terms: dict[str, Any]
    outputs: Any = field(default_factory=list)
    """What the model returned, with the batch that it was given, for each of its calls."""
    applied: bool | Tensor = True
    """Whether the update was made; on a device perhaps a flag that the host has not read."""
    part: int = 0
    """The part of a batch that was scored, if it was cut into parts."""

    @property
    def losses(self) -> dict[str, Any]:
        """`total_loss` and every term, as means over the batch; a prior times its coefficient."""
        terms = {name: reported(term) for name, term in self.terms.items()}
        means = {name: _mean(term) for name, term in terms.items()}
        total = sum((terms[n].coefficient * mean for n, mean in means.items() if terms[n].coefficient), 0.0)
        return {"total_loss": total, **means}


def as_outcome(result: Any, giver: str, batch: Batch) -> Outcome:
    """What a `train_step` or an `evaluate_step` of this batch may return: an Outcome, or losses by name.

    Losses that come as numbers are means over the rows of the batch; of several, "total_loss" or "loss" is the whole,
    and the others are its parts. Outputs that come without a batch are of this one.
    """
    given = result.terms if isinstance(result, Outcome) else result
    if not isinstance(given, Mapping):
        raise ConfigError(f"{giver} returns an Outcome or losses by name, got a {type(given).__name__}.")
    if not given and given is result:
        raise ConfigError(f"{giver} returned no losses. Name at least one: {{'loss': loss}}.")
    named = {"loss": given["total_loss"]} if list(given) == ["total_loss"] else dict(given)
    if len(named) > 1 and "total_loss" not in named and not isinstance(named.get("loss"), Term | None):
        named = {"total_loss": named.pop("loss"), **named}
    outcome = Outcome({name: _term(loss, batch.rows, f"{giver}: the loss {name!r}") for name, loss in named.items()})
    if "total_loss" in named:  # the others are parts of it, with coefficients that it alone knows
        for name, term in outcome.terms.items():
            outcome.terms[name] = replace(term, coefficient=float(name == "total_loss"))
    if isinstance(result, Outcome):
        outcome.outputs = result.outputs if _are_pairs(result.outputs) else [(detached(result.outputs), batch)]
        outcome.applied = result.applied
    return outcome


def reported(term: Term) -> Term:
    """The term as reports have it: a prior, which `counts` for nothing, times its coefficient."""
    return term if term.counts else Term(term.sum * term.coefficient, term.weight, counts=False)


def merged(outcomes: Iterable[tuple[str, Outcome]], scored: str) -> Outcome:
    """Several updates as one outcome: a key's only term goes by the key, several by key and name.

    The outputs are those of the key that is `scored` by metrics.
    """
    joint = Outcome({})
    for key, outcome in outcomes:
        for name, term in outcome.terms.items():
            joint.terms[key if len(outcome.terms) == 1 else f"{key}/{name}"] = term
        joint.applied = joint.applied & outcome.applied
        joint.outputs += outcome.outputs if key == scored else []
    return joint


def detached(outputs: Any) -> Any:
    """Outputs without their graph; objects that are no tensors stay as they are."""
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


def _are_pairs(outputs: Any) -> bool:
    """Whether outputs come with the batches that they are of."""
    return type(outputs) is list and all(
        type(each) is tuple and len(each) == 2 and isinstance(each[1], Batch) for each in outputs
    )


def _term(loss: Any, rows: int, what: str) -> Term:
    """A term that can be added to those of other batches."""
    if isinstance(loss, Term):
        total, weight = _number(loss.sum, what) * loss.times, _number(loss.weight, what)
        return Term(total, weight, loss.coefficient, counts=loss.counts, summed=loss.summed)
    return Term(_number(loss, what) * rows, float(rows))


def _number(loss: Any, what: str) -> float | Tensor:
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(())
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError):
        came = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ConfigError(f"{what} is one number, the mean over the rows; got {came}.") from None
