"""What virtual workers cost: many of them in one process, beside one worker that makes as many updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from timing import Job
from torch import Tensor, nn
from worker_rivals import perceptron

import headrace as hr

WORKERS, SHARE = 64, 128
INPUTS, HIDDEN = 128, 256
ALONE = "one worker"
CLASSES = 10


def data(steps: int) -> tuple[Tensor, Tensor]:
    """Rows for so many updates of every worker."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps * WORKERS * SHARE, INPUTS, generator=generator)
    return x, (x[:, -16:] @ torch.randn(16, CLASSES, generator=generator)).argmax(1)


def rivals(x: Tensor, y: Tensor) -> Mapping[str, Callable[[], Job]]:
    """The same rows, in updates of the same size as seen by one worker."""

    def prepare(make_strategy: Callable[[], Any], batch_size: int, workers: int) -> Job:
        torch.manual_seed(0)
        model = perceptron(INPUTS, HIDDEN)

        def main(model: nn.Module) -> None:
            trainer = hr.Trainer(
                model,
                loss=nn.CrossEntropyLoss(),
                optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
                batch_size=batch_size,
                strategy=make_strategy(),
                device="cpu",
            )
            trainer.fit((x, y), epochs=1, progress=False)

        def score() -> float:
            with torch.no_grad():
                return nn.functional.cross_entropy(model(x[:2048]), y[:2048]).item()

        return Job(lambda: hr.launch(main, model, workers=workers), score)

    return {
        ALONE: partial(prepare, lambda: None, SHARE, 1),
        "synchronous": partial(prepare, lambda: hr.Synchronous(), WORKERS * SHARE, WORKERS),
        "periodic": partial(prepare, lambda: hr.Periodic(every="8 steps"), SHARE, WORKERS),
    }
