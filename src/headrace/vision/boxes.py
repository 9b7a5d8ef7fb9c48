"""Boxes: how they overlap, how they are coded relative to anchors, and which of them are suppressed.

A box is (row1, col1, row2, col2), or, rotated, (row, col, phi, length1, length2): its middle, the angle of its first
axis against the columns, counterclockwise, and half of its edges, the first along that axis. Pixels are squares of edge
1, so that an image reaches from 0 to its height and width.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .rotated import hulls, rotated_overlaps

FURTHEST = math.log(62.5)  # how many times as large as its anchor a decoded box may be, as a logarithm
BLOCK = 1024  # boxes that are compared with each other at once


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """The intersection over the union of boxes (..., A, 4 or 5) with boxes (..., B, the same), of shape (..., A, B)."""
    if a.shape[-1] == 5:
        return rotated_overlaps(a, b)
    first, second = a.unsqueeze(-2), b.unsqueeze(-3)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp_(min=0).prod(-1)
    joint = areas(a).unsqueeze(-1) + areas(b).unsqueeze(-2) - shared
    return torch.where(joint > 0, shared / joint.clamp(min=torch.finfo(joint.dtype).tiny), 0)


def areas(boxes: Tensor) -> Tensor:
    """The areas of boxes; 0 where an edge is not positive."""
    if boxes.shape[-1] == 5:
        return 4 * boxes[..., 3:].clamp(min=0).prod(-1)
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Codes of boxes relative to their anchors: offsets by the size of the anchor, logarithms of sizes, angles.

    Rows and columns of rotated ones are those of the anchor's frame; angles are modulo π, in [−π/2, π/2).
    """
    middle, size, phi = _parts(boxes)
    at, own, turn = _parts(anchors)
    offset = middle - at if phi is None else _turned(middle - at, -turn)
    codes = torch.cat([offset / own, (size / own).log()], dim=-1)
    if phi is None:
        return codes
    angle = torch.remainder(phi - turn + math.pi / 2, math.pi) - math.pi / 2
    return torch.cat([codes, angle.unsqueeze(-1)], dim=-1)


def decode(codes: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that have these codes relative to their anchors."""
    at, own, turn = _parts(anchors)
    offset, size = codes[..., :2] * own, codes[..., 2:4].clamp(max=FURTHEST).exp() * own
    if anchors.shape[-1] == 4:
        return torch.cat([at + offset - size / 2, at + offset + size / 2], dim=-1)
    phi = (codes[..., 4] + turn).unsqueeze(-1)
    return torch.cat([at + _turned(offset, turn), phi, size.flip(-1) / 2], dim=-1)


def _parts(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Middle and size, as (rows, columns) of the box's own frame, and the angle, `None` of boxes that have none."""
    if boxes.shape[-1] == 4:
        return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2], None  # type: ignore[return-value]
    return boxes[..., :2], 2 * boxes[..., 3:].flip(-1), boxes[..., 2]


def _turned(points: Tensor, phi: Tensor) -> Tensor:
    """Points as (row, column), turned counterclockwise; rows go down."""
    cos, sin = phi.cos(), phi.sin()
    row, column = points.unbind(-1)
    return torch.stack([row * cos - column * sin, row * sin + column * cos], dim=-1)


def suppress(boxes: Tensor, labels: Tensor, valid: Tensor, most: float = 0.5) -> Tensor:
    """Which boxes stay, after each has removed those after it of its label that overlap it by more than `most`.

    Boxes are (..., K, 4 or 5), the best first; labels and `valid` are (..., K). A box that is removed removes none.
    That is solved a block of boxes at a time: from "all stay", what the ones that stay would remove is removed, until
    nothing changes. After n rounds the first n answers are right, and mostly few rounds do.
    """
    stays = valid.clone()
    for block in _blocks(boxes.shape[-2]):
        those, own = boxes[..., block, :], labels[..., block]
        for before in _blocks(block.start):
            removes = _removes(boxes[..., before, :], labels[..., before], those, own, most)
            stays[..., block] &= ~(removes & stays[..., before].unsqueeze(-1)).any(-2)
        removes = _removes(those, own, those, own, most).triu_(1)
        possible = stays[..., block].clone()
        while True:
            found = possible & ~(removes & stays[..., block].unsqueeze(-1)).any(-2)
            if torch.equal(found, stays[..., block]):
                break
            stays[..., block] = found
    return stays


def _removes(a: Tensor, of_a: Tensor, b: Tensor, of_b: Tensor, most: float) -> Tensor:
    return (overlaps(a, b) > most) & (of_a.unsqueeze(-1) == of_b.unsqueeze(-2))


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(count, start + BLOCK))


def cut_to(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes cut at the edges of an image; rotated ones stay as they are."""
    if boxes.shape[-1] == 5:
        return boxes
    limits = boxes.new_tensor([height, width, height, width])
    return torch.minimum(boxes.clamp(min=0), limits)


def around(boxes: Tensor) -> Tensor:
    """The axis-parallel boxes around these."""
    return hulls(boxes) if boxes.shape[-1] == 5 else boxes
