"""What an epoch's losses add up to: sums and weights, divided once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .loss import Weight


class Tally:
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

    def reset(self) -> None:
        for kept in (self._coefficients, self._sums, self._weights, self._waiting):
            kept.clear()

    def _fold(self, name: str) -> None:
        waiting = self._waiting.pop(name)
        self._sums[name] = self._sums.get(name, 0.0) + _added([total for total, _ in waiting])
        self._weights[name] = self._weights.get(name, 0.0) + _added([weight for _, weight in waiting])


def _added(numbers: Sequence[float | Tensor]) -> float:
    """The sum of numbers here and on a device; that of the latter is read once."""
    on_device = [number for number in numbers if isinstance(number, Tensor)]
    here = math.fsum(number for number in numbers if not isinstance(number, Tensor))
    return here + (float(torch.stack(on_device).double().sum()) if on_device else 0.0)
