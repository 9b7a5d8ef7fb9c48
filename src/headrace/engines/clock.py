"""Virtual time: how long computing and sending take, and what each worker has done with its time."""

from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Protocol


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


def ring(count: int, size: int, timing: Timing) -> tuple[float, list[float]]:
    """An all-reduce of so many bytes: each worker sends each of W parts twice around but to itself.

    Seconds, and the bytes that each worker sends.
    """
    sent = 2 * (count - 1) / count * size
    return sent / timing.bytes_per_s + 2 * (count - 1) * timing.latency_s, [sent] * count


def chain(count: int, size: int, timing: Timing) -> tuple[float, list[float]]:
    """A broadcast: everybody passes on what it gets as it gets it, in a tree of messages."""
    hops = ceil(log2(count)) if count > 1 else 0
    seconds = size / timing.bytes_per_s * (count > 1) + hops * timing.latency_s
    return seconds, [float(size)] * (count - 1) + [0.0]


def to_one(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """A gather: all others send to worker 0, which gets them through its one link."""
    sent = [0.0, *map(float, sizes[1:])]
    return _at_one(sent, timing), sent


def from_one(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """What worker 0 hands out goes through its one link."""
    sent = float(sum(sizes[1:]))
    return _at_one([0.0, *map(float, sizes[1:])], timing), [sent] + [0.0] * (len(sizes) - 1)


def around(sizes: list[int], timing: Timing) -> tuple[float, list[float]]:
    """An all-gather: everything passes everybody, around a ring."""
    total, count = sum(sizes), len(sizes)
    sent = [float(total - sizes[(worker + 1) % count]) for worker in range(count)]
    return max(sent) / timing.bytes_per_s + (count - 1) * timing.latency_s, sent


def _at_one(sizes: list[float], timing: Timing) -> float:
    return sum(sizes) / timing.bytes_per_s + (timing.latency_s if len(sizes) > 1 else 0.0)


@dataclass(slots=True)
class Account:
    """What a worker has done with its time, in virtual seconds, and what it has sent."""

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
