"""Values as one vector of bytes: JSON of what `codec` makes of them, and the tensors behind it.

length of the JSON, 8 bytes │ JSON {"value", "tensors": {name: [dtype, shape, place]}} │ tensors, each at its place
"""

import json
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..store.codec import Tensors, decode, encode

_LENGTH_BYTES = 8
_ALIGNED = 16  # bytes: what the largest element needs


def pack(value: Any) -> Tensor:
    """A value as bytes, on the host."""
    tensors: Tensors = {}
    body = encode(value, tensors, "value")
    table: dict[str, tuple[str, list[int], int]] = {}
    end = 0
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name!r} is a {tensor.layout} tensor, which cannot be sent. Send a dense one.")
        table[name] = str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end
        end = _aligned(end + tensor.nbytes)
    header = json.dumps({"value": body, "tensors": table}, allow_nan=False).encode()
    start = _aligned(_LENGTH_BYTES + len(header))
    message = torch.empty(start + end, dtype=torch.uint8)
    message[:_LENGTH_BYTES] = _bytes(len(header).to_bytes(_LENGTH_BYTES, "little"))
    message[_LENGTH_BYTES : _LENGTH_BYTES + len(header)] = _bytes(header)
    for name, tensor in tensors.items():
        _place(message, start + table[name][2], tensor.dtype, tensor.shape).copy_(tensor)
    return message


def unpack(message: Tensor) -> Any:
    """The value, with tensors of its own."""
    length = int.from_bytes(message[:_LENGTH_BYTES].numpy().tobytes(), "little")
    header = json.loads(message[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy().tobytes())
    start = _aligned(_LENGTH_BYTES + length)
    tensors = {
        name: _place(message, start + place, getattr(torch, dtype), shape).clone()
        for name, (dtype, shape, place) in header["tensors"].items()
    }
    return decode(header["value"], tensors)


def _place(message: Tensor, start: int, dtype: torch.dtype, shape: Any) -> Tensor:
    size = torch.Size(shape)
    return message[start : start + size.numel() * dtype.itemsize].view(dtype).view(size)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
