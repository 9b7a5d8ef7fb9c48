"""Forty rows whose target is the sum of a row, and a trainer of a linear model for them."""

from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(dim=1)


def make(**options: Any) -> hr.Trainer:
    """A trainer with batches of 8 rows; its weights are the same each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    options = {"batch_size": 8} | options
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), **options)


class Elsewhere(hr.Table):
    """Rows that are not in memory, so that a thread reads them."""

    thread_safe = True
    streams = (hr.Stream("x", (3,)), hr.Stream("y"))

    def __len__(self) -> int:
        return len(X)

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": X[indices], "y": Y[indices]})
