"""Focal loss, which gives less weight to examples that are already well classified."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.batch import Batch
from ..errors import ConfigError
from .base import Weight, label, number, one_of, pick, setting, weights_like
from .base import class_weights as checked_weights
from .classes import CrossEntropy
from .elements import PerElement, between_0_and_1, fit_rows, one_per_output


def _shares(name: str, value: float | Sequence[float] | Tensor | None) -> Tensor | None:
    """A number from 0 to 1, or one for each output, or none."""
    if value is None:
        return None
    tensor = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32)
    if tensor.dim() > 1 or not bool(((tensor >= 0) & (tensor <= 1)).all()):
        raise ConfigError(f"{name}= is a number from 0 to 1, or one for each output, got {value!r}.")
    return tensor


class Focal(PerElement):
    """Cross entropy from logits that gives less weight to examples that are already well classified.

        FL(pₜ) = −αₜ (1 − pₜ)^γ log(pₜ),    pₜ = p and αₜ = α if y = 1,    pₜ = 1 − p and αₜ = 1 − α otherwise

    Lin et al. 2017, https://arxiv.org/abs/1708.02002, equations 2 and 5. If targets have the shape of the outputs,
    every output is a separate yes-or-no question with p = sigmoid(output). `alpha` is one number, or one for each entry
    of the last dimension; without it αₜ is 1. A target t between 0 and 1 counts as t of a yes and 1 − t of a no. If
    targets are one class index per row, the classes exclude each other, pₜ is the softmax at that class, and there is
    no `alpha`.

    `class_weights` multiply the loss of a class, or of a question whatever its answer. `normalize` is what the sum is
    divided by: `"elements"`, the number of targets; `"positives"`, 1 plus the sum of the targets, or 1 plus the number
    of targets other than 0 (the background), so that batches without any positive still train. With `reduce="sum"` the
    sum is not divided.
    """

    reads = "logits"
    gamma: float = setting(number("a number that is not negative", lambda value: 0 <= value < math.inf))
    alpha: Any = setting(_shares)
    class_weights: Any = setting(checked_weights)
    ignore_index: int | None = setting(label)
    normalize: Literal["elements", "positives"] = setting(one_of("elements", "positives"))

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        alpha: float | Sequence[float] | Tensor | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        ignore_index: int | None = None,
        normalize: Literal["elements", "positives"] = "elements",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.gamma = gamma
        self.alpha = alpha
        self.class_weights = class_weights
        self.ignore_index, self.normalize = ignore_index, normalize

    @property
    def joins(self) -> bool:  # type: ignore[override]
        return self.normalize != "positives"  # of which there is one more in every batch

    def weight(self, batch: Batch) -> Weight:
        target = batch[self.target]
        if self.normalize == "elements" and self.ignore_index is None:
            return super().weight(batch)
        counted = torch.ones_like(target, dtype=torch.bool)
        if self.normalize == "positives":
            counted = target if target.is_floating_point() else target > 0
        if self.ignore_index is not None:
            counted = counted * (target != self.ignore_index)
        found: Tensor = (counted if self.row_weight is None else counted * weights_like(self, batch, counted)).sum()
        return found.double() + batch.share if self.normalize == "positives" else found

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        logits, target = self.read(outputs, batch)
        counted = None if self.ignore_index is None else target != self.ignore_index
        if counted is not None:
            target = torch.where(counted, target, 0)
        each = self._exclusive(logits, target) if logits.dim() == target.dim() + 1 else self._questions(logits, target)
        if counted is not None:
            each = torch.where(counted.view(each.shape), each, 0)
        if self.row_weight is not None:
            each = each * weights_like(self, batch, each)
        return each.sum()

    def check_targets(self, outputs: Any, targets: Tensor) -> None:
        logits = pick(outputs, self.output, self.name)
        if logits.dim() == targets.dim() + 1:
            if self.alpha is not None:
                raise ConfigError(
                    f"{self.name}: alpha= weighs yes against no, and stream {self.target!r} has class indices. Use "
                    "class_weights=, or targets of 0 and 1 for each output."
                )
            options: dict[str, Any] = {"output": self.output, "target": self.target, "name": self.name}
            options["ignore_index"] = self.ignore_index
            CrossEntropy(class_weights=self.class_weights, **options).check_targets(outputs, targets)
        else:
            fit_rows(self.name, self.target, logits[:1], targets[:1])
            between_0_and_1(
                self, targets if self.ignore_index is None else targets.masked_fill(targets == self.ignore_index, 0)
            )
            for setting in ("alpha", "class_weights"):
                one_per_output(self, setting, getattr(self, setting), logits)

    def _exclusive(self, logits: Tensor, target: Tensor) -> Tensor:
        log_p = F.log_softmax(logits, dim=1).gather(1, target.long().unsqueeze(1)).squeeze(1)
        each = self._focus(log_p)
        return each if self.class_weights is None else each * self.class_weights.to(each)[target.long()]

    def _questions(self, logits: Tensor, target: Tensor) -> Tensor:
        if logits.shape != target.shape:
            target = fit_rows(self.name, self.target, logits, target)
        alpha = None if self.alpha is None else self.alpha.to(logits)
        if target.is_floating_point():
            yes, no = self._focus(F.logsigmoid(logits)), self._focus(F.logsigmoid(-logits))
            if alpha is not None:
                yes, no = alpha * yes, (1 - alpha) * no
            share = target.to(logits.dtype)
            each = share * yes + (1 - share) * no
        else:  # pₜ alone, at half of the work
            each = self._focus(F.logsigmoid(torch.where(target > 0, logits, -logits)))
            if alpha is not None:
                each = each * torch.where(target > 0, alpha, 1 - alpha)
        return each if self.class_weights is None else each * self.class_weights.to(each)

    def _focus(self, log_p: Tensor) -> Tensor:
        miss = -torch.expm1(log_p)  # 1 − pₜ without cancellation
        tiny = torch.finfo(log_p.dtype).tiny  # a root of it has a finite slope here
        return -(miss.clamp_min(tiny) ** self.gamma) * log_p
