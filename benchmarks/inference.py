"""`validate` and `predict` of headrace, and the no-grad loops that do the same by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peers import headrace_trainer
from timing import Job
from torch import Tensor, nn
from work import Work

Prepare = Callable[[Work, Tensor, Tensor], Job]


def raw_validate(work: Work, x: Tensor, y: Tensor) -> Job:
    """Mean loss and accuracy, batch by batch; the score is the loss."""
    model = work.model()
    criterion = nn.CrossEntropyLoss()
    scores: dict[str, float] = {}

    def run() -> None:
        model.eval()
        total, correct = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(x), work.batch_size):
                rows, target = x[start : start + work.batch_size], y[start : start + work.batch_size]
                logits = model(rows)
                total += criterion(logits, target).item() * len(rows)
                correct += int((logits.argmax(1) == target).sum().item())
        scores.update(loss=total / len(x), accuracy=correct / len(x))

    return Job(run, lambda: scores["loss"])


def headrace_validate(work: Work, x: Tensor, y: Tensor) -> Job:
    """`Trainer.validate`; the score is its loss."""
    trainer = headrace_trainer(work, work.model())
    scores: dict[str, float] = {}

    def run() -> None:
        scores.update(trainer.validate((x, y), name="val", batch_size=work.batch_size))

    return Job(run, lambda: float(scores["val/loss"]))


def raw_predict(work: Work, x: Tensor, y: Tensor) -> Job:
    """Outputs of all batches in one tensor; the score is their loss."""
    model = work.model()
    outputs: list[Tensor] = []

    def run() -> None:
        model.eval()
        with torch.no_grad():
            parts = [model(x[i : i + work.batch_size]) for i in range(0, len(x), work.batch_size)]
            outputs.append(torch.cat(parts))

    return Job(run, lambda: nn.functional.cross_entropy(outputs[-1], y).item())


def headrace_predict(work: Work, x: Tensor, y: Tensor) -> Job:
    """`Trainer.predict`; the score is the loss of what it returns, in input order."""
    trainer = headrace_trainer(work, work.model())
    outputs: list[Tensor] = []

    def run() -> None:
        outputs.append(trainer.predict(x, batch_size=work.batch_size))

    return Job(run, lambda: nn.functional.cross_entropy(outputs[-1], y).item())


INFERENCE: dict[str, dict[str, Prepare]] = {
    "validate": {"raw": raw_validate, "headrace": headrace_validate, "raw-again": raw_validate},
    "predict": {"raw": raw_predict, "headrace": headrace_predict, "raw-again": raw_predict},
}
