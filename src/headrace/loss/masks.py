"""Leaves rows and places out of metrics where a mask is false."""

import torch
from torch import Tensor

from .base import OF_CLASSES


def counted_by(outputs: Tensor, target: Tensor, mask: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """Outputs and targets where a mask of rows or places is true; classes of places are in dimension 1.

    A mask has all dimensions of the places, or the first ones, and any of them may be 1. One of another shape is of
    another target.
    """
    if mask.numel() == len(target):
        mask = mask.reshape(-1)
        return outputs[mask], target[mask]
    by_class = reads in OF_CLASSES or (outputs.dim() == target.dim() + 1 and not target.is_floating_point())
    places = target.shape if not by_class else torch.Size([len(outputs), *outputs.shape[2:]])
    if mask.numel() == places.numel():
        mask = mask.reshape(places)
    while mask.dim() > 1 and mask.shape[-1] == 1:
        mask = mask.squeeze(-1)
    fits = mask.dim() <= len(places) and all(n in (1, size) for n, size in zip(mask.shape, places, strict=False))
    if not fits or (not by_class and outputs.numel() != target.numel()):
        return outputs, target
    if by_class:
        target = target.movedim(1, -1) if target.dim() == outputs.dim() else target
        outputs = outputs.movedim(1, -1)
    else:
        outputs = outputs.reshape(places)
    if by_class or mask.shape != places[: mask.dim()]:  # else the numbers of a place stay together
        mask = mask.reshape(*mask.shape, *[1] * (len(places) - mask.dim())).expand(places)
    return outputs[mask], target[mask]
