"""Minibatches of whole sequences: in order or shuffled, over sweeps, shared by workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....data.order import Order
from ....errors import ConfigError
from .._native import hint
from ..core import Value
from ..device import DeviceDescriptor, chosen
from ..logging import TraceLevel
from ..variables import Record
from .deserializers import corpus_of
from .streams import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    MinibatchData,
    StreamInformation,
    find_stream,
)

Minibatch = dict[Any, MinibatchData]
FINISHED: Minibatch = {}


class MinibatchSource:
    """Minibatches of the sequences that deserializers read, until a number of samples or of sweeps is reached.

    A minibatch has whole sequences, as many as fit its size, and at least one. It may cross sweeps. Several workers
    share sequences by their running number, or chunks where the order is random.
    """

    def __init__(
        self,
        deserializers: Any,
        max_samples: int = INFINITELY_REPEAT,
        max_sweeps: int = INFINITELY_REPEAT,
        randomization_window_in_chunks: int = DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
        randomization_window_in_samples: int = 0,
        randomization_seed: int = 0,
        trace_level: Any = None,
        multithreaded_deserializer: bool | None = None,
        frame_mode: bool = False,
        truncation_length: int = 0,
        randomize: bool = True,
        max_errors: int = 0,
    ) -> None:
        hint("io.MinibatchSource", "hr.Reader(hr.open_ctf(path, streams), count='words', cross_epochs=True)")
        window = randomization_window_in_chunks
        if randomization_window_in_samples and window not in (0, DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS):
            raise ConfigError("a randomization window is in chunks or in samples, got both. Give one of them.")
        if max_samples != INFINITELY_REPEAT and max_sweeps != INFINITELY_REPEAT:
            raise ConfigError(f"max_samples={max_samples} and max_sweeps={max_sweeps} exclude each other. Give one.")
        if frame_mode or truncation_length:
            raise ConfigError("frame_mode= and truncation_length= are not offered. Cut long sequences into rows.")
        if max_samples == FULL_DATA_SWEEP:
            max_samples, max_sweeps = INFINITELY_REPEAT, 1
        random = randomize and bool(window or randomization_window_in_samples)
        self._window = max(1, window or 1) if random else 0
        self._corpus = corpus_of(deserializers, self._window)
        self._infos = self._corpus.streams
        self.streams = Record(**{info.m_name: info for info in self._infos})
        self._samples, self._sweeps, self._seed = max_samples, max_sweeps, randomization_seed
        self._sweep = self._group = self._index = self._sequence = self._position = 0
        self._order: tuple[Any, ...] | None = None

    def stream_infos(self) -> list[StreamInformation]:
        return list(self._infos)

    def stream_info(self, name: str) -> StreamInformation:
        return find_stream(self._infos, name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    def is_infinite(self) -> bool:
        return self._samples == INFINITELY_REPEAT and self._sweeps == INFINITELY_REPEAT

    def next_minibatch(
        self,
        minibatch_size_in_samples: int,
        input_map: Mapping[Any, StreamInformation] | None = None,
        device: DeviceDescriptor | None = None,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> Minibatch:
        """The next minibatch of at most so many samples, by stream or by variable; empty at the end."""
        count, own = num_data_partitions or 1, partition_index or 0
        if minibatch_size_in_samples < 1 or not 0 <= own < count:
            raise ConfigError(
                f"a minibatch has at least one sample and a partition is one of their number, got "
                f"{minibatch_size_in_samples} samples and partition {own} of {count}."
            )
        share = minibatch_size_in_samples // count + (own < minibatch_size_in_samples % count)
        chunks, places, ends = self._picked(max(1, share), count, own)
        if not len(chunks):
            return {}
        fields = self._corpus.take(chunks, places)
        found: Minibatch = {}
        for info in self._infos:
            rows = fields[info.m_name]
            value = Value.over(rows.to(chosen(device)))
            found[info] = MinibatchData(value, len(rows), rows.items, ends)
        if not input_map:
            return found
        return by_variable(found, input_map)

    def _picked(self, share: int, count: int, own: int) -> tuple[Any, Any, bool]:
        """Chunks and places of the next sequences of this partition, and whether a sweep ends there."""
        limit = min(share, self._samples - self._position)
        picked: list[tuple[Any, Any]] = []
        total, ends = 0, False
        if self._window and own and self._corpus.chunks <= own:
            return np.zeros(0), np.zeros(0), False  # there are fewer chunks than partitions
        while self._position < self._samples and self._sweep < self._sweeps:
            chunks, places, lengths, turns = self._run()
            stop = self._index + max(1024, (limit + 1) * count)
            part = slice(self._index, stop)
            lens = lengths[part]
            mine = (turns[part] if self._window else self._sequence + np.arange(len(lens))) % count == own
            starts = self._position + np.cumsum(lens) - lens
            taken = int(np.searchsorted(starts, self._samples)) if self._samples < INFINITELY_REPEAT else len(lens)
            sums = total + np.cumsum(lens * mine)
            first = int(np.searchsorted(sums, limit))
            done = first < len(sums) or taken < len(lens)
            if first < len(sums):
                alone = sums[first] > limit and not picked and not mine[:first].any()
                taken = min(taken, first + (sums[first] == limit or alone))
            keep = mine[:taken]
            if keep.any():
                picked.append((chunks[part][:taken][keep], places[part][:taken][keep]))
            total += int((lens[:taken] * keep).sum())
            ends |= self._advance(taken, int(lens[:taken].sum()), len(lengths))
            if done:
                break
        joined = [np.concatenate(each) for each in zip(*picked, strict=True)] if picked else [np.zeros(0)] * 2
        return joined[0], joined[1], ends

    def _advance(self, sequences: int, samples: int, held: int) -> bool:
        """Goes on; whether a sweep has ended."""
        self._index += sequences
        self._sequence += sequences
        self._position += samples
        if self._index < held:
            return False
        self._index, self._group = 0, self._group + 1
        if self._group < -(-self._corpus.chunks // max(1, self._window)):
            return False
        self._group, self._sweep = 0, self._sweep + 1
        return True

    def _run(self) -> tuple[Any, Any, Any, Any]:
        """The run of sequences at hand: chunks, places in them, lengths, and the running numbers of the chunks."""
        key = self._sweep if self._window else 0, self._group
        if self._order is None or self._order[0] != key:
            order = np.arange(self._corpus.chunks)
            if self._window:
                order = Order(self._corpus.chunks, "full", seed=self._seed + self._sweep).indices(0, 0, len(order))
                order = np.asarray(order)
            width = max(1, self._window)
            turns = np.arange(self._group * width, min(len(order), (self._group + 1) * width))
            lengths = [self._corpus.lengths(int(order[turn])) for turn in turns]
            sizes = [len(each) for each in lengths]
            columns = [
                np.repeat(order[turns], sizes),
                np.concatenate([np.arange(size) for size in sizes]),
                np.concatenate(lengths),
                np.repeat(turns, sizes),
            ]
            if self._window:
                within = Order(len(columns[0]), "full", seed=self._seed + self._sweep)
                shuffled = np.asarray(within.indices(self._group + 1, 0, len(columns[0])))
                columns = [column[shuffled] for column in columns]
            self._order = (key, *columns)
        return self._order[1], self._order[2], self._order[3], self._order[4]

    def get_checkpoint_state(self) -> dict[str, int]:
        return {name: int(getattr(self, f"_{name}")) for name in _STATE}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, int]) -> None:
        if missing := [name for name in _STATE if name not in checkpoint]:
            raise ConfigError(f"this is no state of a MinibatchSource: it has no {missing[0]!r}.")
        for name in _STATE:
            setattr(self, f"_{name}", int(checkpoint[name]))

    @property
    def current_position(self) -> dict[str, int]:
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, position: Mapping[str, int]) -> None:
        self.restore_from_checkpoint(position)


_STATE = ("sweep", "group", "index", "sequence", "position")


def by_variable(minibatch: Minibatch, input_map: Mapping[Any, StreamInformation]) -> Minibatch:
    """A minibatch by what its streams are fed to."""
    found = {}
    for variable, info in input_map.items():
        if (data := minibatch.get(info)) is None:
            listed = ", ".join(repr(each.m_name) for each in minibatch)
            raise ConfigError(f"the source has no stream {info!r} (id {info.m_id}); it has {listed}.")
        found[variable] = data
    return found


# --- the settings of a source as CNTK's lower layer holds them ---


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
