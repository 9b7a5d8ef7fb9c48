"""The backward pass, and what is asked of all its gradients: their norm, whether they are finite, to be clipped."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils import get_total_norm

FEW = 8
"""So many gradients are added up one by one: they are large, and a sum takes less time than a norm."""


def backward(roots: Sequence[Tensor], seeds: Sequence[Tensor], inputs: Sequence[nn.Parameter] | None) -> None:
    """As `torch.autograd.backward`, whose look at seeds that are known to fit takes longer than a small layer."""
    if set(map(type, roots)) != {Tensor}:
        torch.autograd.backward(roots, seeds, inputs=inputs)
        return
    _engine_run_backward(
        tuple(roots), tuple(seeds), False, False, tuple(inputs or ()), allow_unreachable=True, accumulate_grad=True
    )


def clip(
    gradients: Sequence[Tensor], pieces: Sequence[Tensor], norm: float | None, value: float | None
) -> Tensor | None:
    """Clips gradients to a total norm and to a largest element, as torch's own functions do; the norm that they had.

    `pieces` are the same numbers cut in a way that is the same in every training, as `Arena.pieces` gives them. An
    infinite `norm` only measures.
    """
    before = norm_of(pieces) if norm is not None and gradients else None
    if before is not None and norm is not None and norm != math.inf:
        torch._foreach_mul_(list(gradients), torch.clamp(norm / (before + 1e-6), max=1.0))
    if value is not None:
        for gradient in map(_elements, gradients):
            gradient.clamp_(-value, value)
    return before


def total(gradients: Sequence[Tensor]) -> Tensor:
    """A number that is not finite if any gradient is not; huge but finite gradients may overflow it too."""
    if len(gradients) == 1:
        return gradients[0].sum()
    if 0 < len(gradients) <= FEW and all(g.dtype is torch.float32 and g.layout is torch.strided for g in gradients):
        return torch.stack([gradient.sum() for gradient in gradients]).sum()
    return norm_of(gradients)


def all_finite(gradients: Iterable[Tensor]) -> bool:
    """Whether every element is finite, read on the host."""
    return all(bool(torch.isfinite(_elements(g)).all()) for g in gradients)


def norm_of(gradients: Iterable[Tensor]) -> Tensor:
    return get_total_norm([_elements(g) for g in gradients])


def _elements(gradient: Tensor) -> Tensor:
    """A gradient's numbers; for a sparse one, those that it stores."""
    return gradient._values() if gradient.is_sparse else gradient
