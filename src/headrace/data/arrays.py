"""Tables over tensors, arrays, sequences and sparse rows that are in memory, or mapped into it; nothing is copied."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .batch import Batch, Stream
from .encoding import Categories, Encoding
from .fields import Rows, one_length, take, tensors_of, unmasked
from .source import Table, fingerprint_of
from .sparse import Sparse

HASHED_BYTES = 4 << 20  # all values of a tensor up to this size are hashed
SCATTER = 2654435761  # a large odd number
PLACES, RUN = 4096, 16  # of a larger tensor: the number of evenly spread places, and of values hashed at each


class ArrayTable(Table):
    """A table of columns in memory: a tensor, array, `Ragged` or `Sparse` for each stream, all of the same length.

    `block` is the number of rows that are stored together on disk, if the columns are a file that is mapped into
    memory.
    """

    streams: Sequence[Stream] = ()
    encoding: Encoding = Encoding()
    thread_safe = True

    def __init__(
        self,
        columns: Mapping[str, Any],
        *,
        block: int | None = None,
        categories: Categories | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        if not isinstance(columns, Mapping):
            raise DataError(
                f"ArrayTable takes columns by name, {{'x': ..., 'y': ...}}, got a {type(columns).__name__}. A frame is "
                "given to the trainer as it is; hr.open_table(frame) makes a table of it."
            )
        if not columns:
            raise DataError("a table needs at least one stream.")
        self.columns: dict[str, Any] = {name: _as_rows(name, column) for name, column in columns.items()}
        self._length = one_length({name: len(column) for name, column in self.columns.items()})
        devices: set[torch.device] = {column.device for column in self.columns.values()}
        if len(devices) > 1:
            raise DataError(f"the streams are on different devices: {', '.join(map(str, devices))}. Move them to one.")
        self.device, self.block = devices.pop(), block
        self.streams = tuple(Stream.of(name, column) for name, column in self.columns.items())
        self.encoding = encoding or Encoding(self.streams, dict(categories or {}))

    def __len__(self) -> int:
        return self._length

    def take(self, indices: Tensor) -> Batch:
        there = indices.to(self.device, non_blocking=True)
        columns = self.columns.items()
        return Batch({n: take(c, there if isinstance(c, Tensor) else indices) for n, c in columns}, len(indices))

    def rows(self, start: int, stop: int) -> Batch:
        return Batch({name: column[start:stop] for name, column in self.columns.items()}, stop - start)

    def lengths(self, stream: str) -> Tensor:
        lengths: Tensor = self.columns[self.sequence(stream).name].host_offsets.diff()
        return lengths

    def resident(self, device: torch.device) -> bool:
        return self.device == device

    def to(self, device: torch.device) -> "ArrayTable":
        """The same table in the memory of another device."""
        return ArrayTable({name: column.to(device) for name, column in self.columns.items()}, encoding=self.encoding)

    def fingerprint(self) -> str:
        """A hash that includes all values of a column of up to 4 MB, and an evenly spread sample of a larger one."""
        return fingerprint_of(super().fingerprint(), *map(values_digest, self.columns.values()))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    @property
    def row_bytes(self) -> float:
        return self.nbytes / max(1, len(self))


def values_digest(field: Any) -> str:
    """A hash of the values of a field; of a large tensor those at places that are spread evenly over it."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors_of(field):
        digest.update(_sampled(tensor).cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sampled(tensor: Tensor) -> Tensor:
    """The values of a tensor that are hashed, as whole numbers of the same bits."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    tensor = tensor.view(_BITS[tensor.itemsize])  # not every dtype can be indexed
    if tensor.nbytes <= HASHED_BYTES:
        return tensor
    k, step = torch.arange(PLACES), (tensor.numel() - RUN) // PLACES
    firsts = k * step + k * SCATTER % step  # without it the same columns might be met in every row
    places = (firsts[:, None] + torch.arange(RUN)).to(tensor.device)
    return tensor.view(-1)[places] if tensor.is_contiguous() else tensor[torch.unravel_index(places, tensor.shape)]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def _advice(column: Any) -> str:
    """What to do about something that is no column."""
    if isinstance(column, str | Path):
        return "Map a file of NumPy's into memory, np.load(path, mmap_mode='r'), or open it: hr.open_table(path)."
    if isinstance(column, list | tuple):
        return "Rows of one length are an array, np.array(rows); sequences are hr.Ragged.of(rows)."
    return "Make an array of it: np.asarray(...)."


def _as_rows(name: str, column: Any) -> Tensor | Rows:
    if isinstance(column, Rows):
        return column
    if type(column).__module__.startswith("scipy.sparse"):
        return Sparse.of(column)
    if isinstance(column, np.ndarray):
        column = unmasked(column, f"stream {name!r}")
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
        raise DataError(
            f"stream {name!r}: expected a tensor or a NumPy array, got a {type(column).__name__}. {_advice(column)}"
        )
    if column.layout in _SPARSE and column.dim() == 2:
        return Sparse.of(column)
    if column.layout != torch.strided or column.is_nested:
        kind = "nested" if column.is_nested else str(column.layout)
        raise DataError(
            f"stream {name!r} is a {kind} tensor, which has no rows that could be taken. Make it dense (to_dense()), "
            "or of sequences hr.Ragged.of(tensors)."
        )
    if column.dim() == 0:
        raise DataError(f"stream {name!r} is a single number. Its first dimension must be the rows.")
    return column.detach()
