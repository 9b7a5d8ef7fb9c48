"""Learners by CNTK's names: the update rules, and the functions that make learners of them.

A rule makes a step of the gradients of a minibatch, which are sums over its samples.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....errors import ConfigError
from .._native import lookup
from . import learner, schedules
from .learner import Learner as Learner
from .learner import Options, default_unit_gain_value, momentum_of

Tensors = list[Tensor]
_VARIANCE = 0.9999986111120757
__getattr__ = lookup("learners", learner, schedules)


class SGDLearner(Learner):
    """w -= lr·g."""

    kind = "SGD"

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        torch._foreach_add_(weights, gradients, alpha=-lr)


class MomentumSGDLearner(Learner):
    """v = β·v + lr·(1 - β)·g, or lr·g without unit gain; w -= v."""

    kind = "MomentumSGD"
    keeps: ClassVar[tuple[str, ...]] = ("smoothed",)

    def __init__(self, options: Options, parameters: Any, lr: Any, momentum: Any, unit_gain: Any = None) -> None:
        super().__init__(options, parameters, lr)
        self.momentum = options.schedule(momentum)
        self.unit_gain = default_unit_gain_value() if unit_gain is None else bool(unit_gain)

    def _report(self) -> None:
        super()._report()
        self._report_change("Momentum", self.momentum)

    def _betas(self, count: int) -> tuple[float, float]:
        """Momentum of a minibatch of this size, and how much its gradient counts."""
        beta = momentum_of(self.momentum, self._value(self.momentum), count)
        return beta, 1 - beta if self.unit_gain else 1.0

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        velocity = self.kept["smoothed"]
        torch._foreach_mul_(velocity, beta)
        torch._foreach_add_(velocity, gradients, alpha=gain * lr)
        torch._foreach_add_(weights, velocity, alpha=-1.0)


class NesterovLearner(MomentumSGDLearner):
    """v as with momentum; w -= β·v + lr·(1 - β)·g."""

    kind = "Nesterov"

    def _report(self) -> None:
        Learner._report(self)

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        beta, gain = self._betas(count)
        velocity = self.kept["smoothed"]
        torch._foreach_mul_(velocity, beta)
        torch._foreach_add_(velocity, gradients, alpha=gain * lr)
        torch._foreach_add_(weights, velocity, alpha=-beta)
        torch._foreach_add_(weights, gradients, alpha=-gain * lr)


class FSAdaGradLearner(MomentumSGDLearner):
    """Gradients over the root of a running mean of their squares, at most ten times as large; with momentum."""

    kind, keeps = "FSAdaGrad", ("squares", "smoothed")

    def __init__(
        self,
        options: Options,
        parameters: Any,
        lr: Any,
        momentum: Any,
        unit_gain: Any = None,
        variance_momentum: Any = None,
    ) -> None:
        super().__init__(options, parameters, lr, momentum, unit_gain)
        variance = schedules.momentum_schedule_per_sample(_VARIANCE) if variance_momentum is None else variance_momentum
        self.variance_momentum = options.schedule(variance)

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

    def __init__(
        self,
        options: Options,
        parameters: Any,
        lr: Any,
        momentum: Any,
        unit_gain: Any = None,
        variance_momentum: Any = None,
        *,
        epsilon: float = 1e-8,
        adamax: bool = False,
    ) -> None:
        super().__init__(options, parameters, lr, momentum, unit_gain, variance_momentum)
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
        squares, smoothed = self.kept["squares"], self.kept["smoothed"]
        torch._foreach_mul_(squares, keep)
        if self.adamax:
            torch._foreach_maximum_(squares, torch._foreach_abs(gradients))
            divisor = torch._foreach_add(squares, self.epsilon)
        else:
            torch._foreach_addcmul_(squares, gradients, gradients, value=1 - keep)
            divisor = torch._foreach_sqrt(squares)
            torch._foreach_add_(divisor, self.epsilon)
        torch._foreach_mul_(smoothed, beta)
        torch._foreach_add_(smoothed, gradients, alpha=gain)
        torch._foreach_addcdiv_(weights, smoothed, divisor, value=-lr * unbiased)


class AdaGradLearner(Learner):
    """Gradients over the root of the sum of their squares; divided by the mean of these factors, by choice."""

    kind, keeps = "AdaGrad", ("squares",)

    def __init__(self, options: Options, parameters: Any, lr: Any, need_ave_multiplier: bool = True) -> None:
        super().__init__(options, parameters, lr)
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
        options: Options,
        parameters: Any,
        lr: Any,
        gamma: float,
        inc: float,
        dec: float,
        max: float,
        min: float,
        need_ave_multiplier: bool = True,
    ) -> None:
        super().__init__(options, parameters, lr)
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

    def __init__(
        self, options: Options, parameters: Any, lr: Any = None, rho: float = 0.95, epsilon: float = 1e-8
    ) -> None:
        super().__init__(options, parameters, schedules.learning_parameter_schedule_per_sample(1) if lr is None else lr)
        self.rho, self.epsilon = rho, epsilon

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        for w, g, squares, changes in zip(weights, gradients, self.kept["squares"], self.kept["changes"], strict=True):
            squares.mul_(self.rho).addcmul_(g, g, value=1 - self.rho)
            change = -(changes + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * g
            changes.mul_(self.rho).addcmul_(change, change, value=1 - self.rho)
            w.add_(change, alpha=lr)


_COMMON = list(inspect.signature(Options).parameters.values())
_LATE = [each.name for each in _COMMON].index("minibatch_size")  # settings of adam alone come before these


def _maker(name: str, rule: type[Learner]) -> Callable[..., Learner]:
    """The function that makes learners of a rule: it takes the rule's settings and the common ones in CNTK's order."""
    own = list(inspect.signature(rule).parameters.values())[1:]
    late = [each.replace(kind=each.POSITIONAL_OR_KEYWORD) for each in own if each.kind is each.KEYWORD_ONLY]
    first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
    signature = inspect.Signature([*first, *_COMMON[:_LATE], *late, *_COMMON[_LATE:]], return_annotation=Learner)

    def make(*given: Any, **named: Any) -> Learner:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        options = Options(**{each.name: bound.arguments.pop(each.name) for each in _COMMON})
        return rule(options, **bound.arguments)

    make.__name__, make.__qualname__, make.__doc__ = name, name, rule.__doc__
    vars(make)["__signature__"] = signature
    return make


sgd = _maker("sgd", SGDLearner)
momentum_sgd = _maker("momentum_sgd", MomentumSGDLearner)
nesterov = _maker("nesterov", NesterovLearner)
adadelta = _maker("adadelta", AdaDeltaLearner)
adagrad = _maker("adagrad", AdaGradLearner)
fsadagrad = _maker("fsadagrad", FSAdaGradLearner)
adam = _maker("adam", AdamLearner)
rmsprop = _maker("rmsprop", RMSPropLearner)
