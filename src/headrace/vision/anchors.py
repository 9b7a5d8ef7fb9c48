"""Anchors: the boxes that a detector starts from, and which of them are responsible for which annotated box."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from .boxes import overlaps

PAIRS = 1 << 22  # of an anchor and a box that are compared at once


class Anchors:
    """Boxes at every place of several grids: each `sizes` · stride large, of each of `ratios` (height / width)."""

    def __init__(
        self, strides: Sequence[int] = (4, 8, 16), sizes: Sequence[float] = (3.0, 4.25), ratios: Sequence[float] = (1,)
    ) -> None:
        for name, values in {"strides": strides, "sizes": sizes, "ratios": ratios}.items():
            if not values or not all(value > 0 for value in values):
                raise ConfigError(f"{name}= are numbers greater than 0, at least one, got {values!r}.")
        self.strides, self.sizes, self.ratios = tuple(strides), tuple(sizes), tuple(ratios)
        self.each = len(self.sizes) * len(self.ratios)  # at a place
        self._known: dict[tuple[int, int, torch.device], Tensor] = {}

    def __call__(self, height: int, width: int, device: torch.device) -> Tensor:
        """Those of an image, of shape (anchors, 4), from the first grid to the last, and by rows in each."""
        key = height, width, device
        if key not in self._known:
            grids = [self._grid(stride, -(-height // stride), -(-width // stride)) for stride in self.strides]
            self._known[key] = torch.cat(grids).to(device)
        return self._known[key]

    def _grid(self, stride: int, rows: int, columns: int) -> Tensor:
        places = torch.cartesian_prod(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5) * stride
        roots = [math.sqrt(ratio) for ratio in self.ratios]
        halves = [(size * stride * root / 2, size * stride / root / 2) for size in self.sizes for root in roots]
        shapes = torch.tensor([(-high, -wide, high, wide) for high, wide in halves])
        return (places.repeat(1, 2).unsqueeze(1) + shapes).flatten(0, 1)


class Matches(NamedTuple):
    """For each anchor of each image, (images, anchors): the number of the box that it overlaps most; whether it is to
    find that box; whether it is to find nothing. What is neither is ignored."""

    box: Tensor
    positive: Tensor
    negative: Tensor


@torch.no_grad()
def match(anchors: Tensor, boxes: Tensor, there: Tensor, positive: float = 0.5, negative: float = 0.4) -> Matches:
    """Matches anchors (A, 4) with the boxes (images, M, 4) that are `there`, of shape (images, M).

    An anchor is to find the box that it overlaps most if that is by at least `positive`, nothing if by less than
    `negative`. The anchors that overlap a box most are to find it in any case. Everything at once, or in few pieces.
    """
    first, *rest = anchors.split(max(1, PAIRS // max(1, boxes.shape[0] * boxes.shape[1])))
    known = _known(first, boxes, there)  # of all anchors, mostly

    def found() -> Iterator[Tensor]:
        yield known
        yield from (_known(piece, boxes, there) for piece in rest)

    best_of_box = torch.stack([each.amax(1) for each in found()]).amax(0)
    parts = [_match(each, best_of_box, positive, negative) for each in found()]
    return Matches(*(torch.cat(columns, dim=1) for columns in zip(*parts, strict=True)))


def _known(anchors: Tensor, boxes: Tensor, there: Tensor) -> Tensor:
    """Overlaps (images, anchors, boxes); of boxes that are not there, −1. There is always one column at least."""
    if not boxes.shape[1]:
        return boxes.new_full((len(boxes), len(anchors), 1), -1.0)
    return overlaps(anchors, boxes).masked_fill(~there.unsqueeze(1), -1.0)


def _match(found: Tensor, best_of_box: Tensor, positive: float, negative: float) -> Matches:
    most, box = found.max(-1)
    chosen = (found == best_of_box.unsqueeze(1)) & (found > 0)
    forced, theirs = torch.where(chosen, found, -1.0).max(-1)
    box = torch.where(forced > 0, theirs, box)
    finds = (most >= positive) | (forced > 0)
    return Matches(box, finds, ~finds & (most < negative))
