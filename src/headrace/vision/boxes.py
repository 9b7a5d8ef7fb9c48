"""Boxes: how they overlap, how they are coded relative to anchors, and which of them are suppressed.

A box is (row1, col1, row2, col2). Pixels are squares of edge 1: an image reaches from 0 to its height and width.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

FURTHEST = math.log(62.5)  # how many times as large as its anchor a decoded box may be, as a logarithm
BLOCK = 1024  # boxes that are compared with each other at once


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """The intersection over the union of boxes (..., A, 4) with boxes (..., B, 4), of shape (..., A, B)."""
    first, second = a.unsqueeze(-2), b.unsqueeze(-3)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp_(min=0).prod(-1)
    joint = areas(a).unsqueeze(-1) + areas(b).unsqueeze(-2) - shared
    return torch.where(joint > 0, shared / joint.clamp(min=torch.finfo(joint.dtype).tiny), 0)


def areas(boxes: Tensor) -> Tensor:
    """The areas of boxes; 0 where an edge is not positive."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Codes of boxes relative to their anchors: offsets by the size of the anchor, and logarithms of sizes."""
    (middle, size), (at, own) = _middle_and_size(boxes), _middle_and_size(anchors)
    return torch.cat([(middle - at) / own, (size / own).log()], dim=-1)


def decode(codes: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that have these codes relative to their anchors."""
    at, own = _middle_and_size(anchors)
    offset, size = codes[..., :2] * own, codes[..., 2:].clamp(max=FURTHEST).exp() * own
    return torch.cat([at + offset - size / 2, at + offset + size / 2], dim=-1)


def _middle_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]


def suppress(boxes: Tensor, labels: Tensor, valid: Tensor, iou: float = 0.5) -> Tensor:
    """Which boxes stay, after each has removed those after it of its label that overlap it by more than `iou`.

    Boxes are (..., K, 4), the best first; labels and `valid` are (..., K). A box that is removed removes none.
    That is solved a block of boxes at a time: from "all stay", what the ones that stay would remove is removed, until
    nothing changes. After n rounds the first n answers are right, and mostly few rounds do.
    """
    stays = valid.clone()
    for block in _blocks(boxes.shape[-2]):
        those, own = boxes[..., block, :], labels[..., block]
        for before in _blocks(block.start):
            removes = _removes(boxes[..., before, :], labels[..., before], those, own, iou)
            stays[..., block] &= ~(removes & stays[..., before].unsqueeze(-1)).any(-2)
        removes = _removes(those, own, those, own, iou).triu_(1)
        possible = stays[..., block].clone()
        while True:
            found = possible & ~(removes & stays[..., block].unsqueeze(-1)).any(-2)
            if torch.equal(found, stays[..., block]):
                break
            stays[..., block] = found
    return stays


def _removes(a: Tensor, of_a: Tensor, b: Tensor, of_b: Tensor, iou: float) -> Tensor:
    return (overlaps(a, b) > iou) & (of_a.unsqueeze(-1) == of_b.unsqueeze(-2))


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(count, start + BLOCK))


def cut_to(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes cut at the edges of an image."""
    limits = boxes.new_tensor([height, width, height, width])
    return torch.minimum(boxes.clamp(min=0), limits)
