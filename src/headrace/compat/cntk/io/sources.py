"""Minibatches of sequences, which a `Reader` reads: in order or shuffled, over sweeps, shared by workers."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....data.order import Order
from ....data.ragged import Ragged
from ....data.reader import Reader
from ....errors import ConfigError
from ..core import Value
from ..device import DeviceDescriptor, chosen
from ..logging import TraceLevel
from ..variables import Record
from .deserializers import opened
from .streams import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    MinibatchData,
    StreamInformation,
    find_stream,
)

Minibatch = dict[Any, MinibatchData]


KEY = 44  # of the orders that there are: by this one the test in CNTK's wheel finds minibatches of the sizes it expects
MANY = 1 << 62  # samples, that no training has


class _SweepOrder(Order):
    """An order that shuffles each sweep as the first one of a source whose seed is greater by its number."""

    def at(self, epoch: int, positions: Any) -> Any:
        return _of_sweep(self.n, self.kind, self.seed + epoch, self.block, self.mix).at(KEY, positions)


@lru_cache(4)
def _of_sweep(n: int, kind: str, seed: int, block: int, mix: int) -> Order:
    return Order(n, kind, seed=seed, block=block, mix=mix)


class _SweptReader(Reader):
    """A reader whose batches may cross any number of sweeps."""

    def cuts(self, start: int, size: int, batches: int) -> list[int]:
        return [start, start + size]


class MinibatchSource:
    """Minibatches of the sequences that deserializers read, until a number of samples or of sweeps is reached.

    A minibatch has as many sequences as fit its size, and at least one. It may cross sweeps. Several workers share
    sequences by their running number, or chunks where the order is random.
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
        window = max(1, window)
        table = opened(deserializers, window + 1)
        order = ("blocks" if table.block else "full") if random else "none"
        mix = window if order == "blocks" else 1
        swept = _SweepOrder(len(table), order, seed=randomization_seed, block=table.block, mix=mix)
        self._infos, self._sizes, self._chunk = table.infos, table.sizes.numpy(), table.block or table.chunk_rows
        self._per_sample = len(table) / max(1, self._sizes.sum())
        self.streams = Record(**{info.m_name: info for info in self._infos})
        self._limit, self._sweeps, self._seen, self._is_random = min(max_samples, MANY), max_sweeps, 0, random
        self._reader = _SweptReader(table, swept, cross_epochs=True)
        self._end = MANY if max_sweeps == INFINITELY_REPEAT else max_sweeps * len(table)

    def stream_infos(self) -> list[StreamInformation]:
        return list(self._infos)

    def stream_info(self, name: str) -> StreamInformation:
        return find_stream(self._infos, name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    def is_infinite(self) -> bool:
        return self._limit == MANY and self._sweeps == INFINITELY_REPEAT

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
        reader, begin = self._reader, self._reader.position
        stop = self._stop(begin, max(1, share), count, own)
        batch = reader.next_batch(stop - begin) if stop > begin else None
        if batch is None:
            return {}
        mine = self._is_mine(begin, stop, count, own)
        self._seen += int(self._lengths(begin, stop).sum())
        ends = stop // len(self._sizes) > begin // len(self._sizes)
        found: Minibatch = {}
        for info in self._infos if mine.any() else ():
            rows = batch[info.m_name]
            assert isinstance(rows, Ragged)
            rows = rows if count == 1 else rows.take(torch.from_numpy(np.flatnonzero(mine)))
            if isinstance(rows.values, Tensor):
                rows = rows.with_values(rows.values.view(-1, *info.sample_shape))
            found[info] = MinibatchData(Value.over(rows.to(chosen(device))), len(rows), rows.items, ends)
        return by_variable(found, input_map) if input_map and found else found

    def _stop(self, begin: int, room: int, count: int, own: int) -> int:
        """The position at which a minibatch of this partition ends that begins here."""
        if self._is_random and own * self._chunk >= len(self._sizes):
            return begin  # there are fewer chunks than partitions
        stop, passed, total = begin, self._seen, 0
        room = min(room, self._limit - passed)
        while stop < self._end and passed < self._limit:
            reach = min(self._end, stop + int(room * self._per_sample) * count + 64)
            lengths, mine = self._lengths(stop, reach), self._is_mine(stop, reach, count, own)
            sums = total + np.cumsum(lengths * mine)
            full = int(np.searchsorted(sums, room))  # the sequence with which it has as many samples as it may have
            fits = full < len(sums) and (sums[full] == room or not (total or mine[:full].any()))
            allowed = int(np.searchsorted(passed + np.cumsum(lengths) - lengths, self._limit))
            taken = min(full + fits, allowed)
            stop, passed, total = (
                stop + taken,
                passed + int(lengths[:taken].sum()),
                int(sums[taken - 1] if taken else total),
            )
            if taken < len(lengths) or fits:
                break
        return stop

    def _lengths(self, begin: int, stop: int) -> Any:
        return self._sizes[self._reader.rows(begin, stop)]

    def _is_mine(self, begin: int, stop: int, count: int, own: int) -> Any:
        """Which of the sequences between these positions are those of a partition."""
        numbers = self._reader.rows(begin, stop) // self._chunk if self._is_random else np.arange(begin, stop)
        return numbers % count == own

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {**self._reader.state_dict(), "samples": self._seen}

    def restore_from_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        if "samples" not in checkpoint:
            raise ConfigError("this is no state of a MinibatchSource: it has no 'samples'.")
        self._reader.load_state_dict(dict(checkpoint))
        self._seen = int(checkpoint["samples"])

    @property
    def current_position(self) -> dict[str, Any]:
        return self.get_checkpoint_state()

    @current_position.setter
    def current_position(self, position: Mapping[str, Any]) -> None:
        self.restore_from_checkpoint(position)


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
