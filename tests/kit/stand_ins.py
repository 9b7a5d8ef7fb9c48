"""Small models and metrics that several test files use."""

from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr


class Through(nn.Module):
    """Returns what it gets, times one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def through(loss: Any, model: nn.Module | None = None, rate: float = 0.1, **options: Any) -> hr.Trainer:
    """A trainer of this loss, by plain descent, whose model returns what it gets if there is no other."""
    model = Through() if model is None else model
    return hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), rate), **{"device": "cpu", **options})


class Recorder:
    """A metric of one's own: how many rows came at once."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def update(self, outputs: Tensor, target: Tensor) -> None:
        assert len(outputs) == len(target)
        self.rows.append(len(outputs))

    def compute(self) -> list[int]:
        return list(self.rows)

    def reset(self) -> None:
        self.rows.clear()
