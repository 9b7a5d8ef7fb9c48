"""Boxes overlap, are coded and suppressed as one by one."""

import math

import pytest
import torch
from torch import Tensor

from headrace import vision
from headrace.vision.boxes import areas
from headrace.vision.rotated import corners, hulls

GENERATOR = torch.Generator().manual_seed(0)


def some(count: int, rotated: bool = False, spread: float = 60.0) -> Tensor:
    """Boxes of sizes between 4 and 24."""
    middle, size = torch.rand(count, 2, generator=GENERATOR), torch.rand(count, 2, generator=GENERATOR) * 20 + 4
    if not rotated:
        return torch.cat([middle * spread, middle * spread + size], dim=1)
    phi = (torch.rand(count, 1, generator=GENERATOR) - 0.5) * 2 * math.pi
    return torch.cat([middle * spread, phi, size / 2], dim=1)


def test_overlaps_are_those_of_the_formula() -> None:
    a, b = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([[2.0, 2, 6, 6], [0, 0, 4, 4], [4, 4, 8, 8], [3, 3, 3, 9]])
    assert vision.overlaps(a, b).tolist() == [pytest.approx([4 / 28, 1, 0, 0])]


@pytest.mark.parametrize(("turn", "shared"), [(0.0, 1.0), (math.pi / 2, 1 / 3), (math.pi, 1.0)])
def test_rotated_boxes_around_one_middle_overlap_by_a_known_share(turn: float, shared: float) -> None:
    a = torch.tensor([[10.0, 10.0, 0.3, 6.0, 3.0]])
    b = a + torch.tensor([0, 0, turn, 0, 0])
    assert vision.overlaps(a, b).item() == pytest.approx(shared, abs=1e-5)


def test_two_squares_turned_by_45_degrees_share_an_octagon() -> None:
    a = torch.tensor([[5.0, 5.0, 0.0, 1.0, 1.0], [5.0, 5.0, math.pi / 4, 1.0, 1.0]], dtype=torch.float64)
    octagon = 8 * (math.sqrt(2) - 1)
    assert vision.overlaps(a[:1], a[1:]).item() == pytest.approx(octagon / (8 - octagon), rel=1e-9)


def test_rotated_boxes_that_are_not_turned_overlap_like_the_others() -> None:
    plain = some(60)
    middle, size = (plain[:, :2] + plain[:, 2:]) / 2, plain[:, 2:] - plain[:, :2]
    level = torch.cat([middle, torch.zeros(60, 1), size.flip(1) / 2], dim=1)
    upright = torch.cat([middle, torch.full((60, 1), math.pi / 2), size / 2], dim=1)
    expected = vision.overlaps(plain, plain)
    torch.testing.assert_close(vision.overlaps(level, level), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(vision.overlaps(level, upright), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(hulls(upright), plain, rtol=0, atol=1e-4)


def test_overlaps_of_rotated_boxes_are_those_that_counting_points_gives() -> None:
    a, b = some(6, rotated=True, spread=15), some(6, rotated=True, spread=15)
    axis = torch.arange(-30.0, 60.0, 0.1)
    points = torch.cartesian_prod(axis, axis)

    def inside(box: Tensor) -> Tensor:
        edges = corners(box)
        turns = [
            (q - p)[0] * (points - p)[:, 1] - (q - p)[1] * (points - p)[:, 0]
            for p, q in zip(edges, edges.roll(-1, 0), strict=True)
        ]
        sides = torch.stack(turns) >= 0
        return sides.all(0) | (~sides).all(0)

    for one, other in zip(a, b, strict=True):
        first, second = inside(one), inside(other)
        counted = (first & second).sum() / (first | second).sum()
        assert vision.overlaps(one[None], other[None]).item() == pytest.approx(counted.item(), abs=5e-3)


@pytest.mark.parametrize("rotated", [False, True])
def test_a_box_is_what_its_code_is_decoded_to(rotated: bool) -> None:
    boxes, anchors = some(200, rotated), some(200, rotated)
    found = vision.decode(vision.encode(boxes, anchors), anchors)
    if rotated:
        half_turns = (found[:, 2] - boxes[:, 2]) / math.pi
        torch.testing.assert_close(half_turns, half_turns.round(), rtol=0, atol=1e-4)
        found[:, 2] = boxes[:, 2]
    torch.testing.assert_close(found, boxes, rtol=1e-4, atol=1e-3)


def test_the_code_of_a_box_is_that_of_the_paper() -> None:
    box, anchor = torch.tensor([[2.0, 4, 6, 12]]), torch.tensor([[0.0, 0, 8, 4]])
    assert vision.encode(box, anchor)[0].tolist() == pytest.approx([0, 6 / 4, math.log(4 / 8), math.log(8 / 4)])


def one_by_one(boxes: Tensor, labels: Tensor, most: float) -> list[bool]:
    """Suppression as it is usually written."""
    stays: list[bool] = []
    found = vision.overlaps(boxes, boxes)
    for k in range(len(boxes)):
        stays.append(not any(stays[i] and labels[i] == labels[k] and found[i, k] > most for i in range(k)))
    return stays


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("most", [0.1, 0.5])
def test_the_boxes_that_stay_are_those_of_the_loop_over_boxes(
    monkeypatch: pytest.MonkeyPatch, rotated: bool, most: float
) -> None:
    boxes, labels = some(150, rotated, spread=30), torch.randint(2, (150,), generator=GENERATOR)
    valid = torch.ones(150, dtype=torch.bool)
    expected = one_by_one(boxes, labels, most)
    assert vision.suppress(boxes, labels, valid, most).tolist() == expected
    monkeypatch.setattr("headrace.vision.boxes.BLOCK", 32)
    assert vision.suppress(boxes, labels, valid, most).tolist() == expected
    assert 10 < sum(expected) < 140


def test_a_chain_of_boxes_keeps_every_second() -> None:
    """Each removes the next, if it has not been removed: the case of most rounds."""
    boxes = torch.tensor([[0.0, 3 * k, 10, 3 * k + 10] for k in range(21)])
    stays = vision.suppress(boxes, torch.zeros(21), torch.ones(21, dtype=torch.bool), 0.5)
    assert stays.tolist() == [k % 2 == 0 for k in range(21)]


def test_several_images_are_suppressed_at_once_and_what_is_not_valid_removes_nothing() -> None:
    boxes, labels = some(120, spread=20).view(3, 40, 4), torch.zeros(3, 40)
    valid = torch.rand(3, 40, generator=GENERATOR) > 0.3
    stays = vision.suppress(boxes, labels, valid, 0.4)
    for k in range(3):
        assert stays[k][valid[k]].tolist() == one_by_one(boxes[k][valid[k]], labels[k], 0.4)
    assert not (stays & ~valid).any()


def test_areas_of_boxes_without_an_edge_are_0() -> None:
    assert areas(torch.tensor([[0.0, 0, 2, 3], [0, 0, -1, 3]])).tolist() == [6, 0]
    assert areas(torch.tensor([[0.0, 0, 1, 2, 3]])).tolist() == [24]
