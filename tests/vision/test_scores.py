"""Average precision is that of COCO."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headrace as hr
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


def test_boxes_and_detections_of_other_kinds_are_refused() -> None:
    with pytest.raises(hr.DataError, match=r"got \[2, 3, 6\] and \[2, 3, 6\]"):
        vision.MeanAveragePrecision().update(torch.zeros(2, 3, 6), torch.zeros(2, 3, 6))
    bad: Any
    for bad in ((), 0.0, [0.5, 1.5]):
        with pytest.raises(hr.ConfigError, match="iou= is one overlap between 0 and 1"):
            vision.MeanAveragePrecision(bad)
