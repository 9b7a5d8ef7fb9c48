"""The loop as it is written by hand, which trainings are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import headrace as hr


def plain_loop(
    model: nn.Module,
    optimizers: Optimizer | Sequence[Optimizer],
    data: tuple[Tensor, Tensor],
    batch: int,
    epochs: int = 3,
    *,
    steps: int = 1 << 30,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    seed: int | None = 0,
    clip: Callable[[], Any] = lambda: None,
    after: Callable[[int], Any] = lambda step: None,
) -> nn.Module:
    """Trains a model as a trainer does: in the order of this seed, or in that of the data, so many epochs or steps.

    `clip` is called before the optimizers step, `after` with the number of the step that was made.
    """
    optimizers = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
    x, y = data
    made = 0
    model.train()
    for epoch in range(epochs):
        order = torch.arange(len(x))
        if seed is not None:
            order = torch.from_numpy(hr.Order(len(x), seed=seed).indices(epoch, 0, len(x)))
        for rows in order.split(batch):
            if made == steps:
                return model
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            clip()
            for optimizer in optimizers:
                optimizer.step()
            made += 1
            after(made)
    return model
