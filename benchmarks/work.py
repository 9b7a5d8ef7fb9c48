"""The seven pieces of training work that every peer is given: data, model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Work:
    """One model on one synthetic data set; `data()` and `model()` give the same bits at every call."""

    key: str
    title: str
    rows: int
    shape: tuple[int, ...]
    build: Callable[[], nn.Module]
    optimizer: type[torch.optim.Optimizer]
    options: Mapping[str, Any]
    batch_size: int = 128

    @property
    def steps(self) -> int:
        """Updates in one epoch, the short last batch included."""
        return math.ceil(self.rows / self.batch_size)

    def data(self) -> tuple[Tensor, Tensor]:
        """Rows of normal noise, each labelled by a linear teacher that looks at its last 16 values."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.rows, *self.shape, generator=generator)
        teacher = torch.randn(16, CLASSES, generator=generator)
        return x, (x.flatten(1)[:, -16:] @ teacher).argmax(1)

    def model(self) -> nn.Module:
        """A fresh model, with the same first weights each time."""
        torch.manual_seed(0)
        return self.build()

    def optimizer_for(self, model: nn.Module, **extra: Any) -> torch.optim.Optimizer:
        """A fresh optimizer with this work's options."""
        make: Callable[..., torch.optim.Optimizer] = self.optimizer
        return make(model.parameters(), **self.options, **extra)


class LastState(nn.Module):
    """An LSTM whose last hidden state is classified."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits for sequences of shape (rows, length, features)."""
        _, (hidden, _) = self.lstm(x)
        logits: Tensor = self.head(hidden[-1])
        return logits


def mlp() -> nn.Module:
    """64-128-10."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def deep_mlp() -> nn.Module:
    """Twelve linear layers 64 wide, eleven of them with LayerNorm and ReLU: many small parameters."""
    hidden = [layer for _ in range(11) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, CLASSES))


def cnn() -> nn.Module:
    """Two convolutions on one-channel 8x8 images."""
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES))


def lstm() -> nn.Module:
    """16 features, 32 hidden units."""
    return LastState(16, 32)


def measuring_mlp() -> nn.Module:
    """48-96-10 with batch statistics and dropout: buffers and random numbers in every update."""
    return nn.Sequential(nn.Linear(48, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, CLASSES))


class Encoder(nn.Module):
    """Two layers of a transformer, 32 wide, whose mean over the sequence is classified."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.enter, self.layers = nn.Linear(16, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits for sequences of shape (rows, length, features)."""
        logits: Tensor = self.head(self.layers(self.enter(x)).mean(1))
        return logits


def wide_mlp() -> nn.Module:
    """2048-2048-10: nearly all of an update is arithmetic."""
    return nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, CLASSES))


MOMENTUM = {"lr": 0.05, "momentum": 0.9}
WORKS = {
    work.key: work
    for work in (
        Work("a", "MLP 64-128-10, SGD", 200_000, (64,), mlp, torch.optim.SGD, MOMENTUM),
        Work("b", "12-layer MLP, LayerNorm, AdamW", 20_000, (64,), deep_mlp, torch.optim.AdamW, {"lr": 1e-3}),
        Work("c", "two-conv CNN on 8x8, SGD", 20_000, (1, 8, 8), cnn, torch.optim.SGD, MOMENTUM),
        Work("d", "LSTM over 16 steps, Adam", 10_000, (16, 16), lstm, torch.optim.Adam, {"lr": 5e-3}),
        Work("e", "MLP 48-96-10, BatchNorm, Dropout, SGD", 40_000, (48,), measuring_mlp, torch.optim.SGD, MOMENTUM, 64),
        Work("f", "two-layer transformer 32 wide, AdamW", 10_000, (16, 16), Encoder, torch.optim.AdamW, {"lr": 1e-3}),
        Work("g", "wide MLP 2048-2048, SGD", 5_120, (2048,), wide_mlp, torch.optim.SGD, MOMENTUM),
    )
}
