"""NumPy's files: `.npy`, and `.npz` with its arrays where they lie in it."""

import io
import math
import struct
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..data.arrow import tensor_of
from ..data.batch import Stream, torch_dtype
from ..data.categories import Categories
from ..errors import DataError
from .blocks import Fields, Store
from .paths import File, reading
from .select import inner

BLOCK_BYTES = 2**24
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_HEADER_BYTES = 65536


@dataclass(frozen=True)
class Header:
    """What an array is, by the text before it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    """Where its numbers begin."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpyStore(Store):
    """Arrays of one length, in place in a mapped file where they can be, as one block."""

    held = True

    def __init__(self, file: File, arrays: dict[str, Tensor], headers: dict[str, Header]) -> None:
        super().__init__(file)
        lengths = {name: header.shape[0] for name, header in headers.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
            raise DataError(
                f"the arrays of {file} have different lengths: {listed} rows. "
                "Every stream needs one row per sample: columns= says which are read."
            )
        self._arrays = arrays
        self.streams = [Stream(name, header.shape[1:], header.dtype.name) for name, header in headers.items()]
        self.counts = [rows for rows in list(lengths.values())[:1] if rows]
        self._nbytes = sum(header.nbytes for header in headers.values())

    def read(self, block: int, first: int, categories: Categories, only: Collection[str] = ()) -> Fields:
        return self._arrays

    def nbytes(self, block: int) -> float:
        return self._nbytes

    @property
    def run(self) -> int:
        return max(1, BLOCK_BYTES * max(self.counts, default=0) // max(1, self._nbytes))


def open_npy(file: File, wanted: Any) -> NpyStore:
    """The array of a `.npy` file, as stream "x"."""
    wanted(["x"])
    with reading(file):
        data = file.load()
        header = _header(data, 0, data.size, f"{file}")
        return NpyStore(file, {"x": _rows(data, header)}, {"x": header})


def open_npz(file: File, wanted: Any) -> NpyStore:
    """The arrays of a `.npz` file by their names; compressed ones are loaded into memory."""
    import pyarrow as pa

    with reading(file):
        data = file.load()
        with zipfile.ZipFile(pa.BufferReader(data)) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
            if not members:
                raise DataError(f"{file} has no arrays in it.")
            arrays, headers = {}, {}
            for name in wanted(list(members)):
                held, header = _member(archive, members[name], data, f"{name!r} of {file}")
                arrays[inner(name)], headers[inner(name)] = _rows(held, header), header
    return NpyStore(file, arrays, headers)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, data: Any, who: str) -> tuple[Any, Header]:
    """The bytes that an array is in, and what it is: the mapped file itself if it is stored as it is."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        return _unpacked(archive, member, who)
    head = data.slice(member.header_offset, min(_LOCAL_HEADER.size, data.size - member.header_offset)).to_pybytes()
    magic, *_, name, extra = _LOCAL_HEADER.unpack(head)
    start = member.header_offset + _LOCAL_HEADER.size + name + extra
    if magic != b"PK\x03\x04" or start + member.file_size > data.size:
        raise ValueError(f"{member.filename!r} is not where the directory of the file says")
    return data, _header(data, start, start + member.file_size, who)


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, who: str) -> tuple[Any, Header]:
    """The same of a compressed one, of which no more is unpacked than the array takes."""
    import pyarrow as pa

    with archive.open(member) as packed:
        header = _header(pa.py_buffer(packed.read(_HEADER_BYTES)), 0, member.file_size, who)
    size = header.start + header.nbytes
    if member.file_size != size:
        raise DataError(f"{who} is damaged: it has {member.file_size} bytes, and its array {size}. Save it again.")
    return pa.py_buffer(archive.read(member)), header


def _header(data: Any, start: int, stop: int, who: str) -> Header:
    """Reads what np.save writes before the numbers; anything else, objects above all, is refused."""
    text = io.BytesIO(data.slice(start, min(stop - start, data.size - start, _HEADER_BYTES)).to_pybytes())
    version = np.lib.format.read_magic(text)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(text)
    if not shape:
        raise DataError(f"{who} is a single number. Its first dimension must be the rows.")
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8) or _swapped_complex(dtype):
        raise DataError(f"{who} has dtype {dtype}, which torch does not have. Save it as float32, float64 or int64.")
    header = Header(dtype, tuple(shape), fortran and len(shape) > 1, start + text.tell())
    if min(shape) < 0 or header.start + header.nbytes > stop:
        there = stop - header.start
        raise DataError(f"{who} is cut short: {list(shape)} of {dtype} take {header.nbytes} bytes, {there} are there.")
    return header


def _swapped_complex(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "c" and not dtype.isnative


def _rows(data: Any, header: Header) -> Tensor:
    """The rows as bytes, in place at whatever address; as numbers, where those are not in this order."""
    import pyarrow as pa

    lying = data.slice(header.start, header.nbytes)
    raw = tensor_of(pa.Array.from_buffers(pa.uint8(), header.nbytes, [None, lying]))
    if not header.dtype.isnative:
        raw = raw.view(-1, header.dtype.itemsize).flip(1).flatten()  # complex numbers have two halves, and are refused
    if not header.fortran:
        return raw.view(header.shape[0], header.nbytes // max(1, header.shape[0]))
    if raw.data_ptr() % header.dtype.itemsize:
        raw = raw.clone()
    numbers = raw.ne(0) if header.dtype.kind == "b" else raw.view(torch_dtype(header.dtype.name))
    return numbers.view(header.shape[::-1]).permute(*reversed(range(len(header.shape))))
