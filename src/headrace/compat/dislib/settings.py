"""Losses, metrics and optimizers by the names that dislib has for them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.batch import Batch
from ...errors import ConfigError, DataError, unknown
from ...loss.base import Loss
from ...loss.classes import CrossEntropy
from ...loss.elements import MSE, BinaryCrossEntropy

Each = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs and targets of the same shape, and returns the numbers of which a metric is the mean."""


class Dice(Loss):
    """1 - 2 Σ t·y / (Σ t + Σ y) of every row, with probabilities y and targets t of 0 and 1; the mean over rows."""

    reads = "probabilities"
    joins = True

    def weight(self, batch: Batch) -> float:
        return float(len(batch[self.target]))

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        output, target = self.read(outputs, batch)
        found = output.flatten(1)
        wanted = target.to(output.dtype).reshape(found.shape)
        return (1 - 2 * (found * wanted).sum(1) / (found.sum(1) + wanted.sum(1))).sum()


_BINARY = ("binary_cross_entropy", "bce")
_CLASSES = (
    *("soft_cross_entropy", "sce", "softmax_cross_entropy"),
    *("categorical_cross_entropy", "cce", "cross_entropy", "ce"),
)
LOSSES: dict[str, Callable[[], Loss]] = {
    **dict.fromkeys(("mean_squared_error", "mse"), MSE),
    **dict.fromkeys(_BINARY, BinaryCrossEntropy),
    **dict.fromkeys(_CLASSES, CrossEntropy),
    "dice": Dice,
}
"""Losses by their names; classes are told by scores (logits): leave a last softmax out. "dice" takes probabilities."""
METRICS = {
    "mse": "mse",
    **dict.fromkeys(("categorical_accuracy", "accuracy"), "accuracy"),
    **dict.fromkeys(("mae", "mean_absolute_error"), "mae"),
    **dict.fromkeys(("mre", "mean_relative_error"), "mean_relative_error"),
}
"""Metrics by their names, and what they are called in a history."""
OPTIMIZERS: dict[str, Any] = {
    "adam": (torch.optim.Adam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}, {}),
    "sgd": (torch.optim.SGD, {}, {}),
    "rmsprop": (torch.optim.RMSprop, {"rho": 0.9, "epsilon": 1e-5}, {"rho": "alpha"}),
    "adagrad": (torch.optim.Adagrad, {"epsilon": 1e-5}, {}),
    "adamax": (torch.optim.Adamax, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5}, {}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.9, "epsilon": 1e-5}, {}),
    "nadam": (torch.optim.NAdam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5}, {}),
}
"""Optimizers of torch by their names, the settings that they have by default, and what torch calls some of them."""
_CALLED = {"epsilon": "eps", "schedule_decay": "momentum_decay"}


def optimizer_of(net: nn.Module, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class and its settings as torch calls them, which have been tried on the parameters of `net`."""
    settings = {"lr": 0.01, **given}
    name = settings.pop("optimizer", "sgd")
    if name not in OPTIMIZERS:
        raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
    make, defaults, called = OPTIMIZERS[name]
    settings = _as_torch({**defaults, **settings}, called)
    try:
        make(net.parameters(), **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer= has settings that {name} does not take: {error}.") from error
    return make, settings


def metric_of(metric: str, loss: str) -> Any:
    """The metric of this name. If the loss takes scores, it compares probabilities that are made of them."""
    name = METRICS[metric]
    if name == "accuracy":
        return name if loss in _CLASSES else {name: _Mean(_is_right, higher_is_better=True)}
    each: dict[str, Each] = {"mse": _squares, "mae": _distances, "mean_relative_error": _relative}
    if loss in _CLASSES:
        return {name: _Mean(each[name], partial(torch.softmax, dim=1))}
    if loss in _BINARY:
        return {name: _Mean(each[name], torch.sigmoid)}
    return {name: _Mean(each[name])} if name == "mean_relative_error" else name


class _Mean:
    """The mean of what `each` finds, of outputs after `activation`; labels of classes are compared as one-hot rows."""

    def __init__(
        self, each: Each, activation: Callable[[Tensor], Tensor] | None = None, higher_is_better: bool = False
    ) -> None:
        self._each, self._activation, self.higher_is_better = each, activation, higher_is_better
        self.reset()

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.dim() == outputs.dim() - 1 and outputs.shape[1] > 1:
            targets = F.one_hot(targets.long(), outputs.shape[1]).movedim(-1, 1)
        outputs = outputs if self._activation is None else self._activation(outputs)
        found = self._each(outputs, targets.reshape(outputs.shape).to(outputs.dtype)).double()
        self._total += float(found.sum())
        self._count += found.numel()

    def compute(self) -> float:
        return self._total / self._count


def _is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest output is that of the target's class."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        raise DataError(
            "metric 'categorical_accuracy' compares classes, and the model gives one number for each row. Give the "
            "model an output for each class, or take metric='mae'."
        )
    return outputs.argmax(1) == targets.argmax(1)


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square()


def _distances(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs()


def _relative(outputs: Tensor, targets: Tensor) -> Tensor:
    """|t - y| / (|t| + 0.001)."""
    return (targets - outputs).abs() / (targets.abs() + 1e-3)


def _as_torch(settings: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """Settings of an optimizer by the names that torch has for them."""
    found = {called.get(name, _CALLED.get(name, name)): value for name, value in settings.items()}
    betas = tuple(found.pop(name) for name in ("beta_1", "beta_2") if name in found)
    return {"betas": betas, **found} if betas else found
