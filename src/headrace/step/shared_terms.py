"""The terms of an update that several workers make together: what each divides by, and what they all add up to."""

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


class SharedTerms:
    """Finds a divisor for every term that is the same on all workers, at the least cost.

    Where every worker can tell the weight of the whole batch from its part, nobody has to ask. A single term is divided
    by the rows of the batch, and set right once its weight is known, which travels with the gradients. Otherwise the
    weights are added up before the backward pass.
    """

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._strategy, self._device = strategy, device
        self._names: list[str] = []
        self._known = False
        self._facts: dict[str, tuple[float, bool, bool]] = {}
        self._weights: dict[str, Scalar] = {}
        self._told = False
        self._local: list[Scalar] = []  # this worker's numbers that have to be finite

    def divisors(self, batch: Batch, whole: Mapping[str, float | None], weigh: Callable[[], Weights]) -> Weights:
        """What to divide the terms by: `whole` is what this part tells of the whole, `weigh` weighs this part."""
        here = weigh() if batch.rows and not self._names and not whole else None
        if not self._names:
            self._agree(None if not batch.rows else [[name, whole.get(name) is not None] for name in (here or whole)])
        if self._known:
            if batch.rows and any(whole.get(name) is None for name in self._names):
                raise ConfigError(
                    "a setting of the loss makes rows count by their classes or labels, which the workers have agreed "
                    "at the first update that they do not. Set it before the first update: class_weights=[1.0, ...] "
                    "count as none."
                )
            return {name: float(whole.get(name) or 1.0) if batch.rows else 1.0 for name in self._names}
        if len(self._names) == 1:
            return dict.fromkeys(self._names, float(batch.total))
        if here is None and batch.rows:
            here = weigh()
        return self._strategy.totals({name: (here or {}).get(name, 0.0) for name in self._names})

    def begin(self) -> None:
        """A backward pass begins, perhaps once more."""
        self._weights = {}

    def add(self, term: str, weight: Scalar) -> None:
        """A microbatch of this worker weighs so much."""
        self._weights[term] = self._weights.get(term, 0.0) + weight

    def numbers(self, outcome: Outcome, buffers: Scalar) -> Tensor:
        """What travels with the gradients: sums and weights of this part, and whether its buffers are sound."""
        terms = outcome.terms
        other = bool(terms) and terms.keys() != set(self._names)
        sums = [terms[name].sum if name in terms else 0.0 for name in self._names]
        weights = [self._weights.get(name, 0.0) for name in self._names]
        numbers = [float(other), buffers, *sums, *weights]
        self._local = [buffers, *sums]
        if not any(isinstance(number, Tensor) for number in numbers):
            return torch.tensor(numbers, dtype=torch.float64)
        return torch.stack([torch.as_tensor(n, dtype=torch.float32, device=self._device) for n in numbers])

    def settle(self, outcome: Outcome, numbers: Tensor, divisors: Weights) -> Scalar:
        """The outcome becomes that of all workers; by what their gradients are to be multiplied yet."""
        found: Sequence[Any] = list(numbers) if numbers.is_cuda else numbers.tolist()
        if not numbers.is_cuda and found[0]:
            raise ConfigError(
                f"the terms of an update are not those of the first one ({', '.join(self._names)}). Several workers "
                "need the same terms in every update: give one that has nothing to say the weight 0."
            )
        count = len(self._names)
        sums, weights = found[2 : 2 + count], found[2 + count :]
        self._facts |= {name: (term.coefficient, term.counts, term.summed) for name, term in outcome.terms.items()}
        if not self._told:  # who has had no rows yet learns of them from the others
            for other in self._strategy.comm.all_gather({name: list(facts) for name, facts in self._facts.items()}):
                self._facts = {name: tuple(facts) for name, facts in other.items()} | self._facts
            self._told = True
        outcome.terms = {
            name: self._term(name, total, weight)
            for name, total, weight in zip(self._names, sums, weights, strict=True)
        }
        if self._known or count > 1 or outcome.terms[self._names[0]].summed:
            return 1.0
        divisor, weight = divisors[self._names[0]], weights[0]
        if isinstance(weight, Tensor):
            return torch.where(weight > 0, divisor / weight, torch.zeros_like(weight))
        return divisor / weight if weight else 0.0

    def bad_workers(self) -> str:
        """On which workers a loss or a buffer was not finite, for a message. All workers call this together."""
        is_bad = not all(math.isfinite(number) for number in self._local)
        bad = [str(worker) for worker, each in enumerate(self._strategy.comm.all_gather(is_bad)) if each]
        return f" on worker{'s' * (len(bad) > 1)} {', '.join(bad)}" if bad else ""

    @staticmethod
    def doubt(numbers: Tensor) -> Scalar:
        """Not finite if a buffer of some worker is not."""
        return numbers[1] if numbers.is_cuda else float(numbers[1])

    def _term(self, name: str, total: Any, weight: Any) -> Term:
        coefficient, counts, summed = self._facts.get(name, (1.0, True, False))
        return Term(total, weight, coefficient, counts=counts, summed=summed)

    def _agree(self, found: list[list[Any]] | None) -> None:
        """The names of the terms, from those who have rows; what all of them can tell of the whole batch."""
        every = [each for each in self._strategy.comm.all_gather(found) if each is not None]
        self._names = [name for name, _ in every[0]]
        for other in every[1:]:
            if [name for name, _ in other] != self._names:
                names = ", ".join(name for name, _ in other)
                raise ConfigError(
                    f"the terms of an update are {', '.join(self._names)} for one worker and {names} for another. "
                    "Give every worker the same loss."
                )
        self._known = all(known for each in every for _, known in each)
