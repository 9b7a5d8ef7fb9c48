"""Anchors lie where they should, and find the boxes that they are responsible for."""

import pytest
import torch
from kit.shapes import draw_shapes
from torch import Tensor

from headrace import vision

CPU = torch.device("cpu")


def test_anchors_stand_in_the_middle_of_the_places_of_each_grid() -> None:
    found = vision.Anchors(strides=(8, 16), sizes=(2.0,), ratios=(1.0, 4.0))(32, 16, CPU)
    assert len(found) == 2 * (4 * 2 + 2 * 1)
    assert found[0].tolist() == [4 - 8, 4 - 8, 4 + 8, 4 + 8]
    assert found[1].tolist() == [4 - 16, 4 - 4, 4 + 16, 4 + 4]
    middles = (found[:, :2] + found[:, 2:]) / 2
    assert middles[::2].tolist() == [[r, c] for r in (4, 12, 20, 28) for c in (4, 12)] + [[8, 8], [24, 8]]


BOXES = torch.tensor([[[0.0, 0, 10, 10], [20, 20, 30, 30]], [[0, 0, 0, 0], [0, 0, 0, 0]]])
THERE = torch.tensor([[True, True], [False, False]])
ANCHORS = torch.tensor(
    [[0.0, 0, 10, 9], [0, 0, 10, 4.5], [0, 0, 10, 3], [20, 26, 30, 36], [50, 50, 60, 60], [20, 24, 30, 34]]
)


def test_anchors_find_what_they_overlap_and_the_best_of_a_box_finds_it_in_any_case() -> None:
    found = vision.match(ANCHORS, BOXES, THERE)
    assert found.positive[0].tolist() == [True, False, False, False, False, True]  # the last overlaps by 3/7
    assert found.negative[0].tolist() == [False, False, True, True, True, False]  # the second by 0.45: ignored
    assert found.box[0, [0, 5]].tolist() == [0, 1]
    assert not found.positive[1].any()
    assert found.negative[1].all()


def by_hand(anchors: Tensor, boxes: Tensor) -> tuple[list[int], list[int]]:
    """For every anchor 1, 0 or −1 (ignored), and the box that it finds, one by one."""
    found = vision.overlaps(anchors, boxes).tolist()
    best = [max(row[j] for row in found) for j in range(len(boxes))]
    kinds, theirs = [], []
    for row in found:
        forced = [j for j, value in enumerate(row) if value == best[j] > 0]
        j = max(forced, key=lambda j: row[j]) if forced else max(range(len(row)), key=lambda j: row[j])
        kinds.append(1 if forced or row[j] >= 0.5 else 0 if row[j] < 0.4 else -1)
        theirs.append(j)
    return kinds, theirs


@pytest.mark.parametrize("pairs", [1 << 22, 500])
def test_matching_is_that_of_the_loop_over_anchors_and_boxes(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr("headrace.vision.anchors.PAIRS", pairs)
    shapes = draw_shapes(6, seed=3).bbox
    anchors = vision.Anchors()(64, 64, CPU)
    found = vision.match(anchors, shapes[..., :4], shapes[..., 4] >= 0)
    for k, image in enumerate(shapes):
        kinds, theirs = by_hand(anchors, image[image[:, 4] >= 0][:, :4])
        expected = torch.tensor(kinds)
        assert torch.equal(found.positive[k], expected == 1)
        assert torch.equal(found.negative[k], expected == 0)
        assert torch.equal(found.box[k][expected == 1], torch.tensor(theirs)[expected == 1])
