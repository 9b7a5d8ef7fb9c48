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
        self,
        strides: Sequence[int] = (4, 8, 16),
        sizes: Sequence[float] = (3.0, 4.25),
        ratios: Sequence[float] = (1.0,),
    ) -> None:
        for name, values in {"strides": strides, "sizes": sizes, "ratios": ratios}.items():
            if not values or not all(value > 0 for value in values):
                raise ConfigError(f"{name}= are numbers greater than 0, at least one, got {values!r}.")
        self.strides, self.sizes, self.ratios = tuple(strides), tuple(sizes), tuple(ratios)
        self._known: dict[tuple[int, int, torch.device], Tensor] = {}

    @property
    def each(self) -> int:
        """How many there are at a place."""
        return len(self.sizes) * len(self.ratios)

    def __call__(self, height: int, width: int, device: torch.device) -> Tensor:
        """Those of an image, of shape (anchors, 4), from the first grid to the last, and by rows in each."""
        key = height, width, device
        if key not in self._known:
            grids = [self._grid(stride, -(-height // stride), -(-width // stride)) for stride in self.strides]
            self._known[key] = torch.cat(grids).to(device)
        return self._known[key]

    def _grid(self, stride: int, rows: int, columns: int) -> Tensor:
        places = torch.cartesian_prod(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5) * stride
        halves = [
            (size * stride * math.sqrt(ratio) / 2, size * stride / math.sqrt(ratio) / 2)
            for size in self.sizes
            for ratio in self.ratios
        ]
        shapes = torch.tensor([(-high, -wide, high, wide) for high, wide in halves])
        return (places.repeat(1, 2).unsqueeze(1) + shapes).flatten(0, 1)


class Matches(NamedTuple):
    """For each anchor of each image: the number of the box that it is to find, and what it is."""

    box: Tensor
    """(images, anchors): the number of the box that it overlaps most."""
    positive: Tensor
    """(images, anchors): whether it is to find that box."""
    negative: Tensor
    """(images, anchors): whether it is to find nothing. What is neither is ignored."""


@torch.no_grad()
def match(anchors: Tensor, boxes: Tensor, there: Tensor, positive: float = 0.5, negative: float = 0.4) -> Matches:
    """Matches anchors (A, 4) with the boxes (images, M, 4) that are `there`, of shape (images, M).

    An anchor is to find the box that it overlaps most if that is by at least `positive`, nothing if by less than
    `negative`. The anchors that overlap a box most are to find it in any case. Everything at once, or in few pieces.
    """
    best_of_box = boxes.new_zeros(there.shape)
    pieces = list(_pieces(anchors, boxes))
    known = [_known(pieces[0], boxes, there)] if len(pieces) == 1 else []
    for piece in pieces:
        found = known[0] if known else _known(piece, boxes, there)
        best_of_box = torch.maximum(best_of_box, found.amax(1))
    parts = [_match(known[0] if known else _known(p, boxes, there), best_of_box, positive, negative) for p in pieces]
    return Matches(*(torch.cat(columns, dim=1) for columns in zip(*parts, strict=True)))


def _pieces(anchors: Tensor, boxes: Tensor) -> Iterator[Tensor]:
    yield from anchors.split(max(1, PAIRS // max(1, boxes.shape[0] * boxes.shape[1])))


def _known(anchors: Tensor, boxes: Tensor, there: Tensor) -> Tensor:
    """Overlaps (images, anchors, boxes); of boxes that are not there, −1. There is always one column at least."""
    if not boxes.shape[1]:
        return boxes.new_full((len(boxes), len(anchors), 1), -1.0)
    return overlaps(anchors, boxes).masked_fill(~there.unsqueeze(1), -1.0)


def _match(found: Tensor, best_of_box: Tensor, positive: float, negative: float) -> Matches:
    most, box = found.max(-1)
    if not best_of_box.shape[1]:
        return Matches(box, most > 0, most < 0)
    chosen = (found == best_of_box.unsqueeze(1)) & (found > 0)
    forced, theirs = torch.where(chosen, found, -1.0).max(-1)
    box = torch.where(forced > 0, theirs, box)
    finds = (most >= positive) | (forced > 0)
    return Matches(box, finds, ~finds & (most < negative))
