"""The settings of a `MinibatchSource` as CNTK's lower layer holds them."""

from collections.abc import Sequence
from typing import Any

from ....errors import ConfigError
from ..logging import TraceLevel
from .streams import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, INFINITELY_REPEAT


class _Setting:
    """A value that is set by a method."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def set(self, value: Any) -> None:
        self.value = value


class MinibatchSourceConfig:
    """Deserializers and settings; `to_dictionary` checks them."""

    def __init__(self, deserializers: Sequence[Any], randomize: bool = True) -> None:
        self.deserializers = list(deserializers)
        self.max_samples = self.max_sweeps = INFINITELY_REPEAT
        self.randomization_window_in_chunks = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS if randomize else 0
        self.randomization_window_in_samples = self.randomization_seed = self.truncation_length = 0
        self.trace_level: int = TraceLevel.Warning.value
        self.is_multithreaded, self.is_frame_mode_enabled = _Setting(False), False


def to_dictionary(config: MinibatchSourceConfig) -> dict[str, Any]:
    """The settings by the names of CNTK's configuration; raises where two exclude each other."""
    chunks, samples = config.randomization_window_in_chunks, config.randomization_window_in_samples
    for one, other, what in (
        (config.max_samples != INFINITELY_REPEAT, config.max_sweeps != INFINITELY_REPEAT, "max_samples and max_sweeps"),
        (chunks, samples, "randomization windows in chunks and in samples"),
        (config.is_frame_mode_enabled, config.truncation_length, "frame mode and truncation"),
    ):
        if one and other:
            raise ConfigError(f"{what} exclude each other. Give one of them.")
    found = {
        "deserializers": config.deserializers,
        "frameMode": config.is_frame_mode_enabled,
        "multiThreadedDeserialization": config.is_multithreaded.value,
        "traceLevel": config.trace_level,
        "randomize": bool(chunks or samples),
    }
    if chunks or samples:
        found["randomizationWindow"] = chunks or samples
        found["sampleBasedRandomizationWindow"] = bool(samples)
        found["randomizationSeed"] = config.randomization_seed
    return found | (
        {"truncated": True, "truncationLength": config.truncation_length} if config.truncation_length else {}
    )
