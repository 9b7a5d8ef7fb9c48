"""What cannot work is refused in a sentence that names what was given."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.shapes import draw_shapes

import headrace as hr
from headrace import vision
from headrace.data.draws import Draws


def stepped(model: torch.nn.Module, bbox: torch.Tensor) -> None:
    """An update of a detector by two images and these boxes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = hr.Trainer(model, vision.Detection(), optimizer, target="bbox", device="cpu")
    trainer.step({"image": torch.zeros(2, 1, 32, 32), "bbox": bbox})


def samples(task: Any = "detection", ids: Any = 3) -> vision.ImageSamples:
    return vision.ImageSamples(task, ids)


WEIGHED = {"image": np.zeros((3, 8, 8)), "segmentation_image": np.zeros((8, 8)), "weight_image": np.full((8, 8), -1.0)}
NO_BOXES = torch.full((2, 1, 5), -1.0)
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: vision.Anchors(sizes=()), r"sizes= are numbers greater than 0, at least one, got \(\)"),
    (lambda: vision.Augment(zoom=(1.2, 0.8)), r"zoom= .* \(1.2, 0.8\)"),
    (lambda: vision.Augment(mirror=2.0), "mirror= is between 0 and 1, got 2.0"),
    (lambda: vision.Augment()({"x": torch.zeros(2, 3)}, Draws.at(7, [(0, 0, 2)])), r"stream 'image' .* got \['x'\]"),
    (
        lambda: vision.Detector(2, 1, widths=(4, 4, 4), anchors=vision.Anchors((4, 8))),
        r"strides \[4, 8\]; with 3 widths they are powers of 2 that rise to 4",
    ),
    (
        lambda: stepped(vision.ImageClassifier(2, 1, widths=(4,)), NO_BOXES),
        "'class_logits', 'box_codes' and 'anchors', got a Tensor",
    ),
    (
        lambda: stepped(vision.Detector(2, 1), NO_BOXES[..., 1:]),
        r"'bbox' has rows of shape \[1, 4\], expected boxes and their classes",
    ),
    (lambda: vision.class_folders("none", (8, 8)), "is no folder"),
    (lambda: vision.class_folders(".", (8, 8)), r"cat has no image files \(\.bmp, "),
    (lambda: vision.class_folders("cat", (8, 8)), "has no folders with images"),
    (lambda: vision.ImageFiles(["pipe.png"], (8, 8)).rows(0, 1), r"pipe\.png is not there, or no file"),
    (lambda: vision.coco("pipe.png", ".", (8, 8)), "is no file"),
    (lambda: vision.ImageFiles(["a"], (8, 8), channels=4), "channels= are 1 or 3, .* got channels=4"),
    (lambda: vision.ImageFiles(["a"], 8), "size= rows and columns, got channels=3, size=8"),  # type: ignore[arg-type]
    (lambda: vision.ImageFiles(["a"], (8, 8), masks=["a", "b"]), r"there are 1 image files \(masks: 2\)"),
    (lambda: vision.ImageFiles(["a"], (8, 8), mean=[0.5, 0.5]), "one number, or one for each of 3 channels"),
    (lambda: vision.ImageFiles(["a"], (8, 8), std=[1.0, 1.0, -1.0]), "std= is greater than 0"),
    (lambda: vision.Segmenter(2, norm="layer"), "unknown norm 'layer'"),  # type: ignore[arg-type]
    (lambda: vision.ImageClassifier(2, widths=()), r"widths= are the channels of each stage, at least one, got \(\)"),
    (lambda: vision.Pictures({"image": torch.zeros(1, 1, 8, 8)}, count=0), "count= is a number of images, .* got 0"),
    (lambda: vision.draw(torch.zeros(1, 8, 8), torch.zeros(2, 3, 4)), r"got the shape \[2, 3, 4\]"),
    (lambda: samples("segmentation").batch([WEIGHED]), r"sample 0, 'weight_image'.* not negative, got -1"),
    (lambda: samples(ids=[1, 2, 2]), "are different labels"),
    (lambda: samples("detect"), r"unknown task 'detect'\. Did you mean 'detection'"),
    (lambda: samples().batch([]), "at least one, got list"),
    (lambda: samples(ids=["cat", "dog"]), "class_ids= and ignore_class_ids= are whole numbers, got"),
    (
        lambda: vision.MeanAveragePrecision().update(torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)),
        r"got \[2, 3, 6\] and \[2, 3, 6\]",
    ),
    (lambda: vision.MeanAveragePrecision(()), "iou= is one overlap between 0 and 1"),
    (lambda: vision.MeanAveragePrecision([0.5, 1.5]), "iou= is one overlap between 0 and 1"),
    (lambda: draw_shapes(0), r"draw_shapes\(count=0, size=64, max_shapes=3, .*: at least 1, 16 and 1"),
    (lambda: draw_shapes(1, radii=(0.3, 0.2)), r"radii=\(0.3, 0.2\)\): .* radii between 0 and a half"),
]


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[re.sub(r"\W+", " ", said)[:40] for _, said in WRONG])
def test_what_cannot_work_is_refused(make: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hr.HeadraceError, match=said):
        make()
