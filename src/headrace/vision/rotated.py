"""Rotated boxes, (row, col, phi, length1, length2): their corners, the boxes around them, and how they overlap."""

import torch
from torch import Tensor

PAIRS = 1 << 18  # pairs of boxes that are cut with each other at once
NEAR = 1e-6  # of the sizes of boxes: what counts as on an edge


def corners(boxes: Tensor) -> Tensor:
    """The corners of rotated boxes in order, as (row, column): shape (..., 4, 2)."""
    middle, phi, along, across = boxes[..., None, :2], boxes[..., 2, None], boxes[..., 3, None], boxes[..., 4, None]
    u = along * along.new_tensor([1.0, -1.0, -1.0, 1.0])
    v = across * across.new_tensor([1.0, 1.0, -1.0, -1.0])
    cos, sin = phi.cos(), phi.sin()
    return middle + torch.stack([-u * sin - v * cos, u * cos - v * sin], dim=-1)


def hulls(boxes: Tensor) -> Tensor:
    """The axis-parallel boxes around rotated ones."""
    points = corners(boxes)
    return torch.cat([points.amin(-2), points.amax(-2)], dim=-1)


def rotated_overlaps(a: Tensor, b: Tensor) -> Tensor:
    """The intersection over the union of rotated boxes (..., A, 5) with (..., B, 5), of shape (..., A, B).

    Only pairs whose hulls meet are cut with each other.
    """
    first, second = hulls(a).unsqueeze(-2), hulls(b).unsqueeze(-3)
    meet = ((first[..., :2] < second[..., 2:]) & (second[..., :2] < first[..., 2:])).all(-1)
    found = a.new_zeros(meet.shape)
    shape = (*meet.shape, 5)
    left, right = a.unsqueeze(-2).expand(shape)[meet], b.unsqueeze(-3).expand(shape)[meet]
    if not len(left):
        return found
    parts = zip(left.split(PAIRS), right.split(PAIRS), strict=True)
    found[meet] = torch.cat([_shared(one, other) for one, other in parts])
    return found


def _shared(a: Tensor, b: Tensor) -> Tensor:
    """The intersection over the union of pairs: the polygon of crossings of edges and of corners within the other.

    The middle of each pair's first box is made the origin, so that large coordinates cost no precision.
    """
    origin = a[:, :2].clone()
    a, b = a.clone(), b.clone()
    a[:, :2] -= origin
    b[:, :2] -= origin
    first, second = corners(a), corners(b)
    crossings, cross = _crossings(first, second)
    points = torch.cat([crossings, first, second], dim=1)
    there = torch.cat([cross, _within(first, b), _within(second, a)], dim=1)
    number = there.sum(1, keepdim=True).clamp(min=1)
    centre = (points * there.unsqueeze(-1)).sum(1, keepdim=True) / number.unsqueeze(-1)
    points = points - centre
    angle = torch.atan2(points[..., 0], points[..., 1]).masked_fill(~there, 7.0)  # what is not there comes last
    order = angle.argsort(dim=1)
    points = points.gather(1, order.unsqueeze(-1).expand_as(points))
    points = torch.where(there.gather(1, order).unsqueeze(-1), points, points[:, :1])  # and adds no area
    after = points.roll(-1, dims=1)
    twice = (points[..., 1] * after[..., 0] - points[..., 0] * after[..., 1]).sum(1).abs()
    own, other = 4 * a[:, 3:].clamp(min=0).prod(1), 4 * b[:, 3:].clamp(min=0).prod(1)
    shared = torch.minimum(twice / 2, torch.minimum(own, other))
    joint = own + other - shared
    return torch.where(joint > 0, shared / joint.clamp(min=torch.finfo(joint.dtype).tiny), 0)


def _crossings(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Where the four edges of each of two boxes cross, (pairs, 16, 2), and whether they do."""
    p, q = first.unsqueeze(2), second.unsqueeze(1)
    r, s = (first.roll(-1, dims=1) - first).unsqueeze(2), (second.roll(-1, dims=1) - second).unsqueeze(1)
    turn = _cross(r, s)
    parallel = turn.abs() <= NEAR * (r.norm(dim=-1) * s.norm(dim=-1))
    safe = torch.where(parallel, 1, turn)
    t, u = _cross(q - p, s) / safe, _cross(q - p, r) / safe
    there = ~parallel & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    return (p + t.unsqueeze(-1) * r).flatten(1, 2), there.flatten(1)


def _within(points: Tensor, boxes: Tensor) -> Tensor:
    """Which of the points of each pair lie in its box, (pairs, 4)."""
    row, column = (points - boxes[:, None, :2]).unbind(-1)
    cos, sin = boxes[:, 2, None].cos(), boxes[:, 2, None].sin()
    along, across = column * cos - row * sin, -column * sin - row * cos
    reach = boxes[:, 3:] * (1 + NEAR) + NEAR
    return (along.abs() <= reach[:, :1]) & (across.abs() <= reach[:, 1:])


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
