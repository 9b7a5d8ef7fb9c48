"""Average precision is that of COCO."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace import vision


def found_and_wanted(seed: int, images: int = 40, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Boxes, and detections that are near some of them, twice some, and invented."""
    draw = np.random.default_rng(seed)
    boxes, detections = np.zeros((images, 6, 5)), np.zeros((images, 20, 6))
    boxes[..., -1] = detections[..., -1] = -1
    for k in range(images):
        count = draw.integers(0, 7)
        corner, size = draw.uniform(0, 60, (count, 2)), draw.uniform(6, 40, (count, 2))
        boxes[k, :count] = np.hstack([corner, corner + size, draw.integers(0, classes, (count, 1))])
        near = np.repeat(boxes[k, :count], 3, axis=0)[: draw.integers(0, 17)]
        near[:, :4] += draw.normal(0, 2.5, (len(near), 4))
        wrong = draw.random(len(near)) < 0.15
        near[wrong, 4] = draw.integers(0, classes, wrong.sum())
        invented = np.hstack(
            [draw.uniform(0, 50, (4, 2)), draw.uniform(50, 90, (4, 2)), draw.integers(0, classes, (4, 1))]
        )
        rows = np.vstack([near, invented])[:20]
        scores = np.round(draw.random(len(rows)), 2)  # some are equal
        order = np.argsort(-scores, kind="stable")
        detections[k, : len(rows)] = np.hstack([rows[:, :4], scores[:, None], rows[:, 4:]])[order]
    return torch.from_numpy(detections).float(), torch.from_numpy(boxes).float()


EXPECTED = json.loads((Path(__file__).parent / "coco_figures.json").read_text())
"""What pycocotools 2.0 says of these, by seed: over all overlaps, at 0.5, at 0.75, and each class."""


@pytest.mark.parametrize("seed", sorted(EXPECTED))
def test_average_precision_is_what_the_tools_of_coco_say(seed: str) -> None:
    detections, boxes = found_and_wanted(int(seed))
    for iou, key in ((None, "all"), (0.5, "0.5"), (0.75, "0.75")):
        metric = vision.MeanAveragePrecision() if iou is None else vision.MeanAveragePrecision(iou)
        for part in range(0, len(boxes), 16):
            metric.update(detections[part : part + 16], boxes[part : part + 16])
        assert metric.compute() == pytest.approx(EXPECTED[seed][key], abs=2e-6)
        if iou is None:
            assert list(metric.by_class().values()) == pytest.approx(EXPECTED[seed]["classes"], abs=2e-6)


def test_a_metric_goes_on_from_its_state_and_begins_again_after_a_reset() -> None:
    detections, boxes = found_and_wanted(5)
    whole, first, second = (vision.MeanAveragePrecision() for _ in range(3))
    whole.update(detections, boxes)
    first.update(detections[:10], boxes[:10])
    second.load_state_dict(first.state_dict())
    second.update(detections[10:], boxes[10:])
    assert second.compute() == whole.compute() > 0.1
    whole.reset()
    assert whole.compute() == 0
