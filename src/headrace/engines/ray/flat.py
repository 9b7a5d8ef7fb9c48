"""Tensors as one piece of bytes, and a table that says which is where.

A message of one piece is not copied on its way between processes of a machine. Tensors of a type lie side by side, so
that a model of many parameters costs little more than its bytes.
"""

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

Table = list[tuple[str, list[tuple[str, tuple[int, ...]]]]]
"""Types in order, and of each its tensors: names and shapes."""
Message = tuple[Table, Any]

_ALIGNED = 16  # bytes: what the largest element needs


def write(tensors: Mapping[str, Tensor]) -> Message:
    """The tensors' bytes, on the host."""
    by_type: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        by_type.setdefault(tensor.dtype, []).append(name)
    table = [(_name(dtype), [(name, tuple(tensors[name].shape)) for name in names]) for dtype, names in by_type.items()]
    places, size = _places(table)
    flat = torch.empty(size, dtype=torch.uint8)
    into = _views(table, places, flat)
    if into:
        torch._foreach_copy_(list(into.values()), [tensors[name].detach() for name in into])
    return table, flat.numpy()


def read(message: Message) -> dict[str, Tensor]:
    """The tensors, in memory of their own."""
    table, array = message
    return _views(table, _places(table)[0], tensor_of(array).clone())


def tensor_of(array: Any) -> Tensor:
    """Bytes as they have come. Nobody may write to them: others may have the same ones."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        found: Tensor = torch.from_numpy(array)
        return found


def _places(table: Table) -> tuple[list[tuple[int, int]], int]:
    """Where the tensors of each type begin and end, and how many bytes there are."""
    places, start = [], 0
    for dtype, tensors in table:
        stop = start + getattr(torch, dtype).itemsize * sum(prod(shape) for _, shape in tensors)
        places.append((start, stop))
        start = -(-stop // _ALIGNED) * _ALIGNED
    return places, start


def _views(table: Table, places: Sequence[tuple[int, int]], flat: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for (dtype, tensors), (start, stop) in zip(table, places, strict=True):
        parts = flat[start:stop].view(getattr(torch, dtype)).split([prod(shape) for _, shape in tensors])
        found |= {name: part.view(shape) for (name, shape), part in zip(tensors, parts, strict=True)}
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
