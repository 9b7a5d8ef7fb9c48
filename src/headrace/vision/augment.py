"""Augmentation: images are turned, mirrored, moved, enlarged and changed in light, their masks and boxes with them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.draws import Draws
from ..data.ragged import Ragged
from ..errors import ConfigError, DataError
from .boxes import areas, cut_to
from .detection import NONE, nothing, one_size

ROUNDING = 1e-4  # of areas in float32
IMAGE, MASK, WEIGHTS, BOXES = "image", "segmentation_image", "weight_image", "bbox"


class Augment:
    """Changes images at random, differently in each epoch: `Trainer(augment=vision.Augment(turn=15))`.

    Masks, pixel weights and boxes move with the image. The random numbers belong to the rows: a repeated or resumed
    training draws the same ones.

    Args:
        mirror: the probability that columns are reversed.
        mirror_rows: the probability that rows are reversed.
        turn: the largest angle in degrees, in both directions.
        zoom: the smallest and the largest factor.
        shift: the largest shift, as a share of the size.
        contrast: pixels are multiplied by up to 1 ± this.
        brightness: a number between − this and + this is added.
        noise: the standard deviation of normal noise.
        outside: the class, in masks, of pixels from outside of the image. Images and weights are 0 there.
        min_visible: a box with a smaller visible share is removed. Other boxes are cut at the edges.
    """

    thread_safe = True

    def __init__(
        self,
        *,
        mirror: float = 0.5,
        mirror_rows: float = 0.0,
        turn: float = 0.0,
        zoom: tuple[float, float] = (1.0, 1.0),
        shift: float = 0.0,
        contrast: float = 0.0,
        brightness: float = 0.0,
        noise: float = 0.0,
        outside: int = 0,
        min_visible: float = 0.3,
    ) -> None:
        if not 0 < zoom[0] <= zoom[1]:
            raise ConfigError(f"zoom= are the least and the largest factor, greater than 0, got {zoom!r}.")
        shares = {"mirror": mirror, "mirror_rows": mirror_rows, "shift": shift, "min_visible": min_visible}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}= is between 0 and 1, got {value!r}.")
        self.mirror, self.mirror_rows, self.turn, self.zoom, self.shift = mirror, mirror_rows, turn, zoom, shift
        self.contrast, self.brightness, self.noise = contrast, brightness, noise
        self.outside, self.min_visible = outside, min_visible

    def __call__(self, fields: Mapping[str, Any], draws: Draws) -> dict[str, Any]:
        image: Any = fields.get(IMAGE)
        if not isinstance(image, Tensor) or image.dim() != 4:
            raise DataError(f"Augment wants a stream {IMAGE!r} with channels, rows and columns, got {list(fields)}.")
        matrix, offset = self._moves(draws, image)
        grid = _grid(matrix, offset, image)
        moved: dict[str, Any] = {**fields, IMAGE: self._lit(_sampled(image, grid, "bilinear"), draws)}
        for name, outside in ((MASK, self.outside), (WEIGHTS, 0)):
            if name in fields:
                given = fields[name]
                places = _sampled((given - outside).float().unsqueeze(1), grid, "nearest").squeeze(1)
                moved[name] = places.to(given.dtype) + outside
        if BOXES in fields:
            target = fields[BOXES]
            boxes = self._boxes(one_size(target), matrix, offset, image.shape[-2:])
            moved[BOXES] = target.with_padded(boxes) if isinstance(target, Ragged) else boxes
        return moved

    def _moves(self, draws: Draws, image: Tensor) -> tuple[Tensor, Tensor]:
        """The matrix and the offset of each image: (row, column) from the middle · matrix + offset is where it goes."""
        most = math.radians(self.turn)
        angle = draws.uniform(low=-most, high=most) if most else draws.uniform() * 0
        low, high = self.zoom
        factor = draws.uniform(low=low, high=high) if low < high else draws.uniform() * 0 + low
        rows = torch.where(draws.chance(self.mirror_rows), -factor, factor)
        columns = torch.where(draws.chance(self.mirror), -factor, factor)
        cos, sin = angle.cos(), angle.sin()
        matrix = torch.stack(
            [torch.stack([cos * rows, -sin * columns], 1), torch.stack([sin * rows, cos * columns], 1)], 1
        )
        offset = (2 * draws.uniform(2) - 1) * self.shift * image.new_tensor(image.shape[-2:])
        return matrix, offset

    def _lit(self, image: Tensor, draws: Draws) -> Tensor:
        if self.contrast:
            image = image * (1 + self.contrast * (2 * draws.uniform(1, 1, 1) - 1))
        if self.brightness:
            image = image + self.brightness * (2 * draws.uniform(1, 1, 1) - 1)
        return image + self.noise * draws.normal(*image.shape[1:]) if self.noise else image

    def _boxes(self, target: Tensor, matrix: Tensor, offset: Tensor, size: torch.Size) -> Tensor:
        boxes, labels = target[..., :-1], target[..., -1]
        half = boxes.new_tensor(size) / 2
        r1, c1, r2, c2 = boxes.unbind(-1)
        corners = torch.stack([r1, c1, r1, c2, r2, c1, r2, c2], -1).view(len(boxes), -1, 2)
        moved = ((corners - half) @ matrix.mT + offset.unsqueeze(1) + half).view(*boxes.shape[:-1], 4, 2)
        uncut = torch.cat([moved.amin(-2), moved.amax(-2)], dim=-1)
        found = cut_to(uncut, int(size[0]), int(size[1]))
        seen, before = areas(found), areas(uncut)
        there = (seen > 0) & (seen >= (self.min_visible - ROUNDING) * before) & (labels != NONE)
        rows = torch.cat([found, labels.unsqueeze(-1)], dim=-1)
        return torch.where(there.unsqueeze(-1), rows, nothing(1, rows.shape[-1], rows))


def _grid(matrix: Tensor, offset: Tensor, image: Tensor) -> Tensor:
    """For each place of each image where it comes from, as `grid_sample` wants it."""
    height, width = image.shape[-2:]
    rows = torch.arange(height, device=image.device) + 0.5 - height / 2
    columns = torch.arange(width, device=image.device) + 0.5 - width / 2
    places = torch.cartesian_prod(rows, columns)
    came = (places - offset.unsqueeze(1)) @ matrix.inverse().mT
    return (came / came.new_tensor([height / 2, width / 2])).flip(-1).view(len(image), height, width, 2)


def _sampled(image: Tensor, grid: Tensor, mode: str) -> Tensor:
    return F.grid_sample(image, grid, mode=mode, padding_mode="zeros", align_corners=False)
