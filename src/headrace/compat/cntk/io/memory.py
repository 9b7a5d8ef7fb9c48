"""Sources that users write, and the one over data in memory."""

import dis
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError, SourceError
from ..core import Field, Value, is_scipy, sequences_of
from ..device import DeviceDescriptor, chosen
from ..variables import Record
from .streams import INFINITELY_REPEAT, MinibatchData, StreamInformation, find_stream


class UserMinibatchSource:
    """A source of one's own: override `stream_infos` and `next_minibatch`, and the state's two methods by choice."""

    def __init__(self) -> None:
        _ = self.streams  # checked

    @cached_property
    def streams(self) -> Record:
        """The streams by name."""
        infos = self.stream_infos()
        for what in ("m_name", "m_id"):
            named: dict[Any, StreamInformation] = {}
            for info in infos:
                if (other := named.setdefault(getattr(info, what), info)) is not info:
                    called = "are both called" if what == "m_name" else "both have the id"
                    raise ConfigError(
                        f"{type(self).__name__}: the streams {other} and {info} {called} {getattr(info, what)!r}. Give "
                        "each its own."
                    )
        return Record(**{info.m_name: info for info in infos})

    def stream_infos(self) -> list[StreamInformation]:
        raise NotImplementedError("UserMinibatchSource: override stream_infos() to list its StreamInformation.")

    def stream_info(self, name: str) -> StreamInformation:
        return find_stream(list(self.stream_infos()), name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    def next_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: DeviceDescriptor | None = None
    ) -> dict[StreamInformation, MinibatchData]:
        """The next minibatch of at most so many samples, by stream; an empty dict at the end."""
        raise NotImplementedError("UserMinibatchSource: override next_minibatch().")

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        if state:
            raise NotImplementedError(
                f"{type(self).__name__} has a state and cannot go back to it: override restore_from_checkpoint(state)."
            )

    def is_infinite(self) -> bool:
        return False


# --- how they are asked ------------------------------------------------------------------------------------

LINES = 200_000  # that a source may run through until it returns
_CALLS = 64
_LIBRARIES = tuple(str(Path(place).parent) for place in (torch.__file__, np.__file__, Path(__file__).parents[3]))


def checked(source: UserMinibatchSource, minibatch: Any, size: int) -> dict[Any, MinibatchData]:
    """What a source has returned; raises unless it is as the source says of its streams, and as it was asked for."""
    name = type(source).__name__
    if minibatch is not None and not isinstance(minibatch, Mapping):
        raise SourceError(f"{name} returned a {type(minibatch).__name__}. Return a dict by StreamInformation.")
    counts = {}
    for info, data in (minibatch or {}).items():
        if not isinstance(info, StreamInformation) or not isinstance(data, MinibatchData):
            raise SourceError(
                f"{name} returned a {type(data).__name__} for {info!r}. Return MinibatchData by StreamInformation."
            )
        rows, wanted, sequences = data.data.rows, info.sample_shape, len(data.data)
        items = rows.items if isinstance(rows, Ragged) else None
        shape = data.shape[1 if items is None else 2 :]
        if shape[max(0, len(shape) - len(wanted)) :] != wanted and (items or np.prod(shape) != np.prod(wanted)):
            raise SourceError(f"{name}: the stream {info} has samples of shape {wanted}, and returned {shape}.")
        if data.num_sequences != sequences or items not in (None, data.num_samples):
            raise SourceError(
                f"{name}: the stream {info} says {data.num_sequences} sequences with {data.num_samples} samples, and "
                f"has {sequences} with {data.num_samples if items is None else items}."
            )
        if data.num_samples > size and sequences > 1:
            raise SourceError(
                f"{name} was asked for {size} samples, and returned {data.num_samples} of {info}. Return at most as "
                "many, or one sequence."
            )
        counts[info.m_name] = sequences
    if len({*counts.values()}) > 1:
        raise SourceError(f"{name}: streams have as many sequences as each other, got {counts}.")
    return dict(minibatch or {})


def looks_at_workers(source: UserMinibatchSource) -> bool:
    """Whether the code of `next_minibatch` reads the number of workers, or that of this one."""
    code = getattr(type(source).next_minibatch, "__code__", None)
    if code is None or code.co_argcount < 4:
        return True
    names = {*code.co_varnames[2:4]}
    read = (each.argval for each in dis.get_instructions(code) if each.opname.startswith("LOAD"))
    return any(
        names & {*(name if isinstance(name, tuple) else (name,))} for name in read if isinstance(name, str | tuple)
    )


def loops_as_worker(source: UserMinibatchSource, size: int, workers: int, own: int) -> str:
    """Where a source loops for ever if it is asked as one of several workers, if it does; it stands then as before.

    A source that cannot go back is not tried.
    """
    if type(source).restore_from_checkpoint is UserMinibatchSource.restore_from_checkpoint:
        return ""
    state, lines = source.get_checkpoint_state(), 0
    try:
        for _ in range(_CALLS):
            found, passed, place = _limited(source, size, workers, own)
            lines += passed
            if place:
                return place
            if not found or lines > LINES or any(data.end_of_sweep for data in found.values()):
                break
    finally:
        source.restore_from_checkpoint(state)
    return ""


class _Endless(BaseException):
    """A source does not return."""


def _limited(source: UserMinibatchSource, size: int, workers: int, own: int) -> tuple[Any, int, str]:
    """What a source returns, the lines that it has run through, and the last of them if it has not returned."""
    lines, place = 0, ""

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines, place
        if event == "call" and frame.f_code.co_filename.startswith(_LIBRARIES):
            return None  # whatever loops calls lines of its own
        lines += 1
        if lines > LINES:
            place = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
            raise _Endless
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        found = source.next_minibatch(size, workers, own, None)
    except _Endless:
        return None, lines, place
    finally:
        sys.settrace(before)
    return found, lines, place


class MinibatchSourceFromData(UserMinibatchSource):
    """Data in memory, in order: arrays, CSR matrices, Values, or lists of sequences with their type."""

    def __init__(self, data_streams: Mapping[str, Any], max_samples: int = INFINITELY_REPEAT) -> None:
        if not data_streams:
            raise ValueError("at least one stream must be specified, in the form {'x': data} or {'x': (data, type)}.")
        self._fields: dict[str, Field] = {}
        self._infos: list[StreamInformation] = []
        for name, given in data_streams.items():
            data, kind = given if isinstance(given, tuple) else (given, None)
            rows = _rows(name, data, kind)
            sparse = isinstance(rows.values if isinstance(rows, Ragged) else rows, Sparse)
            shape = Value.over(rows).shape[2 if isinstance(rows, Ragged) else 1 :]
            self._fields[name] = rows
            storage = "sparse" if sparse else "dense"
            self._infos.append(StreamInformation(name, len(self._infos), storage, Value.over(rows).dtype, shape))
        counts = {name: len(rows) for name, rows in self._fields.items()}
        if len(set(counts.values())) > 1:
            raise TypeError(f"all streams have equally many rows, got {counts}.")
        self._count = next(iter(counts.values()))
        if not self._count:
            raise ValueError("the data are empty.")
        lengths = [rows.host_offsets.diff() for rows in self._fields.values() if isinstance(rows, Ragged)]
        ones = [torch.ones(self._count, dtype=torch.int64)]
        lengths += ones if len(lengths) < len(self._fields) else []
        samples = torch.stack(lengths).amax(0).numpy()
        self._ends, self._even = np.cumsum(samples), bool((samples == 1).all())
        self._max_samples, self._cursor, self._total_num_samples = max_samples, 0, 0
        super().__init__()

    def stream_infos(self) -> list[StreamInformation]:
        return self._infos

    def next_minibatch(
        self, num_samples: int, number_of_workers: int = 1, worker_rank: int = 0, device: DeviceDescriptor | None = None
    ) -> dict[StreamInformation, MinibatchData]:
        if self._total_num_samples >= self._max_samples:
            return {}
        begin = self._cursor
        end, samples = self._reach(begin, min(num_samples, self._max_samples - self._total_num_samples))
        self._total_num_samples += samples
        at_end = end == self._count
        self._cursor = 0 if at_end else end
        where, is_only_worker = chosen(device), number_of_workers == 1
        own = None if is_only_worker else torch.arange(begin + worker_rank, end, number_of_workers)
        found = {}
        for info in self._infos:
            rows = self._fields[info.m_name]
            part: Field = rows[begin:end] if own is None else rows[own] if isinstance(rows, Tensor) else rows.take(own)
            part = part if part.device == where else part.to(where)
            count = end - begin if is_only_worker else len(part)
            items = part.items if isinstance(part, Ragged) else count
            found[info] = MinibatchData(Value.over(part), count, items, at_end)
        return found

    def _reach(self, begin: int, room: int) -> tuple[int, int]:
        """Where a minibatch of so many samples ends, which has at least one row, and how many samples it has."""
        if self._even:
            end = min(self._count, begin + max(1, room))
            return end, end - begin
        before = self._ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(self._ends, before + room, "right")))
        return end, int(self._ends[end - 1] - before)

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"cursor": self._cursor, "total_num_samples": self._total_num_samples}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        self._cursor, self._total_num_samples = int(state["cursor"]), int(state["total_num_samples"])

    def is_infinite(self) -> bool:
        return self._max_samples == INFINITELY_REPEAT


def _rows(name: str, data: Any, kind: Any) -> Field:
    """The rows of a stream; nothing is copied where that can be."""
    axes = getattr(kind, "dynamic_axes", None) or (kind.get("dynamic_axes") if isinstance(kind, dict) else None)
    if isinstance(data, Value):
        return data.rows
    if isinstance(data, list) or (axes is not None and len(axes) > 1):
        if not isinstance(data[0], np.ndarray) and not is_scipy(data[0]):
            raise TypeError(f"stream {name!r}: sequences are arrays or CSR matrices, got a {type(data[0]).__name__}.")
        return sequences_of(list(data))
    if is_scipy(data):
        return Sparse.of(data)
    if not isinstance(data, np.ndarray):
        raise TypeError(f"stream {name!r}: data must be a numpy.array or scipy.sparse.csr_matrix, or a list of those.")
    if data.dtype == object:
        raise ConfigError(f"stream {name!r} is an array of objects. Pass sequences as a list of arrays.")
    return torch.from_numpy(np.ascontiguousarray(data))
