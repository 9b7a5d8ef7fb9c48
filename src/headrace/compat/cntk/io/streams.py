"""Streams of a source, what a minibatch holds of each, and the text format that they are written in."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....errors import ConfigError
from ..core import Value
from ..variables import Record, Shape, as_shape

INFINITELY_REPEAT = 2 * sys.maxsize + 1
FULL_DATA_SWEEP = 2 * sys.maxsize
DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS = 128


class StreamInformation:
    """A stream: its name and number, how its samples are stored, their type and shape."""

    def __init__(
        self, name: str, stream_id: int, storage_format: str, dtype: Any, shape: Any, defines_mb_size: bool = False
    ) -> None:
        if storage_format not in ("dense", "sparse"):
            raise ConfigError(f"stream {name!r}: storage_format= is 'dense' or 'sparse', got {storage_format!r}.")
        self.name = self.m_name = name
        self.stream_id, self.m_id, self.storage_format = stream_id, stream_id, storage_format
        self.m_element_type = self.dtype = np.dtype(dtype).type
        self.sample_shape: Shape = as_shape(shape)
        self.m_sample_layout = self.sample_shape
        self.defines_mb_size = defines_mb_size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamInformation) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self.m_id)

    @property
    def _all(self) -> tuple[Any, ...]:
        return self.m_id, self.m_name, self.storage_format, self.dtype, self.sample_shape

    def __repr__(self) -> str:
        return f"{self.m_name}(shape: {self.sample_shape}, {self.storage_format})"


class MinibatchData:
    """What a minibatch holds of one stream: a `Value`, whose attributes it has, too, and counts."""

    def __init__(self, value: Any, num_sequences: int, num_samples: int, sweep_end: bool) -> None:
        self.data: Value = value if isinstance(value, Value) else Value(batch=value)
        self.number_of_sequences = self.num_sequences = num_sequences
        self.number_of_samples = self.num_samples = num_samples
        self.sweep_end = self.end_of_sweep = bool(sweep_end)

    @property
    def value(self) -> Value:
        return self.data

    def __getattr__(self, name: str) -> Any:
        if "data" not in vars(self):  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.data, name)

    def __len__(self) -> int:
        return self.number_of_sequences

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.asarray(), dtype=dtype)

    def __repr__(self) -> str:
        return f"MinibatchData({self.shape}, samples: {self.num_samples}, seqs: {self.num_sequences})"


def StreamDef(
    field: str | None = None,
    shape: Any = None,
    is_sparse: bool = False,
    *,
    defines_mb_size: bool = False,
    **others: Any,
) -> Record:
    """What a deserializer reads as a stream: the field of the file, and the shape of a sample."""
    if others:
        raise ConfigError(f"StreamDef: {next(iter(others))}= is not offered. Text has a field, a shape and is_sparse=.")
    dim = {} if shape is None else {"dim": shape}
    return Record(stream_alias=field, is_sparse=is_sparse, defines_mb_size=bool(defines_mb_size), **dim)


StreamDefs = Record


def find_stream(infos: list[StreamInformation], name: str) -> StreamInformation:
    """The only stream of this name."""
    found = [info for info in infos if info.m_name == name]
    if len(found) != 1:
        listed = ", ".join(repr(info.m_name) for info in infos)
        raise ConfigError(f"{len(found) or 'no'} streams are called {name!r}; there are {listed}.")
    return found[0]


# --- the text format ---


def _is_tensor(data: Any) -> bool:
    """Whether it is an array, or numbers in lists."""
    if isinstance(data, np.ndarray):
        return True
    while isinstance(data, list) and data:
        data = data[0]
        if isinstance(data, np.ndarray):
            return False
    return isinstance(data, int | float | np.number)


def _text(item: Any) -> str:
    if isinstance(item, dict):
        return " ".join(f"{place}:{number}" for place, number in sorted(item.items()))
    return " ".join(np.ravel(item).astype(str))


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """A sequence as lines of the text format: for every field its items, dense or as dicts of places and numbers."""
    for alias, given in alias_tensor_map.items():
        sparse = isinstance(given, list) and bool(given) and isinstance(given[0], dict)
        if not sparse and not _is_tensor(given) and len(given):
            raise ValueError(f"field {alias!r}: expected an array (dense) or a list of dicts (sparse), got {given!r}.")
    lines = []
    for place in range(max(len(given) for given in alias_tensor_map.values())):
        fields = [
            f"{alias} {_text(given[place])}" for alias, given in sorted(alias_tensor_map.items()) if place < len(given)
        ]
        lines.append(f"{seq_idx}\t|" + " |".join(fields))
    return "\n".join(lines)
