"""Rows that lie end to end: the offsets that say where each begins, taken, cut and joined."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError


def places(bounds: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Where the items of these rows are, and the offsets of the rows when they lie end to end."""
    starts, stops = bounds.index_select(0, indices), bounds.index_select(0, indices + 1)
    joined = torch.zeros(len(indices) + 1, dtype=torch.int64)
    torch.cumsum(stops - starts, 0, out=joined[1:])
    steps = torch.ones(int(joined[-1]) + 1, dtype=torch.int64)  # from each item to the next; a sum of them all is
    steps[0] = 0  # several times as fast as repeating the start of each row
    if len(indices):
        jumps = starts.clone()
        jumps[1:] -= stops[:-1]
        steps.index_add_(0, joined[:-1], jumps)
    return torch.cumsum(steps[:-1], 0), joined


def cut(offsets: Tensor, bounds: Tensor, counts: Sequence[int]) -> tuple[list[int], Sequence[Tensor], Sequence[Tensor]]:
    """Items in each run of rows, and the offsets of each run, on the device and on the host."""
    cuts = [0, *accumulate(counts)]
    if cuts[-1] != len(bounds) - 1:
        raise DataError(f"runs of {cuts[-1]} rows do not make up {len(bounds) - 1}.")
    at = bounds[cuts].tolist()
    items = [stop - start for start, stop in pairwise(at)]
    host = [bounds[a : b + 1] - first for a, b, first in zip(cuts, cuts[1:], at, strict=False)]
    if offsets.device == bounds.device:
        return items, host, host
    return items, [offsets[a : b + 1] - first for a, b, first in zip(cuts, cuts[1:], at, strict=False)], host


def joined_offsets(parts: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The offsets of several fields that are laid end to end, on the device and on the host."""
    firsts = [0, *accumulate(int(part.bounds[-1]) for part in parts)]
    shifted = [part.bounds[1:] + first for part, first in zip(parts, firsts, strict=False)]
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), *shifted])
    return bounds.to(parts[0].offsets.device, non_blocking=True), bounds


def check_offsets(bounds: Tensor, items: int, who: str, what: str) -> None:
    if bounds.dim() != 1 or not len(bounds) or bounds.dtype != torch.int64:
        raise DataError(
            f"{who} needs offsets of int64 in one dimension, one more than rows, got {bounds.dtype}"
            f"{list(bounds.shape)}."
        )
    if int(bounds[0]) or int(bounds[-1]) != items or bool((bounds.diff() < 0).any()):
        raise DataError(
            f"{who} needs offsets that never fall, from 0 to the number of {what}, {items}; "
            f"got {int(bounds[0])} to {int(bounds[-1])}."
        )
