"""The model of a virtual network: collective calls, and how long they and the computing take."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any, Protocol

import torch
from torch import Tensor

from ..store.codec import Tensors, decode, encode

Cost = tuple[float, Sequence[float]]


class Timing(Protocol):
    """What a virtual cluster is like, in seconds and bytes a second."""

    @property
    def latency_s(self) -> float:
        """From the sending of a message's last byte to its arrival."""
        ...

    @property
    def bytes_per_s(self) -> float:
        """Of every worker's link, in each direction."""
        ...

    @property
    def restart_s(self) -> float | None:
        """From a worker's death until it is back; `None`: it never comes back."""
        ...

    def computing_s(self, worker: int, update: int, rows: int) -> float:
        """An update of so many rows; updates are counted from 0 by each worker."""
        ...

    def failures_s(self, worker: int) -> list[float]:
        """When a worker dies, in order."""
        ...


def all_reduce_cost(count: int, size: int, timing: Timing) -> tuple[float, list[float]]:
    """An all-reduce of so many bytes: each worker sends each of W parts twice around but to itself.

    Seconds, and the bytes that each worker sends.
    """
    sent = 2 * (count - 1) / count * size
    return sent / timing.bytes_per_s + 2 * (count - 1) * timing.latency_s, [sent] * count


def broadcast_cost(count: int, size: int, timing: Timing) -> tuple[float, list[float]]:
    """A broadcast: everybody passes on what it gets as it gets it, in a tree of messages."""
    hops = ceil(log2(count)) if count > 1 else 0
    seconds = size / timing.bytes_per_s * (count > 1) + hops * timing.latency_s
    return seconds, [float(size)] * (count - 1) + [0.0]


def gather_cost(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """A gather: all others send to worker 0, which gets them through its one link."""
    sent = [0.0, *map(float, sizes[1:])]
    return _at_one(sent, timing), sent


def scatter_cost(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """What worker 0 hands out goes through its one link."""
    sent = float(sum(sizes[1:]))
    return _at_one([0.0, *map(float, sizes[1:])], timing), [sent] + [0.0] * (len(sizes) - 1)


def all_gather_cost(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """An all-gather: everything passes everybody, around a ring."""
    total, count = sum(sizes), len(sizes)
    sent = [float(total - sizes[(worker + 1) % count]) for worker in range(count)]
    return max(sent) / timing.bytes_per_s + (count - 1) * timing.latency_s, sent


def _at_one(sizes: list[float], timing: Timing) -> float:
    return sum(sizes) / timing.bytes_per_s + (timing.latency_s if len(sizes) > 1 else 0.0)


@dataclass(slots=True)
class WorkerTimes:
    """How a worker has spent its virtual time, and how many bytes it has sent."""

    computing_s: float = 0.0
    communicating_s: float = 0.0
    idle_s: float = 0.0
    """Waiting for others."""
    down_s: float = 0.0
    """Dead, until it was back."""
    sent_bytes: float = 0.0
    rows: int = 0
    updates: int = 0
    failures: int = 0

    def plain(self, clock_s: float) -> dict[str, Any]:
        return {"clock_s": clock_s} | {name: getattr(self, name) for name in self.__slots__}


class Link:
    """A link that one message at a time goes through."""

    def __init__(self, timing: Timing) -> None:
        self._timing, self.free_s = timing, 0.0
        """When it is free, and when the last message had passed it that has been read."""

    def through(self, at_s: float, size: float) -> float:
        """When a message that gets to the link now has passed it."""
        self.free_s = max(at_s, self.free_s) + size / self._timing.bytes_per_s
        return self.free_s


@dataclass(slots=True)
class Packed:
    """A value packed for sending: a copy that others cannot change."""

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
    """One collective call, from the first worker that calls it to the last."""

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
            return (
                broadcast_cost(count, size, timing)
                if self.kind == "broadcast"
                else all_reduce_cost(count, size, timing)
            )
        if self.kind == "share":
            return broadcast_cost(count, self.given[0].size, timing)
        sizes = [packed.size for packed in (self.given[0] if self.kind == "hand_out" else self.given)]
        return {"gather": gather_cost, "all_gather": all_gather_cost, "hand_out": scatter_cost}[self.kind](
            sizes, timing
        )

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
