"""What a pass changes, copied, so that two passes can be compared and one of them undone."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ...arena.arena import Arena
from ...loss.base import Term
from ...store.rng import capture_torch, restore_torch
from .tape import outputs_of


class Snapshot:
    """What a pass changes, as it is now: gradients, buffers and random numbers; and what it must not change."""

    def __init__(
        self, model: nn.Module, arena: Arena | None, device: torch.device, others: Sequence[Tensor] = ()
    ) -> None:
        self._device = device
        self._others = [(tensor, tensor.detach().clone()) for tensor in others]
        self._tensors = [vector.gradients for vector in arena.vectors] if arena is not None else []
        if arena is not None:
            own = set(map(id, arena.params))
            self._tensors += [p.grad for p in model.parameters() if p.grad is not None and id(p) not in own]
        self._tensors += [buffer for buffer in model.buffers() if torch._debug_has_internal_overlap(buffer) != 1]
        self._copies = [tensor.detach().clone() for tensor in self._tensors]
        self._random = capture_torch(device)

    def restore(self, random: bool) -> None:
        """Everything is again as it was; random numbers only if a pass draws them: other threads draw them, too."""
        for tensor, copy in self._others:
            if not same_bits(tensor, copy):
                tensor.data.copy_(copy)
        with torch.no_grad():
            for tensor, copy in zip(self._tensors, self._copies, strict=True):
                tensor.copy_(copy)
        if random:
            restore_torch(self._random, self._device)

    def equals(self, other: "Snapshot") -> bool:
        """Whether gradients and buffers are the same to the bit."""
        return all(map(same_bits, self._copies, other._copies))

    def drew_as(self, other: "Snapshot") -> bool:
        """Whether the next random number is the same."""
        return all(torch.equal(state, other._random[name]) for name, state in self._random.items())


def same_terms(terms: Mapping[str, Term], again: Mapping[str, Term]) -> bool:
    """Whether two passes have given the same."""
    if terms.keys() != again.keys():
        return False
    numbers = [(a.sum, b.sum) for a, b in zip(terms.values(), again.values(), strict=True)]
    numbers += [(a.weight, b.weight) for a, b in zip(terms.values(), again.values(), strict=True)]
    outputs = zip(tree_flatten(outputs_of(terms))[0], tree_flatten(outputs_of(again))[0], strict=True)
    return all(same_bits(a, b) if isinstance(a, Tensor) else a == b for a, b in [*numbers, *outputs])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same, NaN included."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or (
        a.is_floating_point() and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )
