"""Losses that are sums over single numbers: of outputs and targets, or of the weights of the model."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.batch import Batch
from ..errors import ConfigError, DataError
from .base import (
    Loss,
    Term,
    Weight,
    comparable,
    number,
    one_of,
    pick,
    positive_weights,
    setting,
    switch,
    weights_like,
)

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Layers that normalise, whose weights are gains."""


class PerElement(Loss):
    """A loss whose mean is over all elements of the target."""

    joins = True

    def weight(self, batch: Batch) -> Weight:
        target = batch[self.target]
        if self.row_weight is None:
            return float(target.numel())
        weights = weights_like(self, batch, target)
        total: Tensor = weights.sum() * (target.numel() / max(1, weights.numel()))
        return total


class Elementwise(PerElement):
    """A loss that compares outputs and targets element by element."""

    reads = "numbers"
    answers = False
    """Whether targets are 0, 1 or what is between them, so that whole numbers will do."""

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        output, target = self.read(outputs, batch)
        if output.shape != target.shape:
            target = fit_rows(self.name, self.target, output, target)
        if self.row_weight is None:
            return self.compare(output, target, "sum")
        each = self.compare(output, target, "none")
        return (each * weights_like(self, batch, each)).sum()

    @abstractmethod
    def compare(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        """The torch function with its reduction, "sum" or "none"."""

    def check_targets(self, outputs: Any, targets: Tensor) -> None:
        output = pick(outputs, self.output, self.name)
        fit_rows(self.name, self.target, output[:1], targets[:1])
        if self.answers:
            between_0_and_1(self, targets)
        is_answer = self.answers and not targets.is_floating_point()
        if output.dtype in (torch.float32, torch.float64) and output.dtype != targets.dtype and not is_answer:
            is_now, wanted = (str(tensor.dtype).removeprefix("torch.") for tensor in (targets, output))
            raise DataError(
                f"{self.name}: stream {self.target!r} is {is_now}, the model's outputs are {wanted}. "
                f"Convert the stream to {wanted}."
            )


class MSE(Elementwise):
    """The squared error."""

    def compare(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.mse_loss(output, target, reduction=reduction)


class L1(Elementwise):
    """The absolute error."""

    def compare(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.l1_loss(output, target, reduction=reduction)


class Huber(Elementwise):
    """Quadratic near zero, linear beyond `delta`.

    `form="smooth"`: x²/2δ up to |x| = δ, |x| − δ/2 beyond ("smooth L1"); `form="classic"`: δ times that.
    """

    delta: float = setting(number("greater than 0", lambda value: 0 < value < math.inf))
    form: Literal["smooth", "classic"] = setting(one_of("smooth", "classic"))

    def __init__(self, delta: float = 0.11, *, form: Literal["smooth", "classic"] = "smooth", **options: Any) -> None:
        super().__init__(**options)
        self.delta, self.form = delta, form

    def compare(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        if self.form == "smooth":
            return F.smooth_l1_loss(output, target, reduction=reduction, beta=self.delta)
        return F.huber_loss(output, target, reduction=reduction, delta=self.delta)


class BinaryCrossEntropy(Elementwise):
    """Cross entropy of one yes-or-no question per element, from logits, or from probabilities: `inputs="probs"`."""

    answers = True
    inputs: Literal["logits", "probs"] = setting(one_of("logits", "probs"))
    positive_weight: Any = setting(positive_weights)

    def __init__(
        self,
        *,
        inputs: Literal["logits", "probs"] = "logits",
        positive_weight: Sequence[float] | Tensor | None = None,
        element_weight: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.inputs = inputs
        self.positive_weight = positive_weight
        self.element_weight = element_weight
        self._check_positive_weight()

    @property
    def reads(self) -> str:  # type: ignore[override]
        return "logits" if self.inputs == "logits" else "probabilities"

    def check_targets(self, outputs: Any, targets: Tensor) -> None:
        super().check_targets(outputs, targets)
        one_per_output(self, "positive_weight", self.positive_weight, pick(outputs, self.output, self.name))

    def check_outputs(self, outputs: Any, batch: Batch) -> None:
        found = pick(outputs, self.output, self.name)
        if self.inputs == "probs" and bool(((found < 0) | (found > 1)).any()):
            raise ConfigError(
                f"{self.name}: inputs='probs' expects probabilities, from 0 to 1, and the model's outputs go from "
                f"{float(found.min()):.4g} to {float(found.max()):.4g}. Say inputs='logits', or end the model with a "
                "sigmoid."
            )

    def _check_positive_weight(self) -> None:
        if self.positive_weight is not None and self.inputs != "logits":
            raise ConfigError("positive_weight= needs inputs='logits', as in torch.")

    def compare(self, output: Tensor, target: Tensor, reduction: str) -> Tensor:
        if not target.is_floating_point():
            target = target.to(output.dtype)
        weight = None if self.element_weight is None else self.element_weight.to(output.device)
        if self.inputs == "probs":
            self._check_positive_weight()
            return F.binary_cross_entropy(output, target, weight, reduction=reduction)
        positive = None if self.positive_weight is None else self.positive_weight.to(output.device)
        return F.binary_cross_entropy_with_logits(output, target, weight, reduction=reduction, pos_weight=positive)


class L2Prior(Loss):
    """½ · weight · Σ w² over all weights except biases; added once per update, and not part of a validation.

    The weight is the `coefficient`, which may change between updates. `gains=False` also leaves out the gains of
    normalisation layers.
    """

    training_only = True

    gains: bool = setting(switch)

    def __init__(
        self,
        weight: float,
        *,
        biases: bool = False,
        gains: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(coefficient=weight, name=name)
        self.biases, self.gains = biases, gains

    def weight(self, batch: Batch) -> Weight:
        return batch.share

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        raise NotImplementedError("a prior is computed from the model: see term()")

    def term(self, model: nn.Module, outputs: Any, batch: Batch) -> Term:
        share = batch.share
        return Term(self.penalty(model), share, self.coefficient, times=share, counts=False)

    def penalty(self, model: nn.Module) -> Tensor:
        """½ Σ w² of the model as it is."""
        if not (weights := self._weights(model)):  # they are frozen, perhaps for a while
            return torch.zeros((), device=next((p.device for p in model.parameters()), None))
        joined = torch.cat([weight.flatten() for weight in weights])
        return 0.5 * torch.dot(joined, joined)

    def _weights(self, model: nn.Module) -> list[nn.Parameter]:
        gains = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in [module.weight]}
        return [
            param
            for name, param in model.named_parameters()
            if param.requires_grad
            and (self.biases or "bias" not in name.rpartition(".")[2])
            and (self.gains or id(param) not in gains)
        ]


def between_0_and_1(loss: Loss, targets: Tensor) -> None:
    """Raises unless targets can be answers to yes-or-no questions."""
    targets = comparable(targets)
    bad = (targets < 0) | (targets > 1)
    if bad.any():
        where = torch.nonzero(bad)[0]
        raise DataError(
            f"{loss.name}: stream {loss.target!r}, row {int(where[0])}: {targets[tuple(where)].item():g} is no answer "
            f"to a yes-or-no question ({int(bad.sum())} such targets). Expected 0, 1, or a probability. For class "
            "numbers use CrossEntropy. For rows that do not count, put 0 here and give them the weight 0 by weight=."
        )


def one_per_output(loss: Loss, setting: str, weights: Tensor | None, output: Tensor) -> None:
    """Raises on weights of the columns of an output that has others."""
    row = list(output.shape[1:])
    if weights is not None and any(
        size not in (1, wide) for size, wide in zip_longest(weights.shape[::-1], row[::-1], fillvalue=1)
    ):
        raise ConfigError(
            f"{loss.name}: {setting}= has the shape {list(weights.shape)}, a row of the model's outputs {row}. "
            "Give one number per output."
        )


def fit_rows(name: str, stream: str, output: Tensor, target: Tensor) -> Tensor:
    """(rows,) and (rows, 1) mean the same; anything else would be broadcast into nonsense."""
    if output.numel() == target.numel() and _squeezed(output) == _squeezed(target):
        return target.view(output.shape)
    raise DataError(
        f"{name}: stream {stream!r} has rows of shape {list(target.shape[1:])}, "
        f"the model's outputs {list(output.shape[1:])}. They must be equal."
    )


def _squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape[1:] if size != 1]
