"""Packs values into one vector of bytes: JSON of what `codec` makes of them, and the tensors behind it.

length of the JSON, 8 bytes │ JSON {"value", "tensors": [[name, type, shape], ...]} │ tensors, one behind the other
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..store.codec import Tensors, decode, encode

Table = Sequence[tuple[str, str, Sequence[int]]]
"""Tensors in order: name, type and shape."""

_LENGTH_BYTES = 8
_ALIGNED = 16  # bytes: what the largest element needs


def pack(value: Any) -> Tensor:
    """A value as bytes, on the host."""
    tensors: Tensors = {}
    body = encode(value, tensors, "value")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name!r} is a {tensor.layout} tensor, which cannot be sent. Send a dense one.")
    table = table_of(tensors)
    header = json.dumps({"value": body, "tensors": table}, allow_nan=False).encode()
    start = _aligned(_LENGTH_BYTES + len(header))
    message = torch.empty(start + bytes_of(table), dtype=torch.uint8)
    message[:_LENGTH_BYTES] = _bytes(len(header).to_bytes(_LENGTH_BYTES, "little"))
    message[_LENGTH_BYTES : _LENGTH_BYTES + len(header)] = _bytes(header)
    if tensors:
        torch._foreach_copy_([*places(table, message[start:]).values()], [each.detach() for each in tensors.values()])
    return message


def unpack(message: Tensor) -> Any:
    """The value, with tensors of its own: some of torch's calls need them to begin where memory is aligned."""
    length = int.from_bytes(message[:_LENGTH_BYTES].numpy().tobytes(), "little")
    header = json.loads(message[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy().tobytes())
    found = places(header["tensors"], message[_aligned(_LENGTH_BYTES + length) :])
    return decode(header["value"], {name: place.clone() for name, place in found.items()})


def table_of(tensors: Mapping[str, Tensor]) -> Table:
    return [(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()]


def bytes_of(table: Table) -> int:
    """How much memory the tensors of a table take, one behind the other."""
    return sum(_aligned(prod(shape) * getattr(torch, dtype).itemsize) for _, dtype, shape in table)


def places(table: Table, memory: Tensor) -> Tensors:
    """The tensors' places in memory, by name."""
    found: Tensors = {}
    start = 0
    for name, dtype, shape in table:
        size = prod(shape) * getattr(torch, dtype).itemsize
        found[name] = memory[start : start + size].view(getattr(torch, dtype)).view(shape)
        start += _aligned(size)
    return found


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
