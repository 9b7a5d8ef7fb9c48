"""The last point that all workers agreed on: θ₀, where the round at hand began."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..arena.replica import Replica


class Start:
    """θ₀ in memory of its own, which stays the same however often the weights are copied there.

    `parameters` and `named` are views of it by name; `named` has the floating-point buffers too.
    """

    def __init__(self, replica: Replica) -> None:
        self._tensors = [tensor.detach().clone() for tensor in replica.tensors]
        self.named = replica.by_name(self._tensors)
        self.parameters = replica.by_name(self._tensors[: len(replica.values)])

    def like(self, replica: Replica) -> list[Tensor]:
        """θ₀ as tensors like `replica.tensors`: its own memory, or a copy if parameters have left their vector."""
        return self._tensors if self._fits(replica.tensors) else replica.joined(self.named)

    def take(self, replica: Replica) -> None:
        """θ₀ becomes what the weights are now."""
        now = replica.tensors
        if self._fits(now):
            torch._foreach_copy_(self._tensors, now)
        else:
            self.load(replica.by_name(now))

    def load(self, named: Mapping[str, Tensor]) -> None:
        """θ₀ becomes what was saved of it."""
        for name, place in self.named.items():
            place.copy_(named[name])

    def _fits(self, tensors: list[Tensor]) -> bool:
        return [own.shape for own in self._tensors] == [other.shape for other in tensors]
