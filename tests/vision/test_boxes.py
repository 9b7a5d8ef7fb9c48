"""Boxes overlap, are coded and suppressed as one by one."""

import math

import pytest
import torch
from torch import Tensor

from headrace import vision
from headrace.vision.boxes import areas

GENERATOR = torch.Generator().manual_seed(0)


def some(count: int, spread: float = 60.0) -> Tensor:
    """Boxes of sizes between 4 and 24."""
    middle, size = torch.rand(count, 2, generator=GENERATOR), torch.rand(count, 2, generator=GENERATOR) * 20 + 4
    return torch.cat([middle * spread, middle * spread + size], dim=1)


def test_overlaps_are_those_of_the_formula() -> None:
    a, b = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([[2.0, 2, 6, 6], [0, 0, 4, 4], [4, 4, 8, 8], [3, 3, 3, 9]])
    assert vision.overlaps(a, b).tolist() == [pytest.approx([4 / 28, 1, 0, 0])]


def test_a_box_is_what_its_code_is_decoded_to() -> None:
    boxes, anchors = some(200), some(200)
    found = vision.decode(vision.encode(boxes, anchors), anchors)
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


@pytest.mark.parametrize("most", [0.1, 0.5])
def test_the_boxes_that_stay_are_those_of_the_loop_over_boxes(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    boxes, labels = some(150, spread=30), torch.randint(2, (150,), generator=GENERATOR)
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
