"""Data that is in memory already, used in place: tensors, NumPy arrays, and what `fit` accepts of them."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Stream
from ..errors import DataError
from .reader import Reader
from .source import Source, Table


class ArrayTable(Table):
    """Columns in memory, one tensor or array per stream, all of one length."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        if not columns:
            raise DataError("a table needs at least one stream.")
        self.columns = {name: _as_tensor(name, column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
            raise DataError(
                f"the streams have different lengths: {listed} rows. Every stream needs one row per sample."
            )
        devices = {column.device for column in self.columns.values()}
        if len(devices) > 1:
            raise DataError(f"the streams are on different devices: {', '.join(map(str, devices))}. Move them to one.")
        self.device = devices.pop()
        self._streams = tuple(Stream.of(name, column) for name, column in self.columns.items())
        self._length = next(iter(lengths.values()))

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    def __len__(self) -> int:
        return self._length

    def take(self, indices: Tensor) -> Batch:
        indices = indices.to(self.device, non_blocking=True)
        return Batch({name: _gather(column, indices) for name, column in self.columns.items()}, len(indices))

    def rows(self, start: int, stop: int) -> Batch:
        return Batch({name: column[start:stop] for name, column in self.columns.items()}, stop - start)

    def resident(self, device: torch.device) -> bool:
        return self.device == device

    def to(self, device: torch.device) -> "ArrayTable":
        """The same table in the memory of another device."""
        return ArrayTable({name: column.to(device) for name, column in self.columns.items()})

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())


def as_table(data: Any) -> Table:
    """What a user calls data, as a Table: one array is stream "x", two are "x" and "y", a dict names its own."""
    if isinstance(data, Table):
        return data
    if isinstance(data, Mapping):
        return ArrayTable(data)
    if isinstance(data, Tensor | np.ndarray):
        return ArrayTable({"x": data})
    if isinstance(data, tuple | list) and all(isinstance(part, Tensor | np.ndarray) for part in data):
        if len(data) == 2:
            return ArrayTable(dict(zip("xy", data, strict=True)))
        raise DataError(f"expected (x, y), got {len(data)} arrays. Name the streams: {{'a': ..., 'b': ..., 'y': ...}}.")
    raise DataError(
        f"cannot read data from a {type(data).__name__}. "
        "Pass arrays or tensors as x, (x, y) or {'name': ...}, or a headrace Table or Source."
    )


def as_source(data: Any, *, order: str = "full", seed: int = 0) -> Source:
    """What a user calls data, as a Source: a Table is read in the given order."""
    return data if isinstance(data, Source) else Reader(as_table(data), order, seed)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _gather(column: Tensor, indices: Tensor) -> Tensor:
    """The rows at these numbers; torch gathers unsigned integers only by the name of their signed kin."""
    kin = _SIGNED.get(column.dtype)
    if kin is None:
        return column.index_select(0, indices)
    return column.view(kin).index_select(0, indices).view(column.dtype)


def _as_tensor(name: str, column: Any) -> Tensor:
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biufc":
            raise DataError(f"stream {name!r} has dtype {column.dtype}, which is not a number. Encode it as numbers.")
        if column.dtype.itemsize > (16 if column.dtype.kind == "c" else 8):
            raise DataError(
                f"stream {name!r} has dtype {column.dtype}, which torch does not have. Convert it to float64."
            )
        strange = any(step < 0 or step % column.itemsize for step in column.strides)
        if strange or not column.dtype.isnative:
            column = np.ascontiguousarray(column.astype(column.dtype.newbyteorder("=")))
        with warnings.catch_warnings():  # a read-only array is only read
            warnings.filterwarnings("ignore", message=".*not writable.*")
            column = torch.from_numpy(column)
    if not isinstance(column, Tensor):
        raise DataError(f"stream {name!r}: expected a tensor or a NumPy array, got a {type(column).__name__}.")
    if column.dim() == 0:
        raise DataError(f"stream {name!r} is a single number. Its first dimension must be the rows.")
    return column.detach()
