"""A race over a slow link: handwritten digits, learnt by two workers until a loss on digits kept apart is reached.

The clock runs from when all are ready, with fresh weights, to the validation that finds the loss; validations count.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from timing import silence
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import headrace as hr

HIDDEN, SHARE = 512, 32
TARGET_LOSS = 0.15
TRAINING_ROWS = 1437
LIMIT_EPOCHS = 60
CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """8x8 images, in an order of their own, the last fifth of them kept apart."""

    x: Tensor
    y: Tensor

    @staticmethod
    def load() -> Digits:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        return Digits(torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order])

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        return self.x[:TRAINING_ROWS], self.y[:TRAINING_ROWS]

    @property
    def val(self) -> tuple[Tensor, Tensor]:
        return self.x[TRAINING_ROWS:], self.y[TRAINING_ROWS:]


@dataclass
class Finish:
    """What a runner reports: epochs until the loss was reached (or not), and the last loss."""

    epochs: int = 0
    loss: float = float("inf")

    def reached(self, loss: float) -> bool:
        self.epochs, self.loss = self.epochs + 1, loss
        return loss <= TARGET_LOSS


class Until(hr.Callback):
    """Ends a training once its validation loss is low enough."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish

    def on_validation_end(self, info: hr.Info, scores: dict[str, Any]) -> None:
        if self._finish.reached(scores["val/loss"]):
            info.stop("the loss is reached")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def ddp(digits: Digits) -> Callable[[Finish], None]:
    """The hand-written loop over DistributedDataParallel; every worker validates, as all have the same weights."""
    model = make_model()
    wrapped, optimizer, criterion = DistributedDataParallel(model), make_optimizer(model), nn.CrossEntropyLoss()
    (x, y), (val_x, val_y) = digits.train, digits.val
    index, count = dist.get_rank(), dist.get_world_size()

    def run(finish: Finish) -> None:
        generator = torch.Generator().manual_seed(0)
        while finish.epochs < LIMIT_EPOCHS:
            for batch in torch.randperm(len(x), generator=generator).split(SHARE * count):
                rows = batch[len(batch) * index // count : len(batch) * (index + 1) // count]
                optimizer.zero_grad()
                criterion(wrapped(x[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                if finish.reached(criterion(model(val_x), val_y).item()):
                    return

    return run


def headrace(make_strategy: Callable[[], Any], batch_size: int, digits: Digits) -> Callable[[Finish], None]:
    """`Trainer.fit` with a validation after every epoch."""
    model = make_model()
    trainer = hr.Trainer(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=make_optimizer(model),
        batch_size=batch_size,
        strategy=make_strategy(),
        device="cpu",
    )

    def run(finish: Finish) -> None:
        trainer.fit(digits.train, digits.val, epochs=LIMIT_EPOCHS, callbacks=[Until(finish)], progress="plain")

    return run


RUNNERS: Mapping[str, Callable[[Digits], Callable[[Finish], None]]] = {
    "ddp": ddp,
    "headrace synchronous": partial(headrace, lambda: hr.Synchronous(), 2 * SHARE),
    "headrace synchronous, bf16": partial(headrace, lambda: hr.Synchronous(compress="bf16"), 2 * SHARE),
    "headrace periodic, 1 epoch": partial(headrace, lambda: hr.Periodic(every="1 epoch"), SHARE),
    "headrace block momentum, 1 epoch": partial(headrace, lambda: hr.BlockMomentum(every="1 epoch"), SHARE),
    "headrace diloco, 1 epoch": partial(headrace, lambda: hr.DiLoCo(every="1 epoch"), SHARE),
}


def race(job: Mapping[str, Any]) -> dict[str, Any]:
    """Every runner as often as is asked, in an order drawn anew each time."""
    digits = Digits.load()
    names = list(RUNNERS)
    found: dict[str, Any] = {name: {"seconds": [], "epochs": [], "losses": []} for name in names}
    draw = random.Random(0)
    for _ in range(job["repeats"]):
        for name in draw.sample(names, len(names)):
            finish = Finish()
            with silence():
                run = RUNNERS[name](digits)
                dist.barrier()
                start = time.perf_counter()
                run(finish)
                dist.barrier()
                found[name]["seconds"].append(time.perf_counter() - start)
            found[name]["epochs"].append(finish.epochs)
            found[name]["losses"].append(finish.loss)
    return found
