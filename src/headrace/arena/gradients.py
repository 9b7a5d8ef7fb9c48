"""What is asked of all gradients: their norm, whether they are finite, and that they be clipped."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

JOINED = 1 << 16
"""Up to this many numbers of many tensors are joined, since one sum then takes less time than a norm."""
FEW = 8
"""Up to this many gradients are added up one by one: they are large, and a sum takes less time than a norm."""


def clip(
    gradients: Sequence[Tensor], measure: Callable[[], Tensor], norm: float | None, value: float | None
) -> Tensor | None:
    """Clips gradients to a total norm and to a largest element, as torch's own functions do; the norm that they had.

    `measure` finds their norm, as `Arena.norm` does. An infinite `norm` only measures.
    """
    before = measure() if norm is not None and gradients else None
    if before is not None and norm is not None and norm != math.inf:
        torch._foreach_mul_(list(gradients), torch.clamp(norm / (before + 1e-6), max=1.0))
    if value is not None:
        for gradient in map(_elements, gradients):
            gradient.clamp_(-value, value)
    return before


def total(tensors: Sequence[Tensor]) -> Tensor:
    """A number that is not finite if any tensor is not; huge but finite numbers may overflow it too."""
    if len(tensors) == 1 and not tensors[0].is_complex():
        return tensors[0].sum()
    if {each.dtype for each in tensors} == {torch.float32} and {each.layout for each in tensors} == {torch.strided}:
        if len(tensors) <= FEW:
            return torch.stack([each.sum() for each in tensors]).sum()
        if sum(each.numel() for each in tensors) <= JOINED:
            return torch._C._nn.flatten_dense_tensors([*tensors]).sum()
    return norm_of(tensors)


def all_finite(gradients: Iterable[Tensor]) -> bool:
    """Whether every element is finite, read on the host."""
    return all(bool(torch.isfinite(_elements(g)).all()) for g in gradients)


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    return get_total_norm([_elements(g) for g in gradients])


def _elements(gradient: Tensor) -> Tensor:
    """A gradient's numbers; for a sparse one, those that it stores."""
    return gradient._values() if gradient.is_sparse else gradient
