"""Small networks that learn from scratch: a residual classifier, and a segmenter in the form of a U."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError, unknown

Norm = Literal["group", "batch", "none"]
"""How layers are normalised. Only "batch" uses the other images of a batch."""
Widths = Sequence[int]
"""The channels of each stage."""
GROUPS = 8


class ResidualBlock(nn.Module):
    """Two convolutions and a skip connection (He et al. 2016, https://arxiv.org/abs/1603.05027)."""

    def __init__(self, channels: int, out: int, stride: int = 1, norm: Norm = "group") -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(channels, out, stride, norm), nn.ReLU(inplace=True), *convolution(out, out, 1, norm)
        )
        same = stride == 1 and channels == out
        self.around = nn.Sequential(*[] if same else convolution(channels, out, stride, norm, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.around(x))


class Backbone(nn.Module):
    """Residual stages, each with half the resolution of the one before; gives the features of all of them."""

    def __init__(self, channels: int, widths: Widths, blocks: int = 1, norm: Norm = "group") -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise ConfigError(f"widths= are the channels of each stage, at least one, got {widths!r}.")
        self.stem = nn.Sequential(*convolution(channels, widths[0], 1, norm), nn.ReLU(inplace=True))
        stages, last = [], widths[0]
        for k, width in enumerate(widths):
            first = ResidualBlock(last, width, 2 if k else 1, norm)
            stages.append(nn.Sequential(first, *(ResidualBlock(width, width, 1, norm) for _ in range(blocks - 1))))
            last = width
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        x, found = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class ImageClassifier(nn.Module):
    """A residual network: logits (images, classes) of images (images, channels, height, width) of any size."""

    def __init__(
        self, classes: int, channels: int = 3, widths: Widths = (16, 32, 64), blocks: int = 1, norm: Norm = "group"
    ) -> None:
        super().__init__()
        self.backbone = Backbone(channels, widths, blocks, norm)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images)[-1].mean((2, 3)))
        return logits


class Segmenter(nn.Module):
    """A U-net: logits (images, classes, height, width) of images of any size.

    Each stage of the decoder also takes the features of the encoder at its resolution (Ronneberger et al. 2015,
    https://arxiv.org/abs/1505.04597).
    """

    def __init__(
        self, classes: int, channels: int = 3, widths: Widths = (16, 32, 64), blocks: int = 1, norm: Norm = "group"
    ) -> None:
        super().__init__()
        self.backbone = Backbone(channels, widths, blocks, norm)
        wide = list(reversed(widths))
        self.ups = nn.ModuleList(ResidualBlock(low + high, high, 1, norm) for low, high in pairwise(wide))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        *skips, x = self.backbone(images)
        for up, skip in zip(self.ups, reversed(skips), strict=True):
            x = up(torch.cat([enlarged(x, skip), skip], dim=1))
        logits: Tensor = self.head(x)
        return logits


def convolution(channels: int, out: int, stride: int, norm: Norm, kernel: int = 3) -> list[nn.Module]:
    """A convolution and its normalisation."""
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=norm == "none")
    if norm == "none":
        return [conv]
    if norm == "batch":
        return [conv, nn.BatchNorm2d(out)]
    if norm == "group":
        return [conv, nn.GroupNorm(next(g for g in range(GROUPS, 0, -1) if out % g == 0), out)]
    raise ConfigError(unknown("norm", norm, ("group", "batch", "none")))


def enlarged(x: Tensor, like: Tensor) -> Tensor:
    """Features at the resolution of others; by the nearest, whose gradient is the same in every repeat."""
    return F.interpolate(x, like.shape[-2:], mode="nearest")
