"""Sources that users write, and the one over data in memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError
from .._native import hint
from ..core import Held, Value, is_scipy, sequences_of
from ..device import DeviceDescriptor, chosen
from ..variables import Record
from .streams import INFINITELY_REPEAT, MinibatchData, StreamInformation, find_stream


class UserMinibatchSource:
    """A source of one's own: override `stream_infos` and `next_minibatch`, and the state's two methods by choice."""

    def __init__(self) -> None:
        hint("io.UserMinibatchSource", "an hr.Source with next_batch, state_dict and load_state_dict")
        self.streams = Record(**{info.m_name: info for info in self.stream_infos()})

    def stream_infos(self) -> list[StreamInformation]:
        """What every minibatch holds."""
        raise NotImplementedError("UserMinibatchSource: override stream_infos() to list its StreamInformation.")

    def stream_info(self, name: str) -> StreamInformation:
        """The stream of this name."""
        return find_stream(list(self.stream_infos()), name)

    def __getitem__(self, name: str) -> StreamInformation:
        return self.stream_info(name)

    def next_minibatch(
        self, num_samples: int, number_of_workers: int, worker_rank: int, device: DeviceDescriptor | None = None
    ) -> dict[StreamInformation, MinibatchData]:
        """The next minibatch of at most so many samples, by stream; an empty dict at the end."""
        raise NotImplementedError("UserMinibatchSource: override next_minibatch().")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Where it stands."""
        return {}

    def restore_from_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Goes back to where it stood."""
        if state:
            raise NotImplementedError(
                f"{type(self).__name__} has a state and cannot go back to it: override restore_from_checkpoint(state)."
            )

    def is_infinite(self) -> bool:
        """Whether it never ends."""
        return False


class MinibatchSourceFromData(UserMinibatchSource):
    """Data in memory, in order: arrays, CSR matrices, Values, or lists of sequences with their type."""

    def __init__(self, data_streams: Mapping[str, Any], max_samples: int = INFINITELY_REPEAT) -> None:
        hint("io.MinibatchSourceFromData", "fit(train) takes the arrays themselves, or hr.ArrayTable({...})")
        if not data_streams:
            raise ValueError("at least one stream must be specified, in the form {'x': data} or {'x': (data, type)}.")
        self._fields: dict[str, Held] = {}
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
        self,
        num_samples: int,
        number_of_workers: int = 1,
        worker_rank: int = 0,
        device: DeviceDescriptor | None = None,
    ) -> dict[StreamInformation, MinibatchData]:
        if self._total_num_samples >= self._max_samples:
            return {}
        begin = self._cursor
        end, samples = self._reach(begin, min(num_samples, self._max_samples - self._total_num_samples))
        self._total_num_samples += samples
        at_end = end == self._count
        self._cursor = 0 if at_end else end
        where, alone = chosen(device), number_of_workers == 1
        own = None if alone else torch.arange(begin + worker_rank, end, number_of_workers)
        found = {}
        for info in self._infos:
            rows = self._fields[info.m_name]
            part: Held = rows[begin:end] if own is None else rows[own] if isinstance(rows, Tensor) else rows.take(own)
            part = part if part.device == where else part.to(where)
            count = end - begin if alone else len(part)
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


def _rows(name: str, data: Any, kind: Any) -> Held:
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
