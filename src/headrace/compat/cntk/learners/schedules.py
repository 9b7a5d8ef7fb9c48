"""Schedules of rates, momenta and sizes: a value for every point of a training, counted in samples or sweeps."""

import math
import warnings
from enum import Enum
from itertools import accumulate
from typing import Any

from ....errors import ConfigError

IGNORE = 0
"""The reference size that says: the value is that of a minibatch, however large."""


class UnitType(Enum):
    """What a value of a schedule is for: a sample, or a minibatch."""

    sample = "sample"
    minibatch = "minibatch"


class ParameterSchedule:
    """Values one after the other, each for a number of epochs of so many samples; without a size, of sweeps.

    `minibatch_size` is the size that the values are meant for; 0 if they are of any minibatch.
    """

    def __init__(self, schedule: Any, epoch_size: int | None = None, minibatch_size: int = IGNORE) -> None:
        pairs = schedule if isinstance(schedule, list | tuple) else [(1, schedule)]
        pairs = [each if isinstance(each, list | tuple) else (1, each) for each in pairs]
        if not pairs:
            raise ConfigError("a schedule has at least one value, got none.")
        if epoch_size is not None and epoch_size <= 0:
            raise ConfigError(f"epoch_size= is a number of samples greater than 0, got {epoch_size}.")
        if any(count < 0 or count != int(count) for count, _ in pairs):
            raise ConfigError(f"a schedule lists values, or pairs of (epochs, value), got {schedule!r}.")
        unit = epoch_size or 1
        self.starts = [0, *accumulate(int(count) * unit for count, _ in pairs[:-1])]
        self.values: list[Any] = [value for _, value in pairs]
        self.by_sweep = epoch_size is None and len(pairs) > 1
        self.epoch_size, self.minibatch_size = epoch_size, minibatch_size
        self.is_minibatch_size_explicitly_specified = False

    def __getitem__(self, count: int) -> Any:
        """The value after so many samples, or sweeps."""
        if len(self.values) == 1:
            return self.values[0]
        return next(v for s, v in zip(reversed(self.starts), reversed(self.values), strict=True) if s <= count)

    def shifted(self, by: int) -> "ParameterSchedule":
        """The same schedule, beginning later."""
        found = self.of_state(self.state_dict())
        found.starts = [0, *(start + by for start in self.starts[1:])]
        return found

    def state_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, list) else v for k, v in vars(self).items()}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "ParameterSchedule":
        found = cls.__new__(cls)
        vars(found).update(state)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(zip(self.starts, self.values, strict=True))}, per {self.minibatch_size})"


class MinibatchSizeSchedule(ParameterSchedule):
    """Sizes of minibatches, by samples."""


def _schedule(values: Any, epoch_size: int | None, size: int | None, explicit: bool = True) -> ParameterSchedule:
    """A schedule of a number or a list, or the one that is given; `size`: the samples that its values are meant for."""
    if isinstance(values, ParameterSchedule):
        return values
    is_number = isinstance(values, int | float)
    if not is_number and not isinstance(values, list):
        raise ValueError(f"schedule must be either a float or a list, not {type(values)}")
    if is_number and epoch_size is not None:
        sentence = "When providing the schedule as a number, epoch_size is ignored"
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)
    found = ParameterSchedule(values, None if is_number else epoch_size, size or IGNORE)
    found.is_minibatch_size_explicitly_specified = explicit
    return found


def learning_parameter_schedule(
    schedule: Any, minibatch_size: int | None = None, epoch_size: int | None = None
) -> ParameterSchedule:
    """Values for minibatches of `minibatch_size` samples, or for any."""
    return _schedule(schedule, epoch_size, minibatch_size, explicit=minibatch_size is not None)


def learning_parameter_schedule_per_sample(schedule: Any, epoch_size: int | None = None) -> ParameterSchedule:
    """Values for each sample."""
    return _schedule(schedule, epoch_size, 1)


def training_parameter_schedule(
    schedule: Any, unit: Any = UnitType.minibatch, epoch_size: int | None = None
) -> ParameterSchedule:
    """Values for each sample, or for each minibatch."""
    found = _schedule(schedule, epoch_size, 1 if UnitType(unit) is UnitType.sample else IGNORE)
    found.is_minibatch_size_explicitly_specified = True
    return found


def learning_rate_schedule(lr: Any, unit: Any, epoch_size: int | None = None) -> ParameterSchedule:
    """Learning rates for each sample, or for each minibatch."""
    return training_parameter_schedule(lr, unit, epoch_size)


def momentum_schedule(
    momentum: Any, epoch_size: int | None = None, minibatch_size: int | None = None
) -> ParameterSchedule:
    """Momenta for minibatches of this size, or for any."""
    return learning_parameter_schedule(momentum, minibatch_size, epoch_size)


def momentum_schedule_per_sample(momentum: Any, epoch_size: int | None = None) -> ParameterSchedule:
    """Momenta for each sample."""
    return _schedule(momentum, epoch_size, 1)


def momentum_as_time_constant_schedule(momentum: Any, epoch_size: int | None = None) -> ParameterSchedule:
    """Momenta as the number of samples after which a gradient counts 1/e."""
    found = _schedule(momentum, epoch_size, 1)
    if found is not momentum:
        found.values = [math.exp(-1.0 / constant) if constant else 0.0 for constant in found.values]
    found.is_minibatch_size_explicitly_specified = True
    return found


def minibatch_size_schedule(schedule: Any, epoch_size: int = 1) -> MinibatchSizeSchedule:
    """Sizes of minibatches, each for a number of epochs of so many samples."""
    if isinstance(schedule, int):
        if epoch_size != 1:
            raise ValueError("when providing the schedule as a number, epoch_size is ignored")
        return MinibatchSizeSchedule(schedule)
    if not isinstance(schedule, list):
        raise ValueError(f"schedule must be either a float or a list, not {type(schedule)}")
    found = MinibatchSizeSchedule(schedule, epoch_size)
    found.by_sweep = False
    return found


def inferred(
    value: Any, minibatch_size: int | None, epoch_size: int | None, mean: bool | None = None
) -> ParameterSchedule:
    """The schedule of a number, a list or a schedule, with the size that a learner says where it has none."""
    if not isinstance(value, ParameterSchedule):
        listed = isinstance(value, list) and all(isinstance(each, int | float | tuple) for each in value)
        if not isinstance(value, int | float) and not listed:
            raise ValueError(f"a training parameter is a number, a list or a schedule, got {value!r}.")
        return _schedule(value, epoch_size, minibatch_size)
    if not value.is_minibatch_size_explicitly_specified and minibatch_size is not None:
        value.minibatch_size = minibatch_size
    if mean and value.minibatch_size == 1:
        value.minibatch_size = IGNORE
    return value
