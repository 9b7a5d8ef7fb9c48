"""A collective call among virtual workers: what each has given, what comes of it, and what it costs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..store.codec import Tensors, decode, encode
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
class Collective:
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
    total: Tensor | None = None
    _added: int = 0

    def __str__(self) -> str:
        """For messages: all_reduce (sum) of float32 (10, 3) on cpu"""
        if not self.like:
            return self.kind
        shape, dtype, device = self.like
        name = f"all_reduce ({self.kind})" if self.kind in _REDUCE else self.kind
        return f"{name} of {str(dtype).removeprefix('torch.')} {tuple(shape)} on {device}"

    def come(self, worker: int, given: Any) -> None:
        """A worker calls it.

        Vectors are added up as they come, while they are in the cache, but in the workers' order: the same bits,
        whoever comes first.
        """
        self.given[worker] = given
        self.left -= 1
        if self.kind == "broadcast" and worker == 0:
            self.total = given.clone()
        reduce = _REDUCE.get(self.kind)
        while reduce is not None and self._added < len(self.given) and self.given[self._added] is not None:
            vector = self.given[self._added]
            self.total = vector.clone() if self.total is None else reduce(self.total, vector)
            self._added += 1

    def cost(self, timing: Timing) -> Cost:
        """How long it takes, and how many bytes each worker sends."""
        count = len(self.given)
        if self.total is not None:
            size = self.total.nbytes
            return chain(count, size, timing) if self.kind == "broadcast" else ring(count, size, timing)
        if self.kind == "share":
            return chain(count, self.given[0].size, timing)
        sizes = [packed.size for packed in (self.given[0] if self.kind == "hand_out" else self.given)]
        return {"gather": to_one, "all_gather": around, "hand_out": from_one}[self.kind](sizes, timing)

    def take(self, worker: int) -> Any:
        """What comes of it for a worker, which has waited for that."""
        if self.total is not None:
            self.given[worker].copy_(self.total)
            return None
        if self.kind == "share":
            return self.given[0].value()
        if self.kind == "hand_out":
            return self.given[0][worker].value()
        return [packed.value() for packed in self.given] if worker == 0 or self.kind == "all_gather" else None


def _larger(total: Tensor, vector: Tensor) -> Tensor:
    return torch.maximum(total, vector, out=total)


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": Tensor.add_, "max": _larger}
