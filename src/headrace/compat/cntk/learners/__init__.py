"""Learners by CNTK's names: update rules, and the schedules of their settings."""

from typing import Any

import numpy as np

from .._native import hint, not_offered
from . import rules
from .learner import Learner as Learner
from .learner import UserLearner as UserLearner
from .schedules import IGNORE as IGNORE
from .schedules import ParameterSchedule as _Schedule
from .schedules import UnitType as UnitType
from .schedules import inferred as _inferred
from .schedules import learning_parameter_schedule as learning_parameter_schedule
from .schedules import learning_parameter_schedule_per_sample as learning_parameter_schedule_per_sample
from .schedules import learning_rate_schedule as learning_rate_schedule
from .schedules import momentum_as_time_constant_schedule as momentum_as_time_constant_schedule
from .schedules import momentum_schedule as momentum_schedule
from .schedules import momentum_schedule_per_sample as momentum_schedule_per_sample
from .schedules import training_parameter_schedule as training_parameter_schedule

_gain = [True]
_means = [False]
_VARIANCE = 0.9999986111120757
universal = not_offered("universal", "Derive from UserLearner, or natively from torch.optim.Optimizer.")


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
        self.size, self.epoch_size = IGNORE if minibatch_size is None and self.mean else minibatch_size, epoch_size
        self.named: dict[str, Any] = {
            "l1_regularization_weight": l1_regularization_weight,
            "l2_regularization_weight": l2_regularization_weight,
            "gaussian_noise_injection_std_dev": training_parameter_schedule(gaussian_noise_injection_std_dev),
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


def _gain_of(given: bool | None) -> bool:
    return _gain[0] if given is None else bool(given)


def _variance(given: Any) -> Any:
    return momentum_schedule_per_sample(_VARIANCE) if given is None else given


def sgd(
    parameters: Any,
    lr: Any,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """Stochastic gradient descent."""
    hint("sgd", "torch.optim.SGD")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.SGDLearner(parameters, options.rate(lr), **options.named)


def momentum_sgd(
    parameters: Any,
    lr: Any,
    momentum: Any,
    unit_gain: bool | None = None,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """Gradient descent with momentum."""
    hint("momentum_sgd", "torch.optim.SGD(momentum=)")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.MomentumSGDLearner(
        parameters, options.rate(lr), options.schedule(momentum), _gain_of(unit_gain), **options.named
    )


def nesterov(
    parameters: Any,
    lr: Any,
    momentum: Any,
    unit_gain: bool | None = None,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """Gradient descent with Nesterov's momentum."""
    hint("nesterov", "torch.optim.SGD(momentum=, nesterov=True)")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.NesterovLearner(
        parameters, options.rate(lr), options.schedule(momentum), _gain_of(unit_gain), **options.named
    )


def adadelta(
    parameters: Any,
    lr: Any = None,
    rho: float = 0.95,
    epsilon: float = 1e-8,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """AdaDelta."""
    hint("adadelta", "torch.optim.Adadelta")
    lr = learning_parameter_schedule_per_sample(1) if lr is None else lr
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.AdaDeltaLearner(parameters, options.rate(lr), rho, epsilon, **options.named)


def adagrad(
    parameters: Any,
    lr: Any,
    need_ave_multiplier: bool = True,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """AdaGrad."""
    hint("adagrad", "torch.optim.Adagrad")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.AdaGradLearner(parameters, options.rate(lr), need_ave_multiplier, **options.named)


def fsadagrad(
    parameters: Any,
    lr: Any,
    momentum: Any,
    unit_gain: bool | None = None,
    variance_momentum: Any = None,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """AdaGrad with a running mean and momentum."""
    hint("fsadagrad", "torch.optim.Adam")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.FSAdaGradLearner(
        parameters,
        options.rate(lr),
        options.schedule(momentum),
        _gain_of(unit_gain),
        options.schedule(_variance(variance_momentum)),
        **options.named,
    )


def adam(
    parameters: Any,
    lr: Any,
    momentum: Any,
    unit_gain: bool | None = None,
    variance_momentum: Any = None,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    epsilon: float = 1e-8,
    adamax: bool = False,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """Adam, or Adamax."""
    hint("adam", "torch.optim.Adam")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.AdamLearner(
        parameters,
        options.rate(lr),
        options.schedule(momentum),
        _gain_of(unit_gain),
        options.schedule(_variance(variance_momentum)),
        epsilon=epsilon,
        adamax=adamax,
        **options.named,
    )


def rmsprop(
    parameters: Any,
    lr: Any,
    gamma: float,
    inc: float,
    dec: float,
    max: float,
    min: float,
    need_ave_multiplier: bool = True,
    l1_regularization_weight: float = 0.0,
    l2_regularization_weight: float = 0.0,
    gaussian_noise_injection_std_dev: Any = 0.0,
    gradient_clipping_threshold_per_sample: float = np.inf,
    gradient_clipping_with_truncation: bool = True,
    use_mean_gradient: bool | None = None,
    minibatch_size: int | None = None,
    epoch_size: int | None = None,
) -> Learner:
    """RMSProp with steps that grow and shrink."""
    hint("rmsprop", "torch.optim.RMSprop")
    options = _Options(
        l1_regularization_weight,
        l2_regularization_weight,
        gaussian_noise_injection_std_dev,
        gradient_clipping_threshold_per_sample,
        gradient_clipping_with_truncation,
        use_mean_gradient,
        minibatch_size,
        epoch_size,
    )
    return rules.RMSPropLearner(
        parameters, options.rate(lr), gamma, inc, dec, max, min, need_ave_multiplier, **options.named
    )
