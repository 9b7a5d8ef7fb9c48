"""Configs of a training session: where it is saved, what it is validated and tested with, and how often."""

import sys
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any

from ....errors import ConfigError
from ..io.memory import MinibatchSourceFromData, UserMinibatchSource
from ..io.sources import MinibatchSource
from ..io.streams import INFINITELY_REPEAT
from ..learners.schedules import MinibatchSizeSchedule, minibatch_size_schedule

NEVER = sys.maxsize


class DataUnit(Enum):
    """What a frequency counts."""

    sample = "sample"
    minibatch = "minibatch"
    sweep = "sweep"


def frequency_of(given: Any) -> tuple[int, DataUnit]:
    """How often, and in what unit; once, at the end, where that is not said."""
    count, unit = given if isinstance(given, tuple) else (given, DataUnit.sample)
    count = NEVER if count is None else count
    if not isinstance(unit, DataUnit) or not isinstance(count, int) or count < 0:
        raise ConfigError(f"a frequency is a number of samples or (n, DataUnit.minibatch), got {given!r}.")
    return count, unit


def size_of(given: Any) -> MinibatchSizeSchedule:
    """The schedule of a minibatch size."""
    if isinstance(given, int) and not isinstance(given, bool):
        return minibatch_size_schedule(given)
    if not isinstance(given, MinibatchSizeSchedule):
        raise ValueError(
            f"a minibatch size is a number or the output of minibatch_size_schedule(), got a {type(given).__name__}."
        )
    return given


class CheckpointConfig:
    """Where and how often a session is saved, and whether it goes on from there."""

    def __init__(self, filename: Any, frequency: Any = None, restore: bool = True, preserve_all: bool = False) -> None:
        if filename is None and (frequency[0] if isinstance(frequency, tuple) else frequency):
            raise ValueError("Checkpoint frequency cannot be specified without checkpoint_filename")
        self.filename = None if filename is None else str(filename)
        self.frequency, self.unit = frequency_of(0 if filename is None else frequency)
        self.restore, self.preserve_all = restore, preserve_all


class CrossValidationConfig:
    """What a session is validated with, and how often; the callback returns `False` to stop the training."""

    def __init__(
        self,
        minibatch_source: Any = None,
        frequency: Any = None,
        minibatch_size: Any = 32,
        callback: Callable[..., Any] | None = None,
        max_samples: int | None = None,
        model_inputs_to_streams: Any = None,
        criterion: Any = None,
        source: Any = None,
        mb_size: Any = None,
    ) -> None:
        minibatch_source, minibatch_size = _renamed(minibatch_source, minibatch_size, source, mb_size)
        if minibatch_source is None and callback is None:
            if frequency not in (None, 0):
                raise ValueError("Either minibatch_source of callback should be specified.")
            frequency = 0
        self.callback = callback
        self.frequency, self.unit = frequency_of(frequency)
        self.size = size_of(1 if minibatch_size is None else minibatch_size)
        self.max_samples = NEVER if max_samples is None else max_samples
        self.source, self.streams = source_of(minibatch_source, model_inputs_to_streams, criterion, repeats=False)


class TestConfig:
    """What a session is tested with, once, at its end."""

    __test__ = False  # no test of pytest's

    def __init__(
        self,
        minibatch_source: Any = None,
        minibatch_size: Any = 32,
        model_inputs_to_streams: Any = None,
        criterion: Any = None,
        source: Any = None,
        mb_size: Any = None,
    ) -> None:
        minibatch_source, minibatch_size = _renamed(minibatch_source, minibatch_size, source, mb_size)
        self.size = size_of(minibatch_size)
        self.source, self.streams = source_of(minibatch_source, model_inputs_to_streams, criterion, repeats=False)


def _renamed(source: Any, size: Any, old_source: Any, old_size: Any) -> tuple[Any, Any]:
    for old, new, given in (("source", "minibatch_source", old_source), ("mb_size", "minibatch_size", old_size)):
        if given is not None:
            message = f'DEPRECATED: "{old}" parameter is deprecated, please use "{new}" instead'
            warnings.warn(message, DeprecationWarning, stacklevel=3)
    return (source if old_source is None else old_source), (size if old_size is None else old_size)


def source_of(given: Any, streams: Any, criterion: Any, repeats: bool) -> tuple[Any, Any]:
    """A source, and what its streams are fed to; arrays become a source over them."""
    if given is None or isinstance(given, MinibatchSource | UserMinibatchSource):
        return given, streams
    arrays = given if isinstance(given, tuple) else (given,)
    if criterion is None:
        raise ValueError("data in place of a source need criterion=, whose arguments they are.")
    if streams is not None:
        raise ValueError("data in place of a source are mapped by their order: leave model_inputs_to_streams= out.")
    inputs = criterion.arguments
    if len(inputs) != len(arrays):
        raise ValueError(
            f"the criterion has {len(inputs)} arguments, and {len(arrays)} arrays came. Pass one for each."
        )
    names = [v.name or f"stream_{k}" for k, v in enumerate(inputs)]
    names = names if len(set(names)) == len(names) else [f"stream_{k}" for k in range(len(inputs))]
    count = arrays[0].shape[0] if hasattr(arrays[0], "shape") else len(arrays[0])
    data = {n: (array, v._type) for n, array, v in zip(names, arrays, inputs, strict=True)}
    source = MinibatchSourceFromData(data, INFINITELY_REPEAT if repeats else count)
    return source, {v: source.streams[n] for v, n in zip(inputs, names, strict=True)}
