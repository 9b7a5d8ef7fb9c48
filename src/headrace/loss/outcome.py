"""The result of an update or of a validation batch, and the sums of losses over many of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.fields import Rows, map_tensors
from ..data.ragged import Ragged
from ..data.sparse import Sparse
from ..errors import ConfigError
from .base import Term, Weight, is_flat
from .by_output import MetricsByOutput
from .metrics import Compared


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
    if isinstance(result, Outcome) and _is_plain(result):
        return result
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
    whole = Outcome({})
    for key, outcome in outcomes:
        for name, term in outcome.terms.items():
            whole.terms[key if len(outcome.terms) == 1 else f"{key}/{name}"] = term
        whole.applied = whole.applied & outcome.applied
        whole.outputs += outcome.outputs if key == scored else []
    return whole


def detached(outputs: Any) -> Any:
    """Outputs without their graph; objects that are no tensors stay as they are."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if isinstance(outputs, Rows):
        return map_tensors(outputs, Tensor.detach)
    if isinstance(outputs, Mapping):
        return {key: detached(value) for key, value in outputs.items()}
    return tuple(map(detached, outputs)) if isinstance(outputs, tuple | list) else outputs


class LossSums:
    """Sums and weights of loss terms, added up over many updates; read where it is reported."""

    def __init__(self) -> None:
        self._terms: dict[str, list[float]] = {}  # of each its coefficient, sum and weight
        self._waiting: dict[str, list[tuple[Weight, Weight]]] = {}

    def add(self, name: str, total: float | Tensor, weight: Weight, coefficient: float) -> None:
        """One update's term. What is still on the device waits there."""
        term = self._terms.setdefault(name, [coefficient, 0.0, 0.0])
        term[0] = coefficient
        if type(total) is float and type(weight) is float:
            term[1] += total
            term[2] += weight
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append((total, weight))
        if len(waiting) >= 1024:
            self._fold(name)

    def read(self) -> dict[str, float]:
        """The mean of every term, and `""`: their sum, each times its coefficient.

        The mean of a term for which no row counted is NaN. It is left out of the sum, unless all are NaN.
        """
        totals = self.totals()
        means = {name: total / weight if weight else math.nan for name, (_, total, weight) in totals.items()}
        parts = [c * means[name] for name, (c, _, weight) in totals.items() if c and weight]
        joint = math.fsum(parts) if parts or not any(c for c, _, _ in totals.values()) else math.nan
        return {"": joint, **means} if means else {}

    def totals(self) -> dict[str, list[float]]:
        """Coefficient, sum and weight of every term."""
        for name in list(self._waiting):
            self._fold(name)
        return {name: [*term] for name, term in self._terms.items()}

    def add_totals(self, totals: Mapping[str, Sequence[float]]) -> None:
        """What another worker has added up."""
        for name, (coefficient, total, weight) in totals.items():
            self.add(name, total, weight, coefficient)

    @classmethod
    def of(cls, totals: Sequence[Mapping[str, Sequence[float]]]) -> "LossSums":
        """What several workers have added up, together."""
        found = cls()
        for terms in totals:
            found.add_totals(terms)
        return found

    @classmethod
    def joined(cls, states: Sequence[dict[str, Any]]) -> "LossSums":
        """What sums in these states come to, together; one alone is taken back to the bit."""
        parts = [cls() for _ in states]
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        return parts[0] if len(parts) == 1 else cls.of([part.totals() for part in parts])

    def reset(self) -> None:
        self._terms, self._waiting = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """What has been added; what waits on a device is not added up for it, which would round differently."""
        waiting = {name: [_column(part) for part in zip(*pairs, strict=True)] for name, pairs in self._waiting.items()}
        terms = {name: [*term] for name, term in self._terms.items()}
        return {"terms": terms, "waiting": {name: columns for name, columns in waiting.items() if columns}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._terms = {
            name: [coefficient, total, weight] for name, (coefficient, total, weight) in state["terms"].items()
        }
        self._waiting = {name: list(zip(*map(list, each), strict=True)) for name, each in state["waiting"].items()}

    def _fold(self, name: str) -> None:
        waiting, term = self._waiting.pop(name, []), self._terms[name]
        term[1] += _added([total for total, _ in waiting])
        term[2] += _added([weight for _, weight in waiting])


def record_losses(outcome: Outcome, tally: LossSums) -> None:
    """Adds the loss terms of one batch; those of an update that was left out do not count."""
    applied = outcome.applied
    if applied is False:
        return
    for name, term in outcome.terms.items():
        total, weight, coefficient = term.sum, term.weight, term.coefficient
        if not term.counts:  # a prior is reported times its coefficient
            total, coefficient = total * coefficient, 1.0
        if applied is not True:
            total = torch.where(applied, total, 0.0) if isinstance(total, Tensor) else total * applied
            weight = weight * applied
        tally.add(name, total, weight, coefficient)


def record(outcome: Outcome, tally: LossSums, metrics: MetricsByOutput) -> None:
    """Adds the losses and metrics of one batch to what is reported later."""
    if outcome.applied is False:
        return
    record_losses(outcome, tally)
    for name, part in metrics.parts.items():
        metrics.missed |= not outcome.outputs
        for outputs, batch in outcome.outputs:
            compared = part.compared
            assert compared is not None
            scored, wanted = compared.output(outputs), batch.fields.get(compared.target)
            if compared.dense is not None or type(wanted) is not Tensor:
                scored, wanted = _dense(scored, batch[compared.target], compared)
            to = metrics.by_part[batch.part].parts[name] if metrics.by_part else part
            to.add(scored.detach() if isinstance(scored, Tensor) else scored, wanted)


def _dense(outputs: Any, target: Any, compared: Compared) -> tuple[Any, Any]:
    """Outputs and target as metrics look at them: dense, and of sequences the items."""
    if compared.dense is not None:
        return outputs, compared.dense(target)
    if isinstance(target, Ragged):
        items = target.dense()
        return target.items_of(outputs, is_flat(outputs, items, compared.reads)), items
    return outputs, target.to_dense() if isinstance(target, Sparse) else target


def _mean(term: Term) -> Any:
    if isinstance(term.weight, Tensor):
        return torch.where(term.weight > 0, term.sum / term.weight, torch.zeros_like(term.weight, dtype=torch.float32))
    return term.sum / term.weight if term.weight else 0.0


def _is_plain(outcome: Outcome) -> bool:
    """Whether it is as an update leaves it."""
    for term in outcome.terms.values():
        if type(term) is not Term or term.times != 1.0:
            return False
    return _are_pairs(outcome.outputs)


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


def _column(numbers: Sequence[float | Tensor]) -> Any:
    """Numbers as one tensor where all of them are on a device."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    return torch.stack(tensors) if len(tensors) == len(numbers) else list(numbers)


def _added(numbers: Sequence[float | Tensor]) -> float:
    """The sum of numbers here and on a device; that of the latter is read once."""
    on_device = [number for number in numbers if isinstance(number, Tensor)]
    here = math.fsum(number for number in numbers if not isinstance(number, Tensor))
    return here + (float(torch.stack(on_device).double().sum()) if on_device else 0.0)
