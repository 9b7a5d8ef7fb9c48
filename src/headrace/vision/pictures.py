"""Draws classes, masks and boxes on images, and shows what a model predicts while it trains."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..adapters.adapt import as_table
from ..errors import ConfigError, DataError
from ..watch.callback import Callback
from ..watch.files import OutputPath
from ..watch.info import Info
from ..watch.tensorboard import PICTURES, drop_pictures, write_picture
from .augment import IMAGE
from .detection import NONE

if TYPE_CHECKING:
    from PIL import Image

COLOURS = (
    (230, 70, 60),
    (60, 150, 240),
    (80, 190, 90),
    (245, 180, 40),
    (170, 90, 220),
    (40, 190, 190),
    (240, 120, 190),
)
SHARE = 0.45  # of a pixel that the colour of its class makes up
LEAST = 128  # pixels of the longer edge of an image as it is drawn
GAP, GROUND = 6, (255, 255, 255)


def draw(image: Tensor, answer: Tensor, classes: Sequence[str] = (), *, score: float | None = None) -> Image.Image:
    """Draws a label or a prediction on an image (channels, rows, columns), and returns a picture of Pillow.

    The label is a class, a class for each pixel, (rows, columns), or boxes with their classes, (boxes, 5). With
    `score`, it is detections, (boxes, 6), which have a score before the class; those with a lower score are left out.
    Class −1 is never drawn.
    """
    from PIL import Image, ImageDraw

    rows, columns = image.shape[-2:]
    grey = image.detach().cpu().float()
    low, high = grey.min(), grey.max()
    pixels = ((grey - low) / (high - low).clamp(min=1e-12) * 255).byte()
    pixels = pixels.expand(3, -1, -1) if len(pixels) == 1 else pixels[:3]
    shown = pixels.movedim(0, -1).numpy()
    answer = answer.detach().cpu()
    if answer.shape == (rows, columns):
        shown = _tinted(shown, answer)
    factor = max(1, -(-LEAST // max(rows, columns)))
    picture = Image.fromarray(np.ascontiguousarray(shown)).resize((columns * factor, rows * factor), 0)
    pen = ImageDraw.Draw(picture)
    if answer.dim() == 0:
        text, colour = _label(int(answer), classes)
        pen.text((3, 2), text, fill=colour, stroke_width=2, stroke_fill=(0, 0, 0))
    elif answer.dim() == 2 and answer.shape != (rows, columns):
        for box in answer[answer[:, -1] != NONE]:
            _draw_box(pen, box, factor, classes, score)
    elif answer.dim() != 2:
        raise DataError(f"an answer is a class, a class at each pixel, or boxes; got the shape {list(answer.shape)}.")
    return picture


class Pictures(Callback):
    """Draws some images at every report, with their labels above and the predictions of the model below.

    `data` are rows with the stream `image` and the trainer's target; the first `count` of them are drawn. The pictures
    are files in the directory `pictures` of the run, or in `path`. TensorBoard shows them at their steps, and the
    report shows the newest. Detections with a score below `score` are left out. With several workers nothing is drawn.
    """

    everywhere = False

    def __init__(
        self,
        data: Any,
        *,
        classes: Sequence[str] = (),
        count: int = 8,
        score: float = 0.3,
        path: str | Path | None = None,
    ) -> None:
        if count < 1:
            raise ConfigError(f"count= is a number of images, at least 1, got {count!r}.")
        table = as_table(data)
        self._rows = table.rows(0, min(count, len(table)))
        self._classes, self._score = tuple(classes), score
        self._place = OutputPath(self, path, PICTURES)

    def on_fit_start(self, info: Info) -> None:
        if IMAGE not in self._rows or info.trainer.target not in self._rows:
            raise ConfigError(
                f"Pictures needs the streams {IMAGE!r} and {info.trainer.target!r}, got {', '.join(self._rows.fields)}."
            )
        self._folder = self._place.folder(info)
        drop_pictures(self._folder, info.step)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        if info.is_only_worker:
            picture = self.sheet(info.trainer)
            picture.save(buffer := io.BytesIO(), "PNG")
            write_picture(self._folder, int(row["step"]), buffer.getvalue(), picture.size)

    def sheet(self, trainer: Any) -> Image.Image:
        """The images side by side, with their labels above and the predictions of the trainer's model below."""
        images, truth = self._rows[IMAGE], self._rows[trainer.target]
        answers = trainer.predict({IMAGE: images})
        score, answers = (self._score, answers) if answers.dim() == 3 else (None, answers.argmax(1))
        above = [draw(image, each, self._classes) for image, each in zip(images, truth, strict=True)]
        below = [draw(image, each, self._classes, score=score) for image, each in zip(images, answers, strict=True)]
        return _beside([above, below])


def _beside(lines: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Pictures of one size in lines."""
    from PIL import Image

    wide, high = (edge + GAP for edge in lines[0][0].size)
    sheet = Image.new("RGB", (wide * len(lines[0]) - GAP, high * len(lines) - GAP), GROUND)
    for k, line in enumerate(lines):
        for place, picture in enumerate(line):
            sheet.paste(picture, (wide * place, high * k))
    return sheet


def _draw_box(pen: Any, box: Tensor, factor: int, classes: Sequence[str], least: float | None) -> None:
    text, colour = _label(int(box[-1]), classes)
    if least is not None:
        text += f" {float(box[-2]):.2f}"
        if box[-2] < least:
            return
    r1, c1, r2, c2 = (number * factor for number in box[:4].tolist())
    place = [(c1, r1), (c2, r1), (c2, r2), (c1, r2)]
    pen.line([*place, place[0]], fill=colour, width=2)
    pen.text(min(place), text, fill=colour, stroke_width=1, stroke_fill=(0, 0, 0))


def _tinted(pixels: np.ndarray[Any, Any], mask: Tensor) -> np.ndarray[Any, Any]:
    """Pixels in the colours of their classes; class 0 is the ground, and stays as it is."""
    palette = torch.tensor(COLOURS)[(mask.clamp(min=1) - 1) % len(COLOURS)].numpy()
    tinted = (pixels * (1 - SHARE) + palette * SHARE).astype(np.uint8)
    return np.where((mask > 0).numpy()[..., None], tinted, pixels)


def _label(label: int, classes: Sequence[str]) -> tuple[str, tuple[int, int, int]]:
    """The name of a class, and its colour."""
    return classes[label] if 0 <= label < len(classes) else str(label), COLOURS[label % len(COLOURS)]
