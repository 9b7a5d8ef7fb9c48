"""Costs by PuzzleLib's names: what they train on, what they report, and how a validation counts errors."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ConfigError, DataError

_OTHERS = {
    "Hinge": "a cost of your own, which derives from Cost and gives errors()",
    "KLDivergence": "a cost of your own, which derives from Cost and gives errors()",
    "L1Hinge": "a cost of your own, which derives from Cost and gives errors()",
    "RMSPropGraves": "torch.optim.RMSprop(centered=True, momentum=...) in an hr.Trainer",
    "SMORMS3": "an optimizer of torch in an hr.Trainer",
}
REMEMBERED = {"error", "valError", "grad", "mostProb", "batchsize", "numOfSamples", "_last", "_total"}
"""What a cost remembers of the batches that it has seen."""


class Cost:
    """A cost that remembers the errors of the batches it has seen, until `resetAccumulator`.

    A cost of your own gives `errors`, and `calcVal` if a validation counts otherwise.
    """

    def __init__(self) -> None:
        self.error: Any = None
        self.valError: Any = None
        self.grad: Any = None
        self.resetAccumulator()

    def __call__(self, pred: Any, target: Any, queryError: bool = True) -> Any:
        """The mean error of a batch and its gradient by the predictions, or the gradient alone; for loops of your own.

        The gradient points downhill: `pred.backward(-grad)` gives a module's parameters theirs.
        """
        self.check(pred, target)
        leaves = [each.detach().requires_grad_() for each in (pred if isinstance(pred, list) else [pred])]
        rows = len(leaves[0])
        trained, error = self.errors(leaves if isinstance(pred, list) else leaves[0], target)
        found = [grad / -rows for grad in torch.autograd.grad(trained, leaves)]
        self.grad = found if isinstance(pred, list) else found[0]
        self.record(float(error.detach()), rows)
        return (self.getError(), self.grad) if queryError else self.grad

    def resetAccumulator(self) -> None:
        self._last: Any = 0.0
        self._total: Any = 0.0
        self.batchsize = self.numOfSamples = 0

    def errors(self, pred: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Summed over the samples: what the gradient is of, and the error that is reported."""
        raise NotImplementedError

    def calcVal(self, pred: Any, target: Any) -> Any:
        """The mean error of a batch as a validation counts it."""
        return self.errors(pred, target)[1] / len(_first(pred))

    def validate(self, pred: Any, target: Any) -> Any:
        """The error of a batch that is not trained on."""
        self.check(pred, target)
        with torch.no_grad():
            self.valError = _number(self.calcVal(pred, target))
        return self.valError

    def record(self, error: Any, samples: int) -> None:
        """A batch of so many samples has had this error, summed over them."""
        self._last, self.batchsize = error, samples
        self._total, self.numOfSamples = self._total + error, self.numOfSamples + samples

    def getError(self) -> Any:
        """The mean error of the last batch."""
        self._check_seen()
        self.error = float(self._last) / self.batchsize
        return self.error

    def getMeanError(self) -> Any:
        """The mean error over all samples since the accumulator was reset."""
        self._check_seen()
        return float(self._total) / self.numOfSamples

    def getValError(self) -> Any:
        return self.valError

    def _check_seen(self) -> None:
        if not self.numOfSamples:
            raise ConfigError(f"{type(self).__name__} has seen no batch since its accumulator was reset.")

    def check(self, pred: Any, target: Any) -> None:
        """Raises on a target that cannot be compared."""
        if isinstance(pred, Tensor) and isinstance(target, Tensor) and len(pred) != len(target):
            raise DataError(
                f"{type(self).__name__}: {len(pred)} predictions and {len(target)} targets. Give one for each."
            )


class _Elementwise(Cost):
    def check(self, pred: Any, target: Any) -> None:
        super().check(pred, target)
        if pred.shape[1:] != target.shape[1:]:
            raise DataError(
                f"{type(self).__name__}: predictions have rows of shape {list(pred.shape[1:])}, targets of "
                f"{list(target.shape[1:])}. Expected the same."
            )

    def errors(self, pred: Any, target: Any) -> tuple[Tensor, Tensor]:
        total = self.each(pred, target).sum() / math.prod(target.shape[1:])
        return total, total

    def each(self, pred: Tensor, target: Tensor) -> Tensor:
        """The error of every element."""
        raise NotImplementedError


class MSE(_Elementwise):
    """Half the squared error, as a mean over elements."""

    def each(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target).square() / 2


class Abs(_Elementwise):
    """The absolute error, as a mean over elements."""

    def each(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - target).abs()


class SmoothL1(_Elementwise):
    """Half the square below a difference of 1, the difference less a half above; a mean over elements."""

    def each(self, pred: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(pred, target, reduction="none")


class BCE(Cost):
    """Binary cross entropy of scores; labels 0 and 1. A validation counts the wrong answers."""

    def errors(self, pred: Any, target: Any) -> tuple[Tensor, Tensor]:
        labels = target.reshape(pred.shape).to(pred.dtype)
        each = F.binary_cross_entropy_with_logits(pred, labels, reduction="sum") / math.prod(pred.shape[1:])
        return each, each

    def calcVal(self, pred: Any, target: Any) -> Any:
        return ((pred > 0) != target.reshape(pred.shape).bool()).float().mean()

    def check(self, pred: Any, target: Any) -> None:
        super().check(pred, target)
        if target.numel() != len(target) * (places := pred.numel() // len(pred)):
            raise DataError(f"BCE: labels of shape {list(target.shape)}. Expected {places} for each sample.")


class CrossEntropy(Cost):
    """Cross entropy of scores; classes are in dimension 1. A validation counts the wrong answers.

    Where a sample has several places, the error is the mean over them and the gradient their sum, as it was.
    """

    def __init__(self, maxlabels: int | None = None, weights: Any = None) -> None:
        super().__init__()
        self.maxlabels, self.mostProb = maxlabels, None
        self.weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float32)

    def errors(self, pred: Any, target: Any) -> tuple[Tensor, Tensor]:
        places = math.prod(target.shape[1:])
        weights = None if self.weights is None else self.weights.to(pred.device)
        each = F.cross_entropy(pred, target.long(), reduction="none")
        if weights is not None:
            each = each * weights[target.long()]
        total = each.sum()
        return total, total if places == 1 else total / places

    def calcVal(self, pred: Any, target: Any) -> Any:
        self.mostProb = pred.argmax(1)
        return (self.mostProb != target).float().mean()

    def check(self, pred: Any, target: Any) -> None:
        super().check(pred, target)
        classes = pred.shape[1] if pred.dim() > 1 else 0
        if pred.dim() < 2 or target.dim() != pred.dim() - 1 or pred.shape[2:] != target.shape[1:]:
            raise DataError(
                f"{type(self).__name__}: scores of shape {list(pred.shape)} and labels of shape {list(target.shape)}. "
                "Expected scores of shape (samples, classes, ...) and a label for each sample and place."
            )
        if self.maxlabels and classes != self.maxlabels:
            raise DataError(f"{type(self).__name__}: {classes} scores for a sample, and maxlabels={self.maxlabels}.")


class SVM(CrossEntropy):
    """The hinge of every class against the others, `mode` "l1" or, squared, "l2"."""

    def __init__(self, mode: str = "l1") -> None:
        super().__init__()
        self.mode = mode

    def errors(self, pred: Any, target: Any) -> tuple[Tensor, Tensor]:
        signs = 2 * F.one_hot(target.long(), pred.shape[1]).movedim(-1, 1).to(pred.dtype) - 1
        each = (1 - pred * signs).clamp_min(0)
        total = (each if self.mode == "l1" else each.square()).sum() / math.prod(pred.shape[1:])
        return total, total


class Multi(Cost):
    """Several costs, one for each of what the module returns; errors are lists."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []
        super().__init__()

    def __call__(self, pred: Any, target: Any, queryError: bool = True) -> Any:
        self.check(pred, target)
        pairs = zip(self.costs, pred, target, strict=True)
        self.grad = [cost(each, wanted, queryError=False) for cost, each, wanted in pairs]
        return (self.getError(), self.grad) if queryError else self.grad

    def append(self, cost: Cost) -> "Multi":
        self.costs.append(cost)
        return self

    def resetAccumulator(self) -> None:
        for cost in self.costs:
            cost.resetAccumulator()

    def record(self, error: Any, samples: int) -> None:
        for cost, each in zip(self.costs, error, strict=True):
            cost.record(each, samples)

    def validate(self, pred: Any, target: Any) -> Any:
        self.valError = [cost.validate(p, t) for cost, p, t in zip(self.costs, pred, target, strict=True)]
        return self.valError

    def getError(self) -> Any:
        self.error = [cost.getError() for cost in self.costs]
        return self.error

    def getMeanError(self) -> Any:
        return [cost.getMeanError() for cost in self.costs]

    def check(self, pred: Any, target: Any) -> None:
        for cost, each, wanted in zip(self.costs, pred, target, strict=True):
            cost.check(each, wanted)


def made(what: str, given: Any, base: Any, kinds: Sequence[Any], others: str) -> Any:
    """A cost or an optimizer, or the one of this name with its defaults; `others`: what to do with any other."""
    if isinstance(given, base):
        return given
    known = {kind.__name__.lower(): kind for kind in kinds}
    names = ", ".join(kind.__name__ for kind in kinds)
    if not isinstance(given, str):
        came = f"{type(given).__module__}.{type(given).__name__}"
        raise ConfigError(f"{what}= is one of PuzzleLib's or its name, got a {came}. Known: {names}. {others}")
    if given.lower() not in known:
        raise ConfigError(f"there is no {what} {given!r}. Known: {names}. {others}")
    return known[given.lower()]()


def by_name(cost: Any) -> Cost:
    """A cost, or the one of this name."""
    kinds = (BCE, SVM, Abs, CrossEntropy, MSE, SmoothL1)
    found: Cost = made("cost", cost, Cost, kinds, "Others derive from Cost. Losses of torch are for hr.Trainer.")
    return found


def _first(data: Any) -> Any:
    while isinstance(data, list | tuple):
        data = data[0]
    return data


def _number(value: Any) -> Any:
    return [_number(each) for each in value] if isinstance(value, list) else float(value)


def __getattr__(name: str) -> Any:
    """What PuzzleLib has and is not offered here: an error that "from PuzzleLib.Cost import Hinge" shows, too."""
    if name in _OTHERS:
        raise ImportError(f"PuzzleLib's {name} is not offered here. Write {_OTHERS[name]}.")
    raise AttributeError(f"PuzzleLib has no {name!r} here.")
