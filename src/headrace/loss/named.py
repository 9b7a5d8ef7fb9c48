"""Metrics by name: what each adds up over blocks of rows, and the number that it computes from it."""

import operator
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, unknown
from .task import READS, Task, are_indices

Key = tuple[str, str]
"""Names the sums of a metric in a saved state: the part of the state, and the name in it."""
Sums = list[Tensor]
"""A quantity over some rows: tensors that are added to, joined to or merged with those of other rows."""

OF_CLASSES = ("accuracy", "error", "top-k", "precision", "recall", "f1", "auroc", "confusion", "iou")
OF_NUMBERS = ("mae", "mse", "r2")
OF_ANSWERS = ("accuracy", "error", "top-k")
"""Those that count right answers."""
WITHOUT_AVERAGE = (*OF_NUMBERS, "confusion")
_AVERAGES = ("macro", "micro", "weighted", "none")


@dataclass(frozen=True)
class NamedMetric:
    """A metric that is given by its name: "accuracy", "f1:weighted" or "top-3"."""

    text: str
    base: str
    average: str | None = None
    top: int = 1

    @classmethod
    def parse(cls, text: str) -> "NamedMetric":
        """Raises unless this names a metric, with the average after a colon where one is given."""
        base, colon, average = text.partition(":")
        top = base.removeprefix("top-")
        if base.startswith("top-"):
            if not top.isdigit() or not int(top):
                raise ConfigError(f"metric {text!r}: say how many, as in 'top-3'.")
            base = "top-k"
        known = (*OF_CLASSES, *OF_NUMBERS)
        if base not in known:
            raise ConfigError(unknown("metric", text, known))
        averages = {"iou": ("macro", "none")}.get(base, () if base in WITHOUT_AVERAGE else _AVERAGES)
        if colon and not averages:
            raise ConfigError(f"metric {text!r}: {base} has no averages. Say {base!r}.")
        if colon and average not in averages:
            raise ConfigError(f"metric {text!r}: {unknown('average', average, averages)}")
        return cls(text, base, average if colon else None, int(top) if base == "top-k" else 1)

    @cached_property
    def quantity(self) -> str:
        """What is added up for it; metrics that need the same share it."""
        found = {"mae": "errors", "mse": "errors", "r2": "variances", "auroc": "scores", "confusion": "tables"}
        if self.base in OF_ANSWERS and self.average in (None, "micro"):
            return f"right:{self.top}"
        return found.get(self.base, f"counts:{self.top}")

    keeps_state: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    @cached_property
    def key(self) -> Key:
        return "sums", self.quantity

    def reset(self) -> None:
        """Does nothing: its `Sums` are kept elsewhere."""

    def add(self, sums: Sums | None, task: Task, outputs: Tensor, targets: Tensor) -> Sums:
        """Its quantity with one more block of rows."""
        if self.base in OF_CLASSES and task.kind == "regression":
            raise DataError(f"metric {self.text!r} needs classes as targets, got other numbers. Use mae, mse or r2.")
        if self.base == "iou" and task.kind == "multilabel":
            raise DataError("metric 'iou' needs one class for each place, got several answers.")
        if self.base == "auroc" and self.average == "micro" and task.kind != "multilabel":
            raise DataError("metric 'auroc:micro' needs several yes-or-no questions, got one class for each place.")
        if self.base == "top-k" and (task.size < max(2, self.top) or task.kind == "multilabel"):
            raise DataError(f"metric {self.text!r} needs a column of outputs for each of at least {self.top} classes.")
        of_answers = partial(_right if self.quantity.startswith("right") else _count, top=self.top)
        measure = _MEASURES.get(self.quantity, of_answers)
        return self._merge(sums, measure(task, outputs, targets))

    def state(self, sums: Sums) -> Sums:
        return list(sums)

    def join(self, sums: Sums | None, state: Sums, device: torch.device) -> Sums:
        """Its quantity with that of other rows."""
        return self._merge(sums, [each.to(device) for each in state])

    def _merge(self, sums: Sums | None, more: Sums) -> Sums:
        if sums is None or self.quantity == "scores":
            return [*(sums or ()), *more]
        return _merged_variances(sums, more) if self.quantity == "variances" else list(map(operator.add, sums, more))

    def value(self, task: Task, sums: Sums) -> float | Tensor:
        """The metric of the rows that have been added up."""
        if self.base in ("mae", "mse"):
            return sums[self.base == "mse"] / sums[2]
        if self.base == "r2":
            return _explained(sums)
        if self.base == "auroc":
            return self._auroc(task, torch.cat(sums[::2]), torch.cat(sums[1::2]))
        if self.base == "confusion":
            return sums[0]
        if self.quantity.startswith("right"):
            share = float(sums[0]) / max(1.0, float(sums[1]))
            return 1 - share if self.base == "error" else share
        return self._of_counts(task, sums[0])

    def _of_counts(self, task: Task, counts: Tensor) -> Tensor:
        """From what `_count` gives."""
        questions = task.kind == "multilabel" or (task.kind == "binary" and not self._is_of_both)
        if questions:
            tn, fp, fn, tp = counts.double().reshape(-1, 4).unbind(1)
        else:
            if task.kind == "binary":  # its table
                counts = torch.stack([counts.diagonal(), counts.sum(0), counts.sum(1)])
            tp, answered, labelled = counts.double()
            fp, fn = answered - tp, labelled - tp
            tn = labelled.sum() - tp - fp - fn
        is_accuracy = self.base in OF_ANSWERS
        average = self.average or ("micro" if is_accuracy else "macro")
        if average == "micro":
            tn, fp, fn, tp = (each.sum(0, keepdim=True) for each in (tn, fp, fn, tp))
        right, of = {"precision": (tp, tp + fp), "recall": (tp, tp + fn), "f1": (2 * tp, 2 * tp + fp + fn)}.get(
            self.base, (tp, tp + fp + fn)
        )
        if is_accuracy:
            right, of = (tp + tn, tp + fp + fn + tn) if questions else (tp, tp + fn)
        shares = right / of.clamp(min=1)
        shares = 1 - shares if self.base == "error" else shares
        if average == "none":
            return shares
        weights = tp + fn
        if average != "weighted":  # all classes alike, but for those that were not met
            met = tp + fn if is_accuracy else tp + fp + fn
            weights = torch.ones_like(shares) if questions or average == "micro" else (met > 0).double()
        return (shares * weights).sum() / weights.sum().clamp(min=1)

    def _auroc(self, task: Task, scores: Tensor, labels: Tensor) -> Tensor:
        if task.kind == "binary" and not self._is_of_both:
            return _area(scores, labels == 1)
        if task.kind == "multilabel":
            if self.average == "micro":
                scores, labels = scores.reshape(-1, 1), labels.reshape(-1, 1)
            met = task.counted(labels)
            columns = zip(scores.T, labels.T, met.T, strict=True)
            areas = [_area(score[counts], label[counts] == 1) for score, label, counts in columns]
            weights = ((labels == 1) & met).sum(0)
        else:
            scores = torch.stack([-scores, scores], dim=1) if task.kind == "binary" else task.shares(scores)
            areas = [_area(scores[:, k], labels == k) for k in range(scores.shape[1])]
            weights = torch.bincount(labels, minlength=scores.shape[1])
        found = torch.stack(areas)
        if self.average == "none":
            return found
        return (found * weights).sum() / weights.sum().clamp(min=1) if self.average == "weighted" else found.mean()

    @property
    def _is_of_both(self) -> bool:
        """Whether two classes count as two, and not as one yes-or-no question."""
        return self.average is not None or self.base in ("iou", "top-k")


def check_reads(metrics: Iterable[NamedMetric], outputs: Tensor, targets: Tensor, reads: str | None) -> None:
    """Raises if the value of a metric depends on what the outputs are, and the loss does not say what they are."""
    if reads is not None:
        if reads not in READS:
            raise ConfigError(unknown("reads", reads, READS))
        return
    columns = outputs.shape[1] if are_indices(outputs, targets) else 0
    for metric in metrics:
        base = metric.base
        if base in OF_NUMBERS or (columns and (base != "auroc" or columns == 2)):
            continue
        wanted = "'classes' or 'class probabilities'" if columns else "'logits' or 'probabilities'"
        raise ConfigError(
            f"metric {metric.text!r} depends on what the outputs are, {wanted}, and this loss does not say. Use a term "
            "that says it, or say it: hr.RowMean(fn, reads=...), or the attribute `reads` of an Objective."
        )


def _right(task: Task, outputs: Tensor, targets: Tensor, top: int) -> Sums:
    """How many answers are right, of how many."""
    labels, answers = _answers(task, outputs, targets, top)
    right = (answers == (labels % 2 if task.kind == "multilabel" else labels)).sum()
    return [right, torch.full_like(right, len(labels))]


def _count(task: Task, outputs: Tensor, targets: Tensor, top: int) -> Sums:
    """For each class its numbers of right answers, answers and labels; for yes-or-no questions their tables."""
    if task.kind != "multiclass":
        return _tabulate(task, outputs, targets, top)
    labels, answers = _answers(task, outputs, targets, top)
    each = (labels[labels == answers], answers, labels)
    return [torch.stack([torch.bincount(classes, minlength=task.size) for classes in each])]


def _tabulate(task: Task, outputs: Tensor, targets: Tensor, top: int = 1) -> Sums:
    """Counts of answers (columns) for each label (rows); one table for each yes-or-no question."""
    labels, answers = _answers(task, outputs, targets, top)
    if task.kind == "multiclass":
        return [torch.bincount(labels * task.size + answers, minlength=task.size**2).view(task.size, task.size)]
    if task.kind == "binary":
        return [torch.bincount(labels * 2 + answers, minlength=4).view(2, 2)]
    return [torch.bincount(labels * 2 + answers, minlength=4 * task.size).view(task.size, 2, 2)]


def _answers(task: Task, outputs: Tensor, targets: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Labels and answers of all places that count; the labels of question k are 2k and 2k + 1."""
    scores, labels = task.arrange(outputs, targets)
    classes = task.size if task.kind == "multiclass" else 2
    if top > 1:  # the right class is the answer if it is among the best
        best = (outputs if task.kind == "binary" else scores).topk(top, dim=1).indices
        labels = labels.reshape(best[:, 0].shape)
        answers = torch.where((best == labels.unsqueeze(1)).any(dim=1), labels, best[:, 0])
    else:
        answers = scores.argmax(dim=1) if task.kind == "multiclass" else (scores > task.middle).long()
        labels = labels.reshape(answers.shape)
    counted: slice | Tensor = slice(None)
    known = labels
    if task.ignore is not None:
        counted = labels != task.ignore
        known = labels[counted]
    if known.numel():
        least, most = map(int, known.aminmax())
        if least < 0 or most >= classes:
            raise ValueError(f"labels go from {least} to {most}, and there are {classes} classes.")
    if task.kind == "multilabel":
        labels = labels + 2 * torch.arange(task.size, device=labels.device).view(-1, *[1] * (labels.dim() - 2))
    return labels[counted].flatten(), answers[counted].flatten()


def _score(task: Task, outputs: Tensor, targets: Tensor) -> Sums:
    """The scores and the labels of all places that count."""
    scores, labels = task.arrange(outputs, targets)
    if scores.dim() > 1 and task.kind != "binary":
        scores = scores.movedim(1, -1).reshape(-1, task.size)
    if task.kind == "multilabel":
        return [scores, labels.movedim(1, -1).reshape(-1, task.size)]
    scores, labels = scores if task.kind == "multiclass" else scores.flatten(), labels.flatten()
    return [scores, labels] if task.ignore is None else [scores[labels != task.ignore], labels[labels != task.ignore]]


def _errors(task: Task, outputs: Tensor, targets: Tensor) -> Sums:
    """Absolute and squared errors, and how many there are."""
    error = outputs.double().reshape(targets.shape) - targets.double()
    return [error.abs().sum(), error.square().sum(), torch.tensor(error.numel(), device=error.device)]


def _variances(task: Task, outputs: Tensor, targets: Tensor) -> Sums:
    """For each column the number of rows, mean and squared deviations of targets, and squared errors."""
    if targets.dim() > 2:
        raise DataError(f"metric 'r2' needs one number for each row or column, got targets of {list(targets.shape)}.")
    outputs, targets = outputs.double().reshape(targets.shape), targets.double()
    mean = targets.mean(0)
    rows = torch.tensor(float(len(targets)), device=mean.device)
    return [rows, mean, (targets - mean).square().sum(0), (outputs - targets).square().sum(0)]


def _merged_variances(a: Sums, b: Sums) -> Sums:
    """As of all rows together, without cancellation: Chan et al. 1979, http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773."""
    rows, apart = a[0] + b[0], b[1] - a[1]
    return [rows, a[1] + apart * b[0] / rows, a[2] + b[2] + apart.square() * a[0] * b[0] / rows, a[3] + b[3]]


def _explained(sums: Sums) -> Tensor:
    """The share of the variance that is explained (R²); for a constant target, 1 if there is no error, else 0."""
    rows, mean, deviations, errors = sums
    constant = deviations <= rows * (1e-15 * mean).square()
    shares = torch.where(constant, (errors <= deviations).double(), 1 - errors / deviations)
    return shares.mean() if int(rows) > 1 else torch.full_like(rows, torch.nan)


_MEASURES: dict[str, Callable[[Task, Tensor, Tensor], Sums]] = {
    "tables": _tabulate,
    "scores": _score,
    "errors": _errors,
    "variances": _variances,
}


def _area(scores: Tensor, is_positive: Tensor) -> Tensor:
    """The area under the ROC curve: how often a positive has the higher score than a negative; a tie counts half."""
    positives = is_positive.sum().double()
    pairs = positives * (len(scores) - positives)
    if not pairs:
        warnings.warn("auroc: all rows, or none, are of one class, for which it counts as 0.", stacklevel=2)
        return torch.zeros_like(pairs)
    ordered, order = scores.sort()
    _, tie, ties = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    ranks = (ties.cumsum(0) - (ties - 1) / 2.0).double()[tie]
    above: Tensor = ranks[is_positive[order]].sum() - positives * (positives + 1) / 2
    return above / pairs
