"""Small models and metrics that several test files use."""

import torch
from torch import Tensor, nn


class Through(nn.Module):
    """Returns what it gets, times one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


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
