"""Forty rows whose target is the sum of a row, and a trainer of a linear model for them."""

from typing import Any

import torch
from torch import nn

import headrace as hr
from kit import own_data

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(dim=1)


def make(**options: Any) -> hr.Trainer:
    """A trainer with batches of 8 rows; its weights are the same each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    options = {"batch_size": 8} | options
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), **options)


class Elsewhere(own_data.Elsewhere):
    """The same rows, read by a thread."""

    def __init__(self) -> None:
        super().__init__({"x": X, "y": Y})
