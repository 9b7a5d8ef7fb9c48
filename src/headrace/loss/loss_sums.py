"""What an epoch's losses add up to: sums and weights, divided once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Weight


class LossSums:
    """Sums and weights of loss terms, added up over many updates; read where it is reported."""

    def __init__(self) -> None:
        self._coefficients: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._waiting: dict[str, list[tuple[Weight, Weight]]] = {}

    def add(self, name: str, total: float | Tensor, weight: Weight, coefficient: float) -> None:
        """One update's term. What is still on the device waits there."""
        self._coefficients[name] = coefficient
        if type(total) is float and type(weight) is float:
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._weights[name] = self._weights.get(name, 0.0) + weight
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append((total, weight))
        if len(waiting) >= 1024:
            self._fold(name)

    def read(self) -> dict[str, float]:
        """The mean of every term, and `""`: their sum, each times its coefficient."""
        for name in list(self._waiting):
            self._fold(name)
        means = {
            name: self._sums[name] / self._weights[name] if self._weights[name] else 0.0 for name in self._coefficients
        }
        if not means:
            return {}
        total = math.fsum(self._coefficients[name] * mean for name, mean in means.items() if self._coefficients[name])
        return {"": total, **means}

    def totals(self) -> dict[str, list[float]]:
        """Coefficient, sum and weight of every term."""
        for name in list(self._waiting):
            self._fold(name)
        return {name: [c, self._sums[name], self._weights[name]] for name, c in self._coefficients.items()}

    @classmethod
    def of(cls, totals: Sequence[Mapping[str, Sequence[float]]]) -> "LossSums":
        """What several workers have added up, together."""
        tally = cls()
        for terms in totals:
            for name, (coefficient, total, weight) in terms.items():
                tally.add(name, total, weight, coefficient)
        return tally

    @classmethod
    def joined(cls, states: Sequence[dict[str, Any]]) -> "LossSums":
        """What tallies in these states have added up, together; one alone is taken back to the bit."""
        tallies = [cls() for _ in states]
        for tally, state in zip(tallies, states, strict=True):
            tally.load_state_dict(state)
        return tallies[0] if len(tallies) == 1 else cls.of([tally.totals() for tally in tallies])

    def reset(self) -> None:
        for kept in (self._coefficients, self._sums, self._weights, self._waiting):
            kept.clear()

    def state_dict(self) -> dict[str, Any]:
        """What has been added; what waits on a device is not added up for it, which would round differently."""
        waiting = {name: [_column(part) for part in zip(*pairs, strict=True)] for name, pairs in self._waiting.items()}
        return {
            "coefficients": dict(self._coefficients),
            "sums": dict(self._sums),
            "weights": dict(self._weights),
            "waiting": {name: columns for name, columns in waiting.items() if columns},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coefficients, self._sums = dict(state["coefficients"]), dict(state["sums"])
        self._weights = dict(state["weights"])
        self._waiting = {
            name: list(zip(*map(list, columns), strict=True)) for name, columns in state["waiting"].items()
        }

    def _fold(self, name: str) -> None:
        waiting = self._waiting.pop(name)
        self._sums[name] = self._sums.get(name, 0.0) + _added([total for total, _ in waiting])
        self._weights[name] = self._weights.get(name, 0.0) + _added([weight for _, weight in waiting])


def _column(numbers: Sequence[float | Tensor]) -> Any:
    """Numbers as one tensor where all of them are on a device."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    return torch.stack(tensors) if len(tensors) == len(numbers) else list(numbers)


def _added(numbers: Sequence[float | Tensor]) -> float:
    """The sum of numbers here and on a device; that of the latter is read once."""
    on_device = [number for number in numbers if isinstance(number, Tensor)]
    here = math.fsum(number for number in numbers if not isinstance(number, Tensor))
    return here + (float(torch.stack(on_device).double().sum()) if on_device else 0.0)
