"""Drawn images of shapes with their labels, masks and boxes, to try networks on: no two alike, made from a seed."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import headrace as hr

NAMES = ("disc", "square", "triangle", "cross")
FLOOR = 0.35  # the least contrast of a shape


@dataclass(frozen=True)
class Shapes:
    """Images with their annotations, as `draw_shapes` makes them; streams as `ImageSamples` names them."""

    image: Tensor
    """(images, 1, size, size): mean about 0, from about −1 to 1."""
    image_label_id: Tensor
    """(images,): the kind of the shape that was drawn last, and is wholly to be seen."""
    segmentation_image: Tensor
    """(images, size, size): 0 the ground, else one more than the kind of the shape that is seen."""
    bbox: Tensor
    """(images, `max_shapes`, 5): row1, col1, row2, col2 of what is seen of a shape, its kind; of kind −1 nothing."""


def draw_shapes(
    count: int,
    size: int = 64,
    *,
    seed: int = 0,
    max_shapes: int = 3,
    noise: float = 0.1,
    alike: bool = False,
    radii: tuple[float, float] = (0.11, 0.25),
) -> Shapes:
    """Draws images of 1 to `max_shapes` shapes of several sizes and contrasts, turned, over each other, and with noise.

    `radii` are those of the smallest and the largest, as shares of the size. `alike`: those of an image are of one
    kind. Of a shape that others hide to less than a third there is no box.
    """
    if count < 1 or max_shapes < 1 or size < 16 or not 0 < radii[0] <= radii[1] < 0.5:
        raise hr.ConfigError(
            f"draw_shapes(count={count}, size={size}, max_shapes={max_shapes}, radii={radii}): at least 1, 16 and 1 "
            "are needed, and radii between 0 and a half."
        )
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size].astype(np.float32) + 0.5
    images = np.empty((count, 1, size, size), np.float32)
    labels, masks = np.empty(count, np.int64), np.zeros((count, size, size), np.int64)
    boxes = np.zeros((count, max_shapes, 5), np.float32)
    boxes[:, :, 4] = -1
    for k in range(count):
        slope = random.normal(0, 0.2, 2)
        image = (rows / size - 0.5) * slope[0] + (columns / size - 0.5) * slope[1]
        owner = np.full((size, size), -1)
        drawn = []
        only = int(random.integers(len(NAMES)))
        for number in range(random.integers(1, max_shapes + 1)):
            kind = only if alike else int(random.integers(len(NAMES)))
            radius = size * random.uniform(*radii)
            middle = random.uniform(radius, size - radius, 2)
            inside = _inside(kind, rows - middle[0], columns - middle[1], radius, random.uniform(0, 2 * math.pi))
            image[inside] = random.choice([-1, 1]) * random.uniform(FLOOR, 1)
            owner[inside], labels[k] = number, kind
            masks[k][inside] = kind + 1
            drawn.append((kind, int(inside.sum())))
        images[k, 0] = image + random.normal(0, noise, image.shape)
        seen = [(n, kind) for n, (kind, pixels) in enumerate(drawn) if (owner == n).sum() * 3 >= pixels]
        for place, (number, kind) in enumerate(seen):
            where = np.nonzero(owner == number)
            boxes[k, place] = *(axis.min() for axis in where), *(axis.max() + 1 for axis in where), kind
    return Shapes(*(torch.from_numpy(array) for array in (images, labels, masks, boxes)))


def _inside(kind: int, y: np.ndarray, x: np.ndarray, radius: float, turn: float) -> np.ndarray:
    """The pixels of a shape around the origin."""
    u, v = x * math.cos(turn) + y * math.sin(turn), y * math.cos(turn) - x * math.sin(turn)
    name = NAMES[kind]
    if name == "disc":
        inside = u**2 + v**2 <= radius**2
    elif name == "square":
        inside = np.maximum(abs(u), abs(v)) <= radius / math.sqrt(2)
    elif name == "triangle":
        corners = [turn_ * 2 * math.pi / 3 for turn_ in range(3)]
        inside = np.all([u * math.cos(angle) + v * math.sin(angle) <= radius / 2 for angle in corners], axis=0)
    else:
        inside = (np.minimum(abs(u), abs(v)) <= radius / 4) & (np.maximum(abs(u), abs(v)) <= radius)
    return inside
