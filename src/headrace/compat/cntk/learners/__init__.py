"""Learners by CNTK's names: update rules, and the schedules of their settings."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from .._native import hint, lookup
from . import rules, schedules
from .learner import Learner as Learner
from .learner import UserLearner as UserLearner
from .schedules import ParameterSchedule as _Schedule
from .schedules import inferred as _inferred

_gain = [True]
_means = [False]
_VARIANCE = 0.9999986111120757
__getattr__ = lookup("learners", schedules)


def default_unit_gain_value() -> bool:
    """Whether momentum has unit gain where that is not said."""
    return _gain[0]


def set_default_unit_gain_value(value: bool) -> None:
    """Sets whether momentum has unit gain where that is not said."""
    _gain[0] = bool(value)


def default_use_mean_gradient_value() -> bool:
    """Whether gradients are averaged where that is not said."""
    return _means[0]


def set_default_use_mean_gradient_value(value: bool) -> None:
    """Sets whether gradients are averaged where that is not said."""
    _means[0] = bool(value)


class _Options:
    """What all learners can be told beside their own settings."""

    def __init__(
        self,
        l1_regularization_weight: float = 0.0,
        l2_regularization_weight: float = 0.0,
        gaussian_noise_injection_std_dev: Any = 0.0,
        gradient_clipping_threshold_per_sample: float = np.inf,
        gradient_clipping_with_truncation: bool = True,
        use_mean_gradient: bool | None = None,
        minibatch_size: int | None = None,
        epoch_size: int | None = None,
    ) -> None:
        self.mean = _means[0] if use_mean_gradient is None else use_mean_gradient
        self.size, self.epoch_size = (
            schedules.IGNORE if minibatch_size is None and self.mean else minibatch_size,
            epoch_size,
        )
        self.named: dict[str, Any] = {
            "l1_regularization_weight": l1_regularization_weight,
            "l2_regularization_weight": l2_regularization_weight,
            "gaussian_noise_injection_std_dev": schedules.training_parameter_schedule(gaussian_noise_injection_std_dev),
            "gradient_clipping_threshold_per_sample": gradient_clipping_threshold_per_sample,
            "gradient_clipping_with_truncation": gradient_clipping_with_truncation,
            "minibatch_size": self.size,
        }

    def rate(self, lr: Any) -> _Schedule:
        """The schedule of learning rates."""
        return _inferred(lr, self.size, self.epoch_size, self.mean)

    def schedule(self, value: Any) -> _Schedule:
        """The schedule of another setting."""
        return _inferred(value, self.size, self.epoch_size)


_COMMON = list(inspect.signature(_Options).parameters.values())
_LATE = [each.name for each in _COMMON].index("minibatch_size")  # what adam alone has comes before these


def _learner(native: str) -> Callable[[Callable[..., Learner]], Callable[..., Learner]]:
    """Makes a learner's function of its own settings alone: it takes what all learners take, in CNTK's order."""

    def wrap(make: Callable[..., Learner]) -> Callable[..., Learner]:
        own = list(inspect.signature(make).parameters.values())[1:]
        late = [each.replace(kind=each.POSITIONAL_OR_KEYWORD) for each in own if each.kind is each.KEYWORD_ONLY]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        signature = inspect.Signature([*first, *_COMMON[:_LATE], *late, *_COMMON[_LATE:]], return_annotation=Learner)

        @wraps(make)
        def learner(*given: Any, **named: Any) -> Learner:
            hint(make.__name__, native)
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            options = _Options(**{each.name: bound.arguments.pop(each.name) for each in _COMMON})
            return make(options, **bound.arguments)

        learner.__signature__ = signature  # type: ignore[attr-defined]
        return learner

    return wrap


def _gain_of(given: bool | None) -> bool:
    return _gain[0] if given is None else bool(given)


def _variance(given: Any) -> Any:
    return schedules.momentum_schedule_per_sample(_VARIANCE) if given is None else given


@_learner("torch.optim.SGD")
def sgd(options: _Options, parameters: Any, lr: Any) -> Learner:
    """Stochastic gradient descent."""
    return rules.SGDLearner(parameters, options.rate(lr), **options.named)


@_learner("torch.optim.SGD(momentum=)")
def momentum_sgd(options: _Options, parameters: Any, lr: Any, momentum: Any, unit_gain: Any = None) -> Learner:
    """Gradient descent with momentum."""
    own = options.rate(lr), options.schedule(momentum), _gain_of(unit_gain)
    return rules.MomentumSGDLearner(parameters, *own, **options.named)


@_learner("torch.optim.SGD(momentum=, nesterov=True)")
def nesterov(options: _Options, parameters: Any, lr: Any, momentum: Any, unit_gain: Any = None) -> Learner:
    """Gradient descent with Nesterov's momentum."""
    own = options.rate(lr), options.schedule(momentum), _gain_of(unit_gain)
    return rules.NesterovLearner(parameters, *own, **options.named)


@_learner("torch.optim.Adadelta")
def adadelta(options: _Options, parameters: Any, lr: Any = None, rho: float = 0.95, epsilon: float = 1e-8) -> Learner:
    """AdaDelta."""
    lr = schedules.learning_parameter_schedule_per_sample(1) if lr is None else lr
    return rules.AdaDeltaLearner(parameters, options.rate(lr), rho, epsilon, **options.named)


@_learner("torch.optim.Adagrad")
def adagrad(options: _Options, parameters: Any, lr: Any, need_ave_multiplier: bool = True) -> Learner:
    """AdaGrad."""
    return rules.AdaGradLearner(parameters, options.rate(lr), need_ave_multiplier, **options.named)


@_learner("torch.optim.Adam")
def fsadagrad(
    options: _Options, parameters: Any, lr: Any, momentum: Any, unit_gain: Any = None, variance_momentum: Any = None
) -> Learner:
    """AdaGrad with a running mean and momentum."""
    variance = options.schedule(_variance(variance_momentum))
    own = options.rate(lr), options.schedule(momentum), _gain_of(unit_gain), variance
    return rules.FSAdaGradLearner(parameters, *own, **options.named)


@_learner("torch.optim.Adam")
def adam(
    options: _Options,
    parameters: Any,
    lr: Any,
    momentum: Any,
    unit_gain: Any = None,
    variance_momentum: Any = None,
    *,
    epsilon: float = 1e-8,
    adamax: bool = False,
) -> Learner:
    """Adam, or Adamax."""
    variance = options.schedule(_variance(variance_momentum))
    own = options.rate(lr), options.schedule(momentum), _gain_of(unit_gain), variance
    return rules.AdamLearner(parameters, *own, epsilon=epsilon, adamax=adamax, **options.named)


@_learner("torch.optim.RMSprop")
def rmsprop(
    options: _Options,
    parameters: Any,
    lr: Any,
    gamma: float,
    inc: float,
    dec: float,
    max: float,
    min: float,
    need_ave_multiplier: bool = True,
) -> Learner:
    """RMSProp with steps that grow and shrink."""
    own = options.rate(lr), gamma, inc, dec, max, min, need_ave_multiplier
    return rules.RMSPropLearner(parameters, *own, **options.named)
