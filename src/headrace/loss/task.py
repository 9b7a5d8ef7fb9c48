"""Finds the task of a model (binary, multiclass, …) from outputs and targets, and builds metrics by name for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, unknown
from .base import OF_CLASSES

_CLASSES = {
    "accuracy": "Accuracy",
    "error": "Accuracy",
    "top-k": "Accuracy",
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1Score",
    "auroc": "AUROC",
    "confusion": "ConfusionMatrix",
    "iou": "ConfusionMatrix",
}
_NUMBERS = {"mae": "MeanAbsoluteError", "mse": "MeanSquaredError", "r2": "R2Score"}
_PERPLEXITY = "perplexity"
_AVERAGES = ("macro", "micro", "weighted", "none")
READS = {
    "classes": "a score for each class, of which one is right",
    "class probabilities": "a probability for each class, of which one is right",
    "logits": "scores of yes-or-no questions: yes is more than 0",
    "probabilities": "probabilities of yes: more than one half",
    "numbers": "numbers like the target, as those of a regression; where that is 0 or 1, yes is more than one half",
}
"""What a loss may say of outputs, in `reads`. If it says nothing, metrics that depend on it are refused."""


def check_name(name: str) -> None:
    """Raises unless this names a metric, with the average after a colon where one is given."""
    base, average = _parts(name)
    if base.startswith("top-") and not _is_top(name):
        raise ConfigError(f"metric {name!r}: say how many, as in 'top-3'.")
    if base not in _CLASSES and base not in _NUMBERS and base != _PERPLEXITY:
        raise ConfigError(unknown("metric", name, [*_CLASSES, *_NUMBERS, _PERPLEXITY]))
    averages = {"iou": ("macro", "none"), _PERPLEXITY: ()}.get(base, _AVERAGES)
    if average is not None and average not in averages:
        raise ConfigError(f"metric {name!r}: {unknown('average', average, averages)}")


def check_reads(names: Iterable[str], outputs: Tensor, targets: Tensor, reads: str | None) -> None:
    """Raises if the value of a metric depends on what the outputs are, and the loss does not say what they are."""
    if reads is not None and reads not in READS:
        raise ConfigError(unknown("reads", reads, READS))
    if reads is not None:
        return
    columns = outputs.shape[1] if _are_indices(outputs, targets) else 0
    for name in names:
        base = _parts(name)[0]
        if base in _NUMBERS or (columns and base != _PERPLEXITY and (base != "auroc" or columns == 2)):
            continue
        wanted = "'classes' or 'class probabilities'" if columns else "'logits' or 'probabilities'"
        raise ConfigError(
            f"metric {name!r} depends on what the outputs are, {wanted}, and this loss does not say. Use a term that "
            "says it, or say it: hr.RowMean(fn, reads=...), or the attribute `reads` of an Objective."
        )


@dataclass(frozen=True)
class Task:
    """The task of a model, as its outputs and targets show.

    `kind` is "binary", "multiclass", "multilabel" or "regression"; `size` the number of output columns;
    `logits` whether outputs are any numbers rather than probabilities, of which more than `middle` mean yes; `ignore`
    the label that does not count.
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
        if _are_indices(outputs, targets) or reads in OF_CLASSES:
            return cls("binary" if outputs.shape[1] == 2 else "multiclass", outputs.shape[1], logits, ignore)
        if targets.is_floating_point() and not bool(((targets == 0) | (targets == 1)).all()):
            return cls("regression", size, logits)
        return cls("binary" if size == 1 else "multilabel", size, logits, middle=0.5 if reads == "numbers" else 0.0)

    def build(self, name: str) -> Any:
        """The torchmetrics object for a name."""
        base, average = _parts(name)
        if base in _NUMBERS:
            import torchmetrics.regression as regression

            return getattr(regression, _NUMBERS[base])().set_dtype(torch.float64)
        if base == _PERPLEXITY:
            from torchmetrics import MeanMetric

            return MeanMetric(nan_strategy="disable").set_dtype(torch.float64)
        if self.kind == "regression":
            raise DataError(f"metric {name!r} needs classes as targets, got other numbers. Use mae, mse or r2.")
        import torchmetrics.classification as classification

        kind = self._kind_for(base, average)
        if base == "iou" and kind == "multilabel":
            raise DataError("metric 'iou' needs one class for each place, got several answers.")
        options: dict[str, Any] = {"validate_args": False, "ignore_index": self.ignore}
        if kind == "multiclass":
            options["num_classes"] = max(2, self.size)
        if self._is_balanced(base, average):
            return classification.MulticlassConfusionMatrix(**options)
        if kind == "multilabel":
            options["num_labels"] = self.size
        if kind != "binary" and base not in ("confusion", "iou"):
            options["average"] = average or ("micro" if _CLASSES[base] == "Accuracy" else "macro")
        if base == "top-k":
            options["top_k"] = int(name[4:].partition(":")[0])
        return getattr(classification, f"{kind.title()}{_CLASSES[base]}")(**options)

    def value(self, name: str, computed: Any) -> Any:
        """The metric of this name, from what that object has computed."""
        base, average = _parts(name)
        if base == _PERPLEXITY:
            return computed.exp()
        if self._is_balanced(base, average):  # a class without rows has no share, predicted or not
            rows = computed.sum(dim=1).double()
            computed = (computed.diagonal()[rows > 0] / rows[rows > 0]).mean()
        if base == "iou":  # of what a class is and what was taken for it, how much is both
            both, either = computed.diagonal().double(), (computed.sum(0) + computed.sum(1) - computed.diagonal())
            shares = both / either.clamp(min=1)
            computed = shares if average == "none" else shares[either > 0].mean()
        return 1.0 - computed if base == "error" else computed

    def arrange(self, name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Outputs and targets as that object wants them; of both what it takes instead."""
        base, average = _parts(name)
        if base in _NUMBERS:
            return outputs.double().reshape(targets.shape), targets.double()
        if base == _PERPLEXITY:
            return (self._surprise(outputs, targets),)
        if self.kind == "multilabel":
            return self._scores(outputs), targets.long()
        if targets.dim() == outputs.dim() and self.size > 1:  # one-hot or probability rows
            targets = targets.argmax(dim=1)
        several = self._kind_for(base, average) == "multiclass"
        if several and self.size == 1:
            second = self._scores(outputs).reshape(targets.shape)
            return torch.stack([1 - second, second], dim=1), targets.long()
        if several:
            softmax = base == "auroc" and self.logits
            return outputs.double().softmax(dim=1) if softmax else outputs.float(), targets.long()
        if self.size == 2:
            difference = outputs[:, 1].double() - outputs[:, 0].double()
            return _squash(difference), targets.long()
        return self._scores(outputs).reshape(targets.shape), targets.long()

    def _surprise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Minus the logarithm of the probability of each label that counts."""
        if self.size < 2 or targets.is_floating_point() or targets.dim() != outputs.dim() - 1:
            raise DataError(
                f"metric {_PERPLEXITY!r} needs one label for each place and outputs with a column for each class, got "
                f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}."
            )
        counts = torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore
        logarithms = outputs.double().log_softmax(dim=1) if self.logits else outputs.double().log()
        labels = torch.where(counts, targets, 0).long()
        found = -logarithms.gather(1, labels.unsqueeze(1)).squeeze(1)
        return found[counts]

    def _kind_for(self, base: str, average: str | None) -> str:
        """Two classes are one question, unless an average over both, or the best of several, is asked for."""
        both = average is not None or base == "iou" or (base == "top-k" and self.size == 2)
        return "multiclass" if self.kind == "binary" and both else self.kind

    def _is_balanced(self, base: str, average: str | None) -> bool:
        """Whether it is the mean over classes of the share of rows that is right, which torchmetrics has otherwise."""
        several = self._kind_for(base, average) == "multiclass"
        return several and average == "macro" and base in ("accuracy", "error")

    def _scores(self, outputs: Tensor) -> Tensor:
        if not self.logits and not bool(((outputs >= 0) & (outputs <= 1)).all()):
            raise DataError(
                "the loss takes the outputs for probabilities, and some are below 0 or above 1. Say what they are: "
                "reads='logits' in a function's RowMean or an Objective, inputs='logits' in a term."
            )
        return _squash(outputs.double() - self.middle) if self.logits else outputs.float()


def likeliest(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """The most probable class of every row, of outputs with a column for each class, and its probability."""
    given = reads in ("probabilities", "class probabilities")
    probability, code = (outputs if given else outputs.float().softmax(dim=1)).max(dim=1)
    return code, probability


def yes_or_no(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """1 or 0 for each number, and the probability of that."""
    yes = outputs.float().sigmoid() if reads == "logits" else outputs.float()
    said = yes > 0.5
    return said.long(), torch.where(said, yes, 1 - yes)


def _parts(name: str) -> tuple[str, str | None]:
    """What a metric is called in the tables here, and the average asked for."""
    base, colon, average = name.partition(":")
    return "top-k" if _is_top(name) else base, average if colon else None


def _is_top(name: str) -> bool:
    number = name.partition(":")[0].removeprefix("top-")
    return name.startswith("top-") and number.isdigit() and int(number) > 0


def _squash(scores: Tensor) -> Tensor:
    """Any number into (0, 1), 0 to one half, keeping their order where a sigmoid would make large ones equal."""
    return 0.5 + 0.5 * scores / (1.0 + scores.abs())


def _are_indices(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are numbers of classes, for each of which there is a column of outputs."""
    return outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1 and not targets.is_floating_point()
