"""NumPy's files: `.npy`, in place in the mapped file, and `.npz`, whose arrays are read into memory."""

import io
import math
import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import torch_dtype
from ..data.fields import one_length
from ..errors import DataError
from .columns import tensor_of
from .lazy import pa
from .paths import DataFile
from .read import Select, Types

_HEADER_BYTES = 65536


def read_npy(file: DataFile, select: Select, types: Types) -> dict[str, Tensor]:
    """The array of a `.npy` file, as column "x"."""
    select(["x"])
    data = file.load()  # by Arrow and not by np.load, which keeps a descriptor open for each file
    return {"x": _array(data, data.size, f"{file}")}


def read_npz(file: DataFile, select: Select, types: Types) -> dict[str, Tensor]:
    """The arrays of a `.npz` file by their names."""
    with zipfile.ZipFile(pa.BufferReader(file.load())) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        if not members:
            raise DataError(f"{file} has no arrays in it.")
        arrays = {}
        for name in select(list(members)):
            with archive.open(members[name]) as member:
                arrays[name] = _member(member, members[name].file_size, f"{name!r} of {file}")
    if arrays:
        one_length({name: len(array) for name, array in arrays.items()}, f"the arrays of {file}")
    return arrays


def _member(member: Any, size: int, who: str) -> Tensor:
    """The array in a member, of which no more is unpacked than the array takes."""
    head = member.read(_HEADER_BYTES)
    dtype, shape, _, start = _header(head, size, who)
    expected = start + math.prod(shape) * dtype.itemsize
    if size != expected:
        raise DataError(f"{who} is damaged: it has {size} bytes, and its array {expected}. Save it again.")
    return _array(pa.py_buffer(head + member.read()), size, who)


def _header(head: bytes, size: int, who: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """What np.save writes before the numbers, and where they begin; anything else, objects above all, is refused."""
    text = io.BytesIO(head)
    version = np.lib.format.read_magic(text)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(text)
    if not shape:
        raise DataError(f"{who} is a single number. Its first dimension must be the rows.")
    swapped = dtype.kind == "c" and not dtype.isnative
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8) or swapped:
        raise DataError(f"{who} has dtype {dtype}, which torch does not have. Save it as float32, float64 or int64.")
    takes, there = math.prod(shape) * dtype.itemsize, size - text.tell()
    if min(shape) < 0 or takes > there:
        raise DataError(f"{who} is cut short: {list(shape)} of {dtype} take {takes} bytes, {there} are there.")
    return dtype, tuple(shape), fortran and len(shape) > 1, text.tell()


def _array(data: Any, size: int, who: str) -> Tensor:
    """The array in a buffer: in place, unless it is of bits, of another byte order or at an odd address."""
    dtype, shape, fortran, start = _header(data.slice(0, min(size, _HEADER_BYTES)).to_pybytes(), size, who)
    takes = math.prod(shape) * dtype.itemsize
    if not takes:
        return torch.empty(shape, dtype=torch_dtype(dtype.name))
    raw = tensor_of(pa.Array.from_buffers(pa.uint8(), takes, [None, data.slice(start, takes)]))
    if not dtype.isnative:
        raw = raw.view(-1, dtype.itemsize).flip(1).flatten()  # complex numbers have two halves, and are refused
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    numbers = raw.ne(0) if dtype.kind == "b" else raw.view(torch_dtype(dtype.name))
    return numbers.view(shape) if not fortran else numbers.view(shape[::-1]).permute(*reversed(range(len(shape))))
