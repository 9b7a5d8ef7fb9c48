"""Finds the task of a model (binary, multiclass, …) from outputs and targets, and arranges them for metrics."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from .base import OF_CLASSES

READS = {
    "classes": "a score for each class, of which one is right",
    "class probabilities": "a probability for each class, of which one is right",
    "logits": "scores of yes-or-no questions: yes is more than 0",
    "probabilities": "probabilities of yes: more than one half",
    "numbers": "numbers like the target, as those of a regression; where that is 0 or 1, yes is more than one half",
}
"""What a loss may say of outputs, in `reads`. If it says nothing, metrics that depend on it are refused."""


@dataclass(frozen=True)
class Task:
    """The task of a model, as its outputs and targets show.

    `kind` is "binary", "multiclass", "multilabel" or "regression"; `size` the number of output columns;
    `logits` whether outputs are any numbers rather than probabilities; `ignore` the label that does not count. An
    output of more than `middle` means yes.
    """

    kind: str
    size: int
    logits: bool
    ignore: int | None = None
    middle: float = 0.0

    @classmethod
    def of(cls, outputs: Tensor, targets: Tensor, reads: str | None, ignore: int | None = None) -> "Task":
        size = outputs.shape[1] if outputs.dim() > 1 else 1
        logits = reads not in ("probabilities", "class probabilities")
        if are_indices(outputs, targets) or reads in OF_CLASSES:
            return cls("binary" if outputs.shape[1] == 2 else "multiclass", outputs.shape[1], logits, ignore)
        answers = (targets == 0) | (targets == 1)
        if targets.is_floating_point() and not bool(
            (answers if ignore is None else answers | (targets == ignore)).all()
        ):
            return cls("regression", size, logits)
        middle = 0.5 if reads in ("numbers", "probabilities") else 0.0
        return cls("binary" if size == 1 else "multilabel", size, logits, ignore, middle)

    def arrange(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and labels: one score for each label, or with "multiclass" a column for each class in dimension 1."""
        if self.kind == "multiclass" or (self.size == 2 and self.kind == "binary"):
            if targets.shape == outputs.shape:  # one-hot or probability rows
                targets = targets.argmax(dim=1)
            if self.kind == "binary":
                outputs = outputs[:, 1].double() - outputs[:, 0].double()
            return outputs, targets.long()
        if not self.logits and not bool(((outputs >= 0) & (outputs <= 1)).all()):
            raise DataError(
                "the loss takes the outputs for probabilities, and some are below 0 or above 1. Say what they are: "
                "reads='logits' in a function's RowMean or an Objective, inputs='logits' in a term."
            )
        return outputs.reshape(targets.shape), targets.long()

    def counted(self, labels: Tensor) -> Tensor:
        """Which labels count."""
        return torch.ones_like(labels, dtype=torch.bool) if self.ignore is None else labels != self.ignore

    def shares(self, scores: Tensor) -> Tensor:
        """The probability of each class."""
        return scores.double().softmax(dim=1) if self.logits else scores


def likeliest(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """The most probable class of every row, of outputs with a column for each class, and its probability."""
    given = reads in ("probabilities", "class probabilities")
    probability, code = (outputs if given else outputs.float().softmax(dim=1)).max(dim=1)
    return code, probability


def yes_or_no(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """1 or 0 for each number, and the probability of that."""
    yes = outputs.float().sigmoid() if reads == "logits" else outputs.float()
    answer = yes > 0.5
    return answer.long(), torch.where(answer, yes, 1 - yes)


def are_indices(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are numbers of classes, for each of which there is a column of outputs."""
    return outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1 and not targets.is_floating_point()
