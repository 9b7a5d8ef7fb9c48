"""The terms of an update that several workers make together: what each is divided by, and what they add up to."""

import math
from collections.abc import Mapping, Sequence
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
        self._local: list[Scalar] = []  # this worker's numbers that have to be finite

    def begin(self, batch: Batch) -> None:
        """A pass over a batch begins. One that is made again, in smaller parts, divides by what is known already."""
        if batch is not self._batch:
            self._batch, self._divisors = batch, None

    def divide(self, weights: Weights) -> Weights:
        """What to divide the terms by: the weights of the whole batch. A worker without rows has none."""
        if self._divisors is None:
            if not self._names:
                self._compare_names(list(weights))
            others = float(bool(weights) and weights.keys() != set(self._names))
            known = {name: weights.get(name, 0.0) for name in self._names}
            totals = self._strategy.totals({_OTHERS: others, **known})
            if totals.pop(_OTHERS):
                raise ConfigError(
                    f"the terms of an update are not those of the first one ({', '.join(self._names)}). Several "
                    "workers need the same terms in every update: give one that has nothing to say the weight 0."
                )
            self._divisors = totals
        return self._divisors

    def numbers(self, outcome: Outcome, buffers: Scalar) -> Tensor:
        """What travels with the gradients: whether this worker's buffers are finite, and the sums of its part."""
        sums = [outcome.terms[name].sum if name in outcome.terms else 0.0 for name in self._names]
        self._local = [buffers, *sums]
        if not any(isinstance(number, Tensor) for number in self._local):
            return torch.tensor(self._local, dtype=torch.float64)
        return torch.stack([torch.as_tensor(n, dtype=torch.float32, device=self._device) for n in self._local])

    def settle(self, outcome: Outcome, numbers: Tensor) -> Weights:
        """The outcome becomes that of all workers; the number that shows whether all buffers are finite."""
        found: Sequence[Any] = list(numbers) if numbers.is_cuda else numbers.tolist()
        self._facts |= {name: (term.coefficient, term.counts, term.summed) for name, term in outcome.terms.items()}
        if not self._has_facts:  # a worker that has had no rows yet learns of them from the others
            for other in self._strategy.comm.all_gather({name: list(facts) for name, facts in self._facts.items()}):
                self._facts = {name: tuple(facts) for name, facts in other.items()} | self._facts
            self._has_facts = True
        assert self._divisors is not None
        outcome.terms = {}
        for name, total in zip(self._names, found[1:], strict=True):
            coefficient, counts, summed = self._facts.get(name, (1.0, True, False))
            outcome.terms[name] = Term(total, self._divisors[name], coefficient, counts=counts, summed=summed)
        self._batch = None  # another update of this batch may have other weights
        return {"a buffer of some worker": found[0]}

    def bad_workers(self) -> str:
        """On which workers a loss or a buffer was not finite, for a message. All workers call this together."""
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
