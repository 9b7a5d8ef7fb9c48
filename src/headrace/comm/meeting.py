"""A collective among virtual workers: what each has given, what comes of it, and what it costs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..codec import Tensors, decode, encode
from .clock import Timing, around, chain, from_one, ring, to_one

Cost = tuple[float, Sequence[float]]


@dataclass(slots=True)
class Packed:
    """A value as it would be sent: nobody else changes it."""

    text: str
    tensors: Tensors

    @classmethod
    def of(cls, value: Any) -> "Packed":
        found: Tensors = {}
        text = json.dumps(encode(value, found, "value"))
        return cls(text, {name: tensor.cpu().clone() for name, tensor in found.items()})

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.text) + sum(tensor.nbytes for tensor in self.tensors.values())

    def value(self) -> Any:
        return decode(json.loads(self.text), {name: tensor.clone() for name, tensor in self.tensors.items()})


@dataclass(slots=True)
class Meeting:
    """One collective: begun by the first worker that calls it, over when the last one has."""

    kind: str
    like: tuple[Any, ...]
    first: int
    """The worker that called it first."""
    given: list[Any]
    left: int
    """How many have not called it yet."""
    started_s: float = 0.0
    """When the last one has called it, in virtual time."""
    finish_s: float = 0.0
    waiting: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        """For messages: all_reduce (sum) of float32 (10, 3) on cpu"""
        if not self.like:
            return self.kind
        shape, dtype, device = self.like
        name = f"all_reduce ({self.kind})" if self.kind in ("sum", "max") else self.kind
        return f"{name} of {str(dtype).removeprefix('torch.')} {tuple(shape)} on {device}"

    def meet(self, timing: Timing) -> Cost:
        """Everybody gets what is due to it; how long it takes, and how many bytes each worker sends."""
        with torch.no_grad():
            return _MEETINGS[self.kind](self.given, timing)


def _sum(vectors: list[Tensor], timing: Timing) -> Cost:
    total = vectors[0].clone()
    for vector in vectors[1:]:  # in the workers' order: the same bits, whoever comes first
        total += vector
    return _give(total, vectors, timing)


def _max(vectors: list[Tensor], timing: Timing) -> Cost:
    total = vectors[0].clone()
    for vector in vectors[1:]:
        torch.maximum(total, vector, out=total)
    return _give(total, vectors, timing)


def _give(total: Tensor, vectors: list[Tensor], timing: Timing) -> Cost:
    torch._foreach_copy_(vectors, [total] * len(vectors))
    return ring(len(vectors), total.nbytes, timing)


def _broadcast(vectors: list[Tensor], timing: Timing) -> Cost:
    torch._foreach_copy_(vectors[1:], [vectors[0]] * (len(vectors) - 1))
    return chain(len(vectors), vectors[0].nbytes, timing)


def _gather(packed: list[Any], timing: Timing) -> Cost:
    cost = to_one([each.size for each in packed], timing)
    packed[:] = [[each.value() for each in packed], *[None] * (len(packed) - 1)]
    return cost


def _all_gather(packed: list[Any], timing: Timing) -> Cost:
    cost = around([each.size for each in packed], timing)
    packed[:] = [[each.value() for each in packed] for _ in packed]
    return cost


def _share(packed: list[Any], timing: Timing) -> Cost:
    given = packed[0]
    packed[:] = [given.value() for _ in packed]
    return chain(len(packed), given.size, timing)


def _hand_out(packed: list[Any], timing: Timing) -> Cost:
    parts = packed[0]
    packed[:] = [part.value() for part in parts]
    return from_one([part.size for part in parts], timing)


_MEETINGS: dict[str, Callable[[list[Any], Timing], Cost]] = {
    "sum": _sum,
    "max": _max,
    "broadcast": _broadcast,
    "gather": _gather,
    "all_gather": _all_gather,
    "share": _share,
    "hand_out": _hand_out,
}
