"""The terms of an update that several workers make together: what each is divided by, and what they add up to."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch
from ..errors import ConfigError
from ..loss.base import Term
from ..loss.outcome import Outcome
from ..workers.strategy import Strategy
from .guard import Scalar

Weights = Mapping[str, Scalar]
_OTHERS = ""  # counts the workers that have other terms


class SharedTerms:
    """Adds up the weights of all workers' parts before the backward pass, and their sums after it."""

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._strategy, self._device = strategy, device
        self._names: list[str] = []
        self._batch: Batch | None = None
        self._divisors: Weights | None = None
        self._facts: dict[str, tuple[float, bool, bool]] = {}
        self._has_facts = False
        self._local: list[Scalar] = []  # this worker's numbers of an update that have to be finite

    def begin(self, batch: Batch) -> None:
        """A pass over a batch begins. One that is made again, in smaller parts, divides by what is known already."""
        if batch is not self._batch:
            self._batch, self._divisors = batch, None
        self._local = []

    def divide(self, weights: Weights) -> Weights:
        """What to divide the terms by: the weights of the whole batch. A worker without rows has none."""
        return self.divide_parts({0: weights}, lambda rows: self._strategy.totals(rows[0]))

    def divide_parts(
        self, parts: Mapping[int, Weights], add_up: Callable[[Mapping[int, Weights]], dict[str, Any]]
    ) -> Weights:
        """The same for the weights of several parts, which are added up together with those of other workers."""
        if self._divisors is None:
            if not self._names:
                self._compare_names(list(next(iter(parts.values()), ())))
            totals = add_up({part: self._row(weights) for part, weights in parts.items()})
            if totals.pop(_OTHERS):
                raise ConfigError(
                    f"the terms of an update are not those of the first one ({', '.join(self._names)}). Several "
                    "workers need the same terms in every update: give one that has nothing to say the weight 0."
                )
            self._divisors = totals
        return self._divisors

    @property
    def names(self) -> list[str]:
        """The names of the terms, and of a number that is 0 where all workers have these."""
        return [_OTHERS, *self._names]

    def numbers(self, outcome: Outcome, buffers: Scalar) -> Tensor:
        """What travels with the gradients: whether this worker's buffers are finite, and the sums of its part."""
        found = self.sums(outcome, buffers)
        if self._device.type == "cpu":
            return torch.tensor(found, dtype=torch.float64)
        return torch.stack([torch.as_tensor(n, dtype=torch.float32, device=self._device) for n in found])

    def sums(self, outcome: Outcome, buffers: Scalar) -> list[Scalar]:
        """`numbers` as they are."""
        found = [buffers, *(outcome.terms[name].sum if name in outcome.terms else 0.0 for name in self._names)]
        self._local += found
        return found

    def _row(self, weights: Weights) -> Weights:
        others = float(bool(weights) and weights.keys() != set(self._names))
        return {_OTHERS: others, **{name: weights.get(name, 0.0) for name in self._names}}

    def settle(self, outcome: Outcome, numbers: Sequence[Any], all_have_rows: bool) -> Weights:
        """The outcome becomes that of all workers; the number that shows whether all buffers are finite.

        A worker without rows learns from the others what the terms are in this update.
        """
        facts = {name: (term.coefficient, term.counts, term.summed) for name, term in outcome.terms.items()}
        self._facts |= facts
        if not (self._has_facts and all_have_rows):
            for other in self._strategy.comm.all_gather({name: list(each) for name, each in facts.items()}):
                self._facts |= {name: tuple(each) for name, each in other.items() if name not in facts}
            self._has_facts = True
        assert self._divisors is not None
        outcome.terms = {}
        for name, total in zip(self._names, numbers[1:], strict=True):
            coefficient, counts, summed = self._facts.get(name, (1.0, True, False))
            outcome.terms[name] = Term(total, self._divisors[name], coefficient, counts=counts, summed=summed)
        self._batch = None  # another update of this batch may have other weights
        return {"a buffer of some worker": numbers[0]}

    def bad_workers(self) -> str:
        """On which workers a loss or a buffer was not finite, for a message. All workers call this together."""
        if self._strategy.comm.count == 1:
            return ""
        is_bad = not all(math.isfinite(number) for number in self._local)
        bad = [str(worker) for worker, each in enumerate(self._strategy.comm.all_gather(is_bad)) if each]
        return f" on worker{'s' * (len(bad) > 1)} {', '.join(bad)}" if bad else ""

    def _compare_names(self, names: list[str]) -> None:
        """The names of the terms, from the workers that have rows."""
        every = [each for each in self._strategy.comm.all_gather(names) if each]
        self._names = every[0]
        for other in every[1:]:
            if other != self._names:
                raise ConfigError(
                    f"the terms of an update are {', '.join(self._names)} for one worker and {', '.join(other)} for "
                    "another. Give every worker the same loss."
                )
