"""What a learner is: parameters, a schedule of rates, and an update of the gradients of a minibatch."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....errors import CheckpointError, ConfigError
from ..variables import Parameter
from .schedules import IGNORE, ParameterSchedule, inferred, training_parameter_schedule

Tensors = list[Tensor]


def momentum_of(schedule: ParameterSchedule, value: float, count: int) -> float:
    """The momentum of a minibatch of so many samples."""
    return value if schedule.minibatch_size == IGNORE else value ** (count / schedule.minibatch_size)


_defaults = {"unit_gain": True, "mean_gradient": False}


def default_unit_gain_value() -> bool:
    """Whether momentum has unit gain where a learner is not given `unit_gain=`."""
    return _defaults["unit_gain"]


def set_default_unit_gain_value(value: bool) -> None:
    _defaults["unit_gain"] = bool(value)


def default_use_mean_gradient_value() -> bool:
    """Whether gradients are averaged where a learner is not given `use_mean_gradient=`."""
    return _defaults["mean_gradient"]


def set_default_use_mean_gradient_value(value: bool) -> None:
    _defaults["mean_gradient"] = bool(value)


class Options:
    """The options that all learners take beside the settings of their rule."""

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
        self.l1, self.l2 = l1_regularization_weight, l2_regularization_weight
        self.noise = training_parameter_schedule(gaussian_noise_injection_std_dev)
        self.threshold, self.truncates = gradient_clipping_threshold_per_sample, gradient_clipping_with_truncation
        self.mean = _defaults["mean_gradient"] if use_mean_gradient is None else use_mean_gradient
        self.size = IGNORE if minibatch_size is None and self.mean else minibatch_size
        self.epoch_size = epoch_size

    def schedule(self, value: Any, mean: bool | None = None) -> ParameterSchedule:
        """The schedule of a setting that is given as a number, a list or a schedule."""
        return inferred(value, self.size, self.epoch_size, mean)


class Learner:
    """Updates parameters from gradients, which are sums over the samples of a minibatch.

    A minibatch is averaged where `minibatch_size` is `IGNORE`; then gradients are clipped, the L2 prior is added, the
    weights step, noise is added, and the L1 prior draws them to 0.
    """

    kind = "Learner"
    keeps: ClassVar[tuple[str, ...]] = ()
    ignored_minibatch_size = IGNORE

    def __init__(self, options: Options, parameters: Sequence[Parameter], lr: Any) -> None:
        self.parameters = tuple(parameters)
        if not self.parameters:
            raise ConfigError("a learner needs at least one parameter, got none. Is the model applied to an input?")
        if len(set(self.parameters)) < len(self.parameters):
            raise ConfigError("a learner's parameters are listed once each, got one twice.")
        if wrong := [p for p in self.parameters if not isinstance(p, Parameter)]:
            raise ConfigError(f"a learner updates parameters, got {wrong[0]!r}.")
        self.options, self._size = options, options.size
        self._learning_rate_schedule = options.schedule(lr, options.mean)
        self.total_number_of_samples_seen = self.minibatch_count = self.sweep_count = 0
        self.smoothed_count = 0.0
        self.kept: dict[str, list[Tensor]] = {}
        """What it remembers: a tensor for each parameter."""
        self.writers: list[Any] = []
        self._reported: dict[str, float] = {}
        self._noisy = any(options.noise.values)
        self._noise_seed = int(torch.randint(2**31, ())) if self._noisy else 0

    @property
    def minibatch_size(self) -> int:
        """The samples for which rates are given; `IGNORE` too where that was not said."""
        return IGNORE if self._size is None else self._size

    @minibatch_size.setter
    def minibatch_size(self, value: int) -> None:
        self._size = value

    @property
    def means(self) -> bool:
        """Whether it takes gradients as means over the minibatch."""
        return self._size == IGNORE

    def is_compatible_mode(self) -> bool:
        return self.means

    def create_checkpoint(self) -> dict[str, Any]:
        return {**self.state_dict(), "kept": {n: [t.clone() for t in ts] for n, ts in self.kept.items()}}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.load_state_dict(checkpoint)

    def learning_rate(self) -> float:
        return float(self._value(self._learning_rate_schedule))

    def reset_learning_rate(self, learning_rate: ParameterSchedule) -> None:
        if not isinstance(learning_rate, ParameterSchedule):
            raise ValueError(f"learning_rate type ({type(learning_rate)}) not supported: give a schedule.")
        if not learning_rate.is_minibatch_size_explicitly_specified and self._size:
            learning_rate.minibatch_size = self._size
        self._learning_rate_schedule = learning_rate.shifted(self._count(learning_rate))

    def update(self, gradient_values: Any, training_sample_count: int, is_sweep_end: bool = False) -> bool:
        """Updates the parameters from gradients given by parameter; `False` if learning has stopped."""
        gradients = {p: torch.as_tensor(np.asarray(gradient_values[p])) for p in self.parameters}
        given = [gradients[p].to(p.tensor).reshape(p.shape).clone() for p in self.parameters]
        return self.apply(given, training_sample_count, is_sweep_end)

    def apply(self, gradients: list[Tensor], count: int, sweep_end: bool) -> bool:
        """As `update`, from gradients in the order of the parameters, which may be overwritten."""
        if self.writers:
            self._report()
        if count == 0:
            raise ConfigError("a learner cannot be updated with an empty minibatch.")
        lr = self._rate_for(count)
        if lr == 0.0:
            return False
        with torch.no_grad():
            self._advance([p.tensor for p in self.parameters], gradients, lr, count)
        self.total_number_of_samples_seen += count
        self.minibatch_count += 1
        self.sweep_count += bool(sweep_end)
        return True

    def _advance(self, weights: Tensors, gradients: list[Tensor], lr: float, count: int) -> None:
        if self.keeps and not self.kept:
            self.kept = {name: [torch.zeros_like(w) for w in weights] for name in self.keeps}
        means = self.means
        samples = 1 if means else count
        if means:
            torch._foreach_div_(gradients, float(count))
        if self.options.threshold != np.inf:
            self._clip(gradients, self.options.threshold * samples)
        if self.options.l2 > 0:
            torch._foreach_add_(gradients, weights, alpha=self.options.l2 * samples)
        self._step(weights, gradients, lr, count)
        if self._noisy or self.options.l1 > 0:
            self._after(weights, lr, samples)

    def reset_smoothed_gradients(self) -> None:
        self.kept, self.smoothed_count = {}, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "counts": [self.total_number_of_samples_seen, self.minibatch_count, self.sweep_count, self._noise_seed],
            "smoothed_count": float(self.smoothed_count),
            "rate": self._learning_rate_schedule.state_dict(),
            "kept": {n: list(ts) for n, ts in self.kept.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; the schedule of rates is that of the state."""
        shapes = [tuple(p.shape) for p in self.parameters]
        found = [[tuple(t.shape) for t in tensors] for tensors in state["kept"].values()]
        if state["kind"] != self.kind or any(each != shapes for each in found):
            raise CheckpointError(
                f"the checkpoint is of a learner {state['kind']} of {found[:1] or 'no'} tensors, and this one is "
                f"{self.kind} of {shapes}. Make the learner as it was."
            )
        self.total_number_of_samples_seen, self.minibatch_count, self.sweep_count, self._noise_seed = state["counts"]
        self.smoothed_count = state["smoothed_count"]
        self._learning_rate_schedule = ParameterSchedule.of_state(dict(state["rate"]))
        weights = [p.tensor for p in self.parameters]
        self.kept = {n: [t.to(w).clone() for t, w in zip(ts, weights, strict=True)] for n, ts in state["kept"].items()}

    # --- the parts of an update ----------------------------------------------------------------------------

    def _step(self, weights: Tensors, gradients: Tensors, lr: float, count: int) -> None:
        raise NotImplementedError("a learner of one's own is a UserLearner, which overrides update().")

    def _count(self, schedule: ParameterSchedule) -> int:
        return self.sweep_count if schedule.by_sweep else self.total_number_of_samples_seen

    def _value(self, schedule: ParameterSchedule) -> float:
        values = schedule.values
        return float(values[0] if len(values) == 1 else schedule[self._count(schedule)])

    def _rate_for(self, count: int) -> float:
        """The rate that applies to gradients as they are given: sums, or means."""
        value, size = self._value(self._learning_rate_schedule), self._learning_rate_schedule.minibatch_size
        if size == IGNORE:
            return value if self.means else value / count
        return value * (count / size) if self.means else value / size

    def _clip(self, gradients: list[Tensor], most: float) -> None:
        if self.options.truncates:
            torch._foreach_clamp_max_(gradients, most)
            torch._foreach_clamp_min_(gradients, -most)
            return
        for gradient, norm in zip(gradients, torch._foreach_norm(gradients), strict=True):
            gradient.mul_((most / norm).clamp(max=1.0))

    def _after(self, weights: Tensors, lr: float, samples: int) -> None:
        if self._noisy:
            noise = self._value(self.options.noise)
            for w in weights:
                generator = torch.Generator(w.device).manual_seed(self._noise_seed)
                self._noise_seed += 1
                w.add_(torch.randn(w.shape, generator=generator, dtype=w.dtype, device=w.device), alpha=noise)
        if self.options.l1 > 0:
            edge = lr * self.options.l1 * samples
            for w in weights:
                w.copy_(w.sign() * (w.abs() - edge).clamp(min=0))

    def _report(self) -> None:
        self._report_change("Learning rate", self._learning_rate_schedule)

    def _report_change(self, name: str, schedule: ParameterSchedule) -> None:
        """Writers hear of a parameter whenever it changes."""
        value = self._value(schedule)
        if self._reported.get(name) != value:
            self._reported[name] = value
            size = schedule.minibatch_size
            key = f"{name} per minibatch" if size == IGNORE else f"{name} per {size} samples"
            for writer in self.writers:
                writer.write(key, value)


class UserLearner(Learner):
    """A learner of one's own: override `update`, and return whether learning goes on."""

    kind = "UserLearner"

    def __init__(self, parameters: Sequence[Parameter], lr_schedule: ParameterSchedule, as_numpy: bool = True) -> None:
        super().__init__(Options(), parameters, lr_schedule)
        self.as_numpy = as_numpy

    def update(self, gradient_values: Any, training_sample_count: int, is_sweep_end: bool = False) -> bool:
        raise NotImplementedError("UserLearner: override update(gradient_values, training_sample_count, sweep_end).")

    def apply(self, gradients: list[Tensor], count: int, sweep_end: bool) -> bool:
        if self.writers:
            self._report()
        given = {
            p: g.detach().cpu().numpy() if self.as_numpy else g for p, g in zip(self.parameters, gradients, strict=True)
        }
        going = bool(self.update(given, count, sweep_end))
        self.total_number_of_samples_seen += count
        self.minibatch_count += 1
        self.sweep_count += bool(sweep_end)
        return going
