"""Packs values into one vector of bytes: JSON of what `codec` makes of them, and the tensors behind it.

length of the JSON, 8 bytes │ JSON {"value", "tensors": {dtype: [[name, shape], ...]}} │ tensors, one behind the other

Tensors of a type lie side by side, so that a model of many parameters costs little more than its bytes.
"""

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..store.codec import Tensors, decode, encode

Table = dict[str, list[tuple[str, Sequence[int]]]]
"""Types, and of each its tensors in order: names and shapes."""

_LENGTH_BYTES = 8
_ALIGNED = 16  # bytes: what the largest element needs


def pack(value: Any) -> Tensor:
    """A value as bytes, on the host."""
    tensors: Tensors = {}
    body = encode(value, tensors, "value")
    table: Table = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name!r} is a {tensor.layout} tensor, which cannot be sent. Send a dense one.")
        table.setdefault(str(tensor.dtype).removeprefix("torch."), []).append((name, tuple(tensor.shape)))
    header = json.dumps({"value": body, "tensors": table}, allow_nan=False).encode()
    start = _aligned(_LENGTH_BYTES + len(header))
    message = torch.empty(start + sum(_aligned(size) for _, size in _sizes(table)), dtype=torch.uint8)
    message[:_LENGTH_BYTES] = _bytes(len(header).to_bytes(_LENGTH_BYTES, "little"))
    message[_LENGTH_BYTES : _LENGTH_BYTES + len(header)] = _bytes(header)
    if places := _views(table, message[start:]):
        torch._foreach_copy_(list(places.values()), [tensors[name].detach() for name in places])
    return message


def unpack(message: Tensor) -> Any:
    """The value, with tensors of its own: some of torch's calls need them to begin where memory is aligned."""
    length = int.from_bytes(message[:_LENGTH_BYTES].numpy().tobytes(), "little")
    header = json.loads(message[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy().tobytes())
    views = _views(header["tensors"], message[_aligned(_LENGTH_BYTES + length) :])
    return decode(header["value"], {name: view.clone() for name, view in views.items()})


def _sizes(table: Table) -> list[tuple[torch.dtype, int]]:
    """Each type, and how many bytes its tensors have."""
    types = ((getattr(torch, name), tensors) for name, tensors in table.items())
    return [(dtype, dtype.itemsize * sum(prod(shape) for _, shape in tensors)) for dtype, tensors in types]


def _views(table: Table, flat: Tensor) -> Tensors:
    """The tensors' places in a message, by name."""
    views: Tensors = {}
    start = 0
    for (dtype, size), tensors in zip(_sizes(table), table.values(), strict=True):
        parts = flat[start : start + size].view(dtype).split([prod(shape) for _, shape in tensors])
        views |= {name: part.view(shape) for (name, shape), part in zip(tensors, parts, strict=True)}
        start += _aligned(size)
    return views


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
