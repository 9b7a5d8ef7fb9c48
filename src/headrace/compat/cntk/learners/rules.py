"""The update rules: what each makes of the gradients of a minibatch, which are sums over its samples."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....errors import ConfigError
from .learner import Learner, momentum_of
from .schedules import ParameterSchedule

Tensors = Sequence[Tensor]


def _scale(tensors: Tensors, factor: float) -> None:
    if len(tensors) == 1:
        tensors[0].mul_(factor)
    else:
        torch._foreach_mul_(list(tensors), factor)


def _add(tensors: Tensors, others: Tensors, factor: float) -> None:
    """Adds `factor` times the others."""
    if len(tensors) == 1:
        tensors[0].add_(others[0], alpha=factor)
    else:
        torch._foreach_add_(list(tensors), list(others), alpha=factor)


class SGDLearner(Learner):
    """w -= lr·g."""

    kind = "SGD"

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        _add(weights, gradients, -lr)


class MomentumSGDLearner(Learner):
    """v = β·v + lr·(1 - β)·g, or lr·g without unit gain; w -= v."""

    kind = "MomentumSGD"
    keeps: ClassVar[tuple[str, ...]] = ("smoothed",)

    def __init__(
        self, parameters: Any, lr: ParameterSchedule, momentum: ParameterSchedule, unit_gain: bool, **options: Any
    ):
        super().__init__(parameters, lr, **options)
        self.momentum, self.unit_gain = momentum, unit_gain

    def _report(self) -> None:
        super()._report()
        self._tell("Momentum", self.momentum)

    def _betas(self, count: int) -> tuple[float, float]:
        """Momentum of a minibatch of this size, and how much its gradient counts."""
        beta = momentum_of(self.momentum, self._value(self.momentum), count)
        return beta, 1 - beta if self.unit_gain else 1.0

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        velocity = self.kept["smoothed"]
        _scale(velocity, beta)
        _add(velocity, gradients, gain * lr)
        _add(weights, velocity, -1.0)


class NesterovLearner(MomentumSGDLearner):
    """v as with momentum; w -= β·v + lr·(1 - β)·g."""

    kind = "Nesterov"

    def _report(self) -> None:
        Learner._report(self)

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        velocity = self.kept["smoothed"]
        _scale(velocity, beta)
        _add(velocity, gradients, gain * lr)
        _add(weights, velocity, -beta)
        _add(weights, gradients, -gain * lr)


class FSAdaGradLearner(MomentumSGDLearner):
    """Gradients over the root of a running mean of their squares, at most ten times as large; with momentum."""

    kind, keeps = "FSAdaGrad", ("squares", "smoothed")

    def __init__(
        self,
        parameters: Any,
        lr: ParameterSchedule,
        momentum: ParameterSchedule,
        unit_gain: bool,
        variance_momentum: ParameterSchedule,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, momentum, unit_gain, **options)
        self.variance_momentum = variance_momentum

    def _report(self) -> None:
        Learner._report(self)

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        keep = momentum_of(self.variance_momentum, self._value(self.variance_momentum), count)
        self.smoothed_count = keep * self.smoothed_count + (1 - keep) * count
        scale = math.sqrt(self.smoothed_count)
        for w, g, squares, smoothed in zip(
            weights, gradients, self.kept["squares"], self.kept["smoothed"], strict=True
        ):
            squares.mul_(keep).addcmul_(g, g, value=1 - keep)
            factor = (scale / squares.sqrt()).clamp_(max=10.0)
            g = g * torch.where(squares != 0, factor, torch.ones_like(factor))
            if beta > 0:
                g = smoothed.mul_(beta).add_(g, alpha=gain)
            w.sub_(g, alpha=lr)


class AdamLearner(FSAdaGradLearner):
    """Adam, or Adamax, with a momentum that follows the size of the minibatch."""

    kind = "Adam"

    def __init__(self, *given: Any, epsilon: float = 1e-8, adamax: bool = False, **options: Any) -> None:
        super().__init__(*given, **options)
        if epsilon < 0:
            raise ConfigError(f"epsilon= is 0 or more, got {epsilon}.")
        self.epsilon, self.adamax = epsilon, adamax

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        keep = momentum_of(self.variance_momentum, self._value(self.variance_momentum), count)
        self.smoothed_count += 1
        unbiased = 1 / (1 - beta**self.smoothed_count)
        if not self.adamax:
            unbiased *= math.sqrt(1 - keep**self.smoothed_count)
        squares, smoothed, given = self.kept["squares"], self.kept["smoothed"], list(gradients)
        torch._foreach_mul_(squares, keep)
        if self.adamax:
            torch._foreach_maximum_(squares, torch._foreach_abs(given))
            divisor = torch._foreach_add(squares, self.epsilon)
        else:
            torch._foreach_addcmul_(squares, given, given, value=1 - keep)
            divisor = torch._foreach_sqrt(squares)
            torch._foreach_add_(divisor, self.epsilon)
        torch._foreach_mul_(smoothed, beta)
        torch._foreach_add_(smoothed, given, alpha=gain)
        torch._foreach_addcdiv_(list(weights), smoothed, divisor, value=-lr * unbiased)


class AdaGradLearner(Learner):
    """Gradients over the root of the sum of their squares; divided by the mean of these factors, by choice."""

    kind, keeps = "AdaGrad", ("squares",)

    def __init__(self, parameters: Any, lr: ParameterSchedule, need_ave_multiplier: bool, **options: Any) -> None:
        super().__init__(parameters, lr, **options)
        self.need_ave_multiplier = need_ave_multiplier

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        for w, g, squares in zip(weights, gradients, self.kept["squares"], strict=True):
            root = squares.addcmul_(g, g).add(1e-16).sqrt_()
            mean = root.reciprocal().mean() if self.need_ave_multiplier else 1.0
            w.sub_(lr * (g / root) / mean)


class RMSPropLearner(Learner):
    """Gradients over the root of a running mean of squares, times steps that grow while the sign stays."""

    kind, keeps = "RMSProp", ("squares", "signs", "steps")

    def __init__(
        self,
        parameters: Any,
        lr: ParameterSchedule,
        gamma: float,
        inc: float,
        dec: float,
        max: float,
        min: float,
        need_ave_multiplier: bool,
        **options: Any,
    ) -> None:
        super().__init__(parameters, lr, **options)
        for name, good, wanted in (
            ("gamma", 0 < gamma < 1, f"between 0 and 1, got {gamma}"),
            ("inc", inc > 1, f"greater than 1, got {inc}"),
            ("dec", 0 < dec < 1, f"between 0 and 1, got {dec}"),
            ("max", max > 0 and max > min, f"greater than 0 and than min, got {max}"),
            ("min", min > 0, f"greater than 0, got {min}"),
        ):
            if not good:
                raise ConfigError(f"rmsprop: {name}= is {wanted}.")
        self.gamma, self.inc, self.dec, self.most, self.least = gamma, inc, dec, max, min
        self.need_ave_multiplier = need_ave_multiplier

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        self.smoothed_count += 1
        kept = zip(weights, gradients, *(self.kept[name] for name in self.keeps), strict=True)
        for w, g, squares, signs, steps in kept:
            if self.smoothed_count == 1:
                squares.copy_(g * g)
                steps.fill_(0.02)
            squares.mul_(self.gamma).addcmul_(g, g, value=1 - self.gamma)
            sign = g.sign()
            grown = (steps * self.inc).clamp(max=self.most)
            shrunk = (steps * self.dec).clamp(min=self.least)
            steps.copy_(torch.where(signs * sign > 0, grown, shrunk))
            signs.copy_(sign)
            factor = steps / (squares + 1e-6).sqrt()
            mean = factor.mean() if self.need_ave_multiplier else 1.0
            w.sub_(lr * (g * factor) / mean)


class AdaDeltaLearner(Learner):
    """Gradients over the root of their running mean of squares, times that of the changes."""

    kind, keeps = "AdaDelta", ("squares", "changes")

    def __init__(self, parameters: Any, lr: ParameterSchedule, rho: float, epsilon: float, **options: Any) -> None:
        super().__init__(parameters, lr, **options)
        self.rho, self.epsilon = rho, epsilon

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        for w, g, squares, changes in zip(weights, gradients, self.kept["squares"], self.kept["changes"], strict=True):
            squares.mul_(self.rho).addcmul_(g, g, value=1 - self.rho)
            change = -(changes + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * g
            changes.mul_(self.rho).addcmul_(change, change, value=1 - self.rho)
            w.add_(change, alpha=lr)
