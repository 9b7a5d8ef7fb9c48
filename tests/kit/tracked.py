"""A training that takes a fraction of a second, for tests of trackers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headrace as hr
from kit.small import in_run

X = torch.sin(torch.arange(96.0)).reshape(24, 4)
DATA = (X, (X[:, 0] > 0).long())


class At(hr.Callback):
    """Does something after a step."""

    def __init__(self, step: int, act: Callable[[hr.Info], None]) -> None:
        self._step, self._act = step, act

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self._step:
            self._act(info)


def fail(info: hr.Info) -> None:
    raise InterruptedError("on purpose")


def train(*callbacks: hr.Callback, run: Path | None = None, epochs: int = 2, **options: Any) -> hr.History:
    """Six updates an epoch; validations of single steps, a report an epoch, a test."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, metrics=["accuracy", "confusion"])
    given = {"validate_every": "4 steps", "every": "5 steps", "progress": False}
    return trainer.fit(DATA, DATA, DATA, epochs=epochs, callbacks=list(callbacks), **in_run(run, **given | options))
