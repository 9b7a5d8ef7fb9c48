"""State as bytes without pickle: JSON for plain values, safetensors for the tensors beside them.

JSON keeps None, booleans, integers, finite floats (exactly), text, lists and dicts with text as keys. Everything
else is a dict with a single key that begins with "$": `{"$tensor": name}` stands for a tensor kept elsewhere.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import CheckpointError, CorruptError
from .document import DEPTH, is_deeper, parse_document

Tensors = dict[str, Tensor]
INTEGER_BITS = 4096  # more than any generator's state has; Python does not write much longer ones
LEVELS = DEPTH - 10  # of a part of the state: a document has some around it
HEADER_BYTES = 1 << 20  # of a tensor file, unless the manifest says that it has many tensors
HEADER_BYTES_EACH = 1024
_KINDS = {"$tensor": str, "$array": str, "$float": str, "$tuple": list, "$items": list}
_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, AssertionError, RuntimeError)
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def encode(value: Any, tensors: Tensors, at: str, *, strict: bool = False) -> Any:
    """`value` for JSON; the tensors in it are added to `tensors` by names that begin with `at`.

    `strict` is for state of others: what JSON would not give back as it was (tuples, numbers as keys, values that
    are not finite) is refused there.
    """
    try:
        found = _encoded(value, tensors, at, strict)
        deep = is_deeper(found, LEVELS)
    except RecursionError:
        deep = True
    if deep:
        raise CheckpointError(f"state at {at!r} is nested too deeply to be saved, or holds itself.")
    return found


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `encode` was given; anything that it never gives is an error."""
    try:
        return _decoded(value, tensors)
    except (TypeError, ValueError, KeyError, RecursionError, RuntimeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"state cannot be read: {type(error).__name__}: {error}") from None


def to_json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def from_json(data: bytes, name: str) -> Any:
    try:
        return parse_document(data)
    except ValueError as error:
        raise CorruptError(f"{name} is not JSON: {error}") from None


def tensor_pieces(file: str, tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A safetensors file (https://huggingface.co/docs/safetensors), without a copy of the tensors' bytes."""
    if "__metadata__" in tensors:
        raise CheckpointError(
            f"{file} cannot hold a tensor named '__metadata__': the format keeps that name to itself."
        )
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": dtype_name(file, name, tensor),
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{file} cannot hold a tensor whose name is not Unicode: {error}") from None
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        if tensor.numel():
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def parse_tensors(data: bytes, file: str, count: int) -> dict[str, Tensor]:
    """The tensors of a safetensors file that is said to hold so many."""
    length = int.from_bytes(data[:8], "little")
    limit = max(HEADER_BYTES, HEADER_BYTES_EACH * count)
    if len(data) < 8 or length > min(limit, len(data) - 8):
        raise CorruptError(f"{file}: a header of {length:,} bytes; at most {limit:,} are read.")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, *_UNREADABLE) as error:
        raise CorruptError(f"{file} is not a file of tensors: {error}") from None


def dtype_of(name: str) -> torch.dtype:
    """The dtype that safetensors calls so."""
    for dtype, known in _NAMES.items():
        if known == name:
            return dtype
    raise CorruptError(f"{name[:40]!r} is no type of tensors that this version knows.")


def is_stored(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype can be stored."""
    return dtype in _NAMES


def dtype_name(file: str, name: str, tensor: Tensor) -> str:
    """How safetensors calls the dtype of a tensor."""
    if tensor.dtype not in _NAMES:
        raise CheckpointError(f"{name!r} is of {tensor.dtype}, which {file} cannot hold.")
    return _NAMES[tensor.dtype]


def _encoded(value: Any, tensors: Tensors, at: str, strict: bool) -> Any:
    if value is None or isinstance(value, bool | str) or (type(value) is int and value.bit_length() <= INTEGER_BITS):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _tensor(value, tensors, at)
    if isinstance(value, list):
        return [_encoded(item, tensors, f"{at}/{k}", strict) for k, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encoded(item, tensors, f"{at}/{key}", strict) for key, item in value.items()}
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if not strict:
        if isinstance(value, float):
            return {"$float": repr(float(value))}
        if isinstance(value, tuple):
            return {"$tuple": _encoded(list(value), tensors, at, strict)}
        if isinstance(value, Mapping):
            return {"$items": _encoded([[k, v] for k, v in value.items()], tensors, at, strict)}
        if isinstance(value, np.generic):
            return _encoded(value.item(), tensors, at, strict)
        if isinstance(value, int) and type(value) is not int:
            return _encoded(int(value), tensors, at, strict)
    raise CheckpointError(
        f"state at {at!r} holds {_named(value)}, which cannot be saved. "
        "None, booleans, integers, finite floats, text, tensors, arrays; lists and dicts (with text keys) of them."
    )


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: _decoded(item, tensors) for key, item in value.items()}
    (kind, inner), *_ = value.items()
    if kind in _KINDS and isinstance(inner, _KINDS[kind]):
        if kind in ("$tensor", "$array"):
            if inner not in tensors:
                raise CorruptError(f"the tensor {inner!r} is missing.")
            return tensors[inner] if kind == "$tensor" else tensors[inner].numpy()
        if kind == "$float":
            return float(inner)
        items = _decoded(inner, tensors)
        return tuple(items) if kind == "$tuple" else dict(items)
    raise CorruptError(f"{kind!r} is not a kind of value that this version knows.")


def _tensor(value: Tensor | Any, tensors: Tensors, at: str) -> dict[str, str]:
    name, copies = at, 1
    while name in tensors:
        copies += 1
        name = f"{at}~{copies}"
    if isinstance(value, Tensor):
        tensors[name] = value.detach() if value.requires_grad else value
        return {"$tensor": name}
    if value.dtype.kind not in "biufc":
        raise CheckpointError(f"state at {at!r} holds an array of {value.dtype}, which cannot be saved. Use numbers.")
    tensors[name] = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    return {"$array": name}


def _named(value: Any) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float | tuple):
        return f"{value!r} ({type(value).__name__})"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)[:3]}"
    return f"a {type(value).__name__}"
