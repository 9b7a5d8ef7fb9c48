"""Answers are drawn on images, and the pictures of a training are in TensorBoard and in the report."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.event_files import raw
from kit.shapes import draw_shapes
from PIL import Image

import headrace as hr
from headrace import vision
from headrace.vision.pictures import COLOURS
from headrace.watch.report import write

SHAPES = draw_shapes(6, 32, seed=4)


def colours(picture: Any) -> set[tuple[int, ...]]:
    return {tuple(pixel) for row in np.asarray(picture).tolist() for pixel in row}


def test_a_class_is_written_on_its_image() -> None:
    plain, named = (vision.draw(torch.zeros(1, 32, 32), torch.tensor(k), ["dog", "cat"]) for k in (0, 1))
    assert plain.size == named.size == (128, 128)
    assert max(red - blue for red, _, blue in colours(plain)) > 100 > max(red - blue for red, _, blue in colours(named))


def test_a_mask_tints_its_pixels() -> None:
    image, mask = torch.zeros(3, 40, 32), torch.zeros(40, 32, dtype=torch.int64)
    mask[10:20, 5:9] = 2
    pixels = np.asarray(vision.draw(image, mask))
    assert pixels.shape == (160, 128, 3)
    tinted = (pixels.sum(-1) > 0).nonzero()
    assert (tinted[0].min(), tinted[0].max(), tinted[1].min(), tinted[1].max()) == (40, 79, 20, 35)


def test_boxes_are_drawn_in_the_colours_of_their_classes_and_weak_ones_are_left_out() -> None:
    truth = torch.tensor([[4.0, 4, 20, 28, 1], [0, 0, 0, 0, -1]])
    assert COLOURS[1] in colours(vision.draw(torch.zeros(1, 32, 32), truth))
    found = torch.tensor([[4.0, 4, 20, 28, 0.9, 1], [1, 1, 9, 9, 0.2, 2]])
    drawn = colours(vision.draw(torch.zeros(1, 32, 32), found, score=0.3))
    assert COLOURS[1] in drawn
    assert COLOURS[2] not in drawn


def trained(run: Path, target: str, epochs: int = 2, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model: Any = vision.ImageClassifier(4, 1, widths=(4,))
    loss: Any = hr.CrossEntropy()
    if target == "segmentation_image":
        model = vision.Segmenter(5, 1, widths=(4, 4))
    elif target == "bbox":
        model = vision.Detector(4, 1, widths=(2, 2, 4, 4), features=4, anchors=vision.Anchors(strides=(4, 8)))
        loss = vision.Detection()
    streams = {"image": SHAPES.image, target: getattr(SHAPES, target)}
    trainer = hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), 0.01), target=target, device="cpu")
    pictures = vision.Pictures(streams, count=3)
    trainer.fit(streams, epochs=epochs, progress=False, run=run, callbacks=[pictures], **options)
    return trainer


@pytest.mark.parametrize("target", ["image_label_id", "segmentation_image", "bbox"])
def test_the_pictures_of_a_training_are_in_tensorboard_and_in_the_report(tmp_path: Path, target: str) -> None:
    trained(tmp_path / "run", target)
    events = [event for event in raw(tmp_path / "run" / "pictures") if event.summary.value]
    assert [event.step for event in events] == [1, 2]
    newest = events[-1].summary.value[0].image
    assert newest.encoded_image_string == (tmp_path / "run" / "pictures" / "newest.png").read_bytes()
    sheet = Image.open(io.BytesIO(newest.encoded_image_string))
    assert (sheet.width, sheet.height) == (newest.width, newest.height) == (3 * 134 - 6, 2 * 134 - 6)
    page = write(tmp_path / "run").read_text()
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert [base64.b64decode(each) for each in found] == [newest.encoded_image_string]


def test_a_training_that_goes_on_replaces_pictures_of_later_steps(tmp_path: Path) -> None:
    trained(tmp_path / "run", "image_label_id", epochs=1)
    folder = tmp_path / "run" / "pictures"
    (folder / "events.out.tfevents.0000000009.pictures").write_bytes(b"of a step that was lost")
    trained(tmp_path / "run", "image_label_id", epochs=3)
    assert [event.step for event in raw(folder) if event.summary.value] == [1, 2, 3]


def test_a_picture_that_is_none_is_told_of_in_the_report(tmp_path: Path) -> None:
    trained(tmp_path / "run", "image_label_id", epochs=1)
    (tmp_path / "run" / "pictures" / "newest.png").write_bytes(b"<script>")
    page = write(tmp_path / "run").read_text()
    assert "pictures/newest.png cannot be read: it is no PNG." in page
    assert "data:image/png;base64" not in page


def test_pictures_without_the_target_are_refused(tmp_path: Path) -> None:
    model = vision.ImageClassifier(4, 1, widths=(4,))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), target="image_label_id")
    streams = {"image": SHAPES.image, "image_label_id": SHAPES.image_label_id}
    pictures = vision.Pictures({"image": SHAPES.image})
    with pytest.raises(hr.ConfigError, match="Pictures needs the streams 'image' and 'image_label_id', got image"):
        trainer.fit(streams, epochs=1, progress=False, run=tmp_path / "run", callbacks=[pictures])
