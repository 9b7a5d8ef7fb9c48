"""`Network` describes a virtual cluster; its collective calls, and how long they and the computing take."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..workers.shared import add_in_tree
from ..workers.wire import unpack

_AMOUNT = r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([a-zA-Zµ]+)(?:/s)?\s*"
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {f"{p}{unit}": factor * size for unit, size in (("bit", 1 / 8), ("B", 1.0)) for p, factor in _PREFIXES.items()}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Network:
    """The speed of simulated workers and their network, for `launch(..., engine="local", network=...)`.

    Args:
        bandwidth: of the link of a worker, per second, in each direction: in bits, as in "100 Mbit", or bytes, "12 MB".
        latency: of every message, as in "1.5 ms".
        rows_per_s: training rows per second of a worker with speed 1.
        speeds: a factor for every worker, or a dict for some.
    """

    bandwidth: str = "10 Gbit"
    latency: str = "50 us"
    rows_per_s: float = 1e5
    speeds: Sequence[float] | Mapping[int, float] = ()

    def __post_init__(self) -> None:
        positive(self.rows_per_s, "rows_per_s")
        for name in ("bytes_per_s", "latency_s", "_speeds"):
            getattr(self, name)
        if self.bytes_per_s <= 0:
            raise ConfigError(f"bandwidth= is greater than 0, got {self.bandwidth!r}.", argument="bandwidth")

    @cached_property
    def bytes_per_s(self) -> float:
        return _amount(self.bandwidth, "bandwidth", _BYTES)

    @cached_property
    def latency_s(self) -> float:
        return _amount(self.latency, "latency", _SECONDS)

    def computing_s(self, worker: int, rows: int) -> float:
        """How long an update of so many rows takes."""
        return rows / (self.rows_per_s * self._speeds.get(worker, 1.0))

    def check(self, workers: int) -> None:
        """Raises unless settings of single workers name workers that exist."""
        if not isinstance(self.speeds, Mapping) and len(self.speeds) not in (0, workers):
            raise ConfigError(
                f"speeds= has one factor for each of the {workers} workers, got {len(self.speeds)}.", argument="speeds"
            )
        for worker in self._speeds:
            if worker >= workers:
                raise ConfigError(f"speeds= is of workers 0 to {workers - 1}, got worker {worker}.", argument="speeds")

    @cached_property
    def _speeds(self) -> dict[int, float]:
        if not isinstance(self.speeds, Mapping | Sequence) or isinstance(self.speeds, str):
            raise ConfigError(
                f"speeds= is a factor for every worker, or a dict of some, got {self.speeds!r}.", argument="speeds"
            )
        given: Any = self.speeds if isinstance(self.speeds, Mapping) else dict(enumerate(self.speeds))
        for worker in given:
            if not isinstance(worker, int) or isinstance(worker, bool) or worker < 0:
                raise ConfigError(
                    f"speeds= names workers by their numbers, 0 or more, got {worker!r}.", argument="speeds"
                )
        return {worker: positive(speed, f"speeds of worker {worker}") for worker, speed in given.items()}


def _amount(given: Any, what: str, units: Mapping[str, float]) -> float:
    """A number with a unit, in bytes or seconds."""
    match = re.fullmatch(_AMOUNT, given) if isinstance(given, str) else None
    if match is None or match[2] not in units:
        raise ConfigError(f"{what}= is a number and a unit, one of {', '.join(units)}; got {given!r}.", argument=what)
    return float(match[1]) * units[match[2]]


def positive(value: Any, what: str) -> float:
    """A number above 0, which is finite."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < inf:
        raise ConfigError(f"{what}= is a number greater than 0, got {value!r}.", argument=what)
    return float(value)


@dataclass(slots=True)
class WorkerTimes:
    """How a worker has spent its virtual time, and how many bytes it has sent."""

    computing_s: float = 0.0
    communicating_s: float = 0.0
    idle_s: float = 0.0
    """Waiting for others."""
    sent_bytes: float = 0.0
    rows: int = 0
    updates: int = 0

    def plain(self, clock_s: float) -> dict[str, Any]:
        return {"clock_s": clock_s} | {name: getattr(self, name) for name in self.__slots__}


class Link:
    """A link that one message at a time goes through."""

    def __init__(self, network: Network) -> None:
        self._network, self.free_s = network, 0.0
        """When it is free, and when the last message had passed it that has been read."""

    def through(self, at_s: float, size: float) -> float:
        """When a message that gets to the link now has passed it."""
        self.free_s = max(at_s, self.free_s) + size / self._network.bytes_per_s
        return self.free_s


@dataclass(slots=True)
class Collective:
    """One collective call, from the first worker that calls it to the last."""

    kind: str
    like: tuple[Any, ...]
    first: int
    """The worker that called it first."""
    given: list[Any]
    missing: int
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
        name = f"all_reduce ({self.kind})" if self.kind in (*_REDUCE, "tree") else self.kind
        return f"{name} of {str(dtype).removeprefix('torch.')} {tuple(shape)} on {device}"

    def come(self, worker: int, given: Any) -> None:
        """A worker calls it.

        Vectors are added up as they come, while they are in the cache, but in the workers' order: the same bits,
        whoever comes first.
        """
        self.given[worker] = given
        self.missing -= 1
        if self.kind == broadcast_from(worker):
            self.total = given.clone()
        if self.kind == "tree" and not self.missing:
            self.total, *scratch = [torch.empty_like(given) for _ in range(len(self.given).bit_length())]
            add_in_tree(self.given, self.total, scratch)
        reduce = _REDUCE.get(self.kind)
        while reduce is not None and self._added < len(self.given) and self.given[self._added] is not None:
            vector = self.given[self._added]
            self.total = vector.clone() if self.total is None else reduce(self.total, vector)
            self._added += 1

    def cost(self, network: Network) -> tuple[float, list[float]]:
        """How many seconds it takes, and how many bytes each worker sends.

        The time is that of the bytes on the busiest link, and of the messages that follow each other.
        """
        others = len(self.given) - 1
        if self.kind == "share" or self.kind.startswith("broadcast"):  # each passes on what it gets, in a tree
            size = self.given[0].nbytes if self.total is None else self.total.nbytes
            sent, messages = [float(size)] * others + [0.0], others.bit_length()
        elif self.total is not None:  # a sum, around a ring: each sends every part but one, twice
            sent, messages = [2 * others / (others + 1) * self.total.nbytes] * (others + 1), 2 * others
        elif self.kind == "all_gather":  # everything passes everybody, around a ring
            sizes = [message.nbytes for message in self.given]
            sent, messages = [float(sum(sizes) - size) for size in [*sizes[1:], sizes[0]]], others
        elif self.kind == "hand_out":
            sent, messages = (
                [float(sum(message.nbytes for message in self.given[0][1:]))] + [0.0] * others,
                min(others, 1),
            )
        else:  # gather: worker 0 gets all through its one link
            sent, messages = [0.0, *(float(message.nbytes) for message in self.given[1:])], min(others, 1)
        busiest = sum(sent) if self.kind == "gather" else max(sent)
        return busiest / network.bytes_per_s + messages * network.latency_s, sent

    def take(self, worker: int) -> Any:
        """The result of the collective for a worker."""
        if self.total is not None:
            self.given[worker].copy_(self.total)
            return None
        if self.kind == "share":
            return unpack(self.given[0])
        if self.kind == "hand_out":
            return unpack(self.given[0][worker])
        return [*map(unpack, self.given)] if worker == 0 or self.kind == "all_gather" else None


def broadcast_from(worker: int) -> str:
    """The kind of a broadcast of this worker's."""
    return f"broadcast from worker {worker}" if worker else "broadcast"


def _larger(total: Tensor, vector: Tensor) -> Tensor:
    return torch.maximum(total, vector, out=total)


_REDUCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": Tensor.add_, "max": _larger}
