"""`Network`: describes a virtual cluster by its links, its workers' speeds, stragglers and failures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from numbers import Real
from typing import Any

from ..errors import ConfigError, unknown

_AMOUNT = r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-zµ]+?)(?:/s)?\s*"
_BYTES = {"bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "tbit": 125e9}
_BYTES |= {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Network:
    """A virtual cluster, for `launch(..., engine="local", network=...)`.

    `bandwidth`: of every worker's link, in each direction, a second, as in "100 Mbit" or "12 MB". `latency`: of every
    message. `rows_per_s`: how many rows a worker of speed 1 trains on in a second; `speeds`: a factor for every
    worker, or for some of them. `stragglers`: by worker, how probable a slow update is, and how many times as long it
    takes; `seed` says which ones are slow. `failures`: when workers die, as in `{3: "12.5 s"}`, or pairs of them;
    `restart`: how long it takes until one is back (`None`: it never is). Workers that wait for each other are lost
    together, and begin again if `launch` has `restarts`; one that has joined a center begins again alone.
    """

    bandwidth: str = "10 Gbit"
    latency: str = "50 us"
    rows_per_s: float = 1e5
    speeds: Sequence[float] | Mapping[int, float] = ()
    stragglers: Mapping[int, tuple[float, float]] | None = None
    failures: Mapping[int, str] | Sequence[tuple[int, str]] | None = None
    restart: str | None = "30 s"
    seed: int = 0

    def __post_init__(self) -> None:
        _positive(self.rows_per_s, "rows_per_s")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ConfigError(f"seed= is a whole number, got {self.seed!r}.", argument="seed")
        for name in ("bytes_per_s", "latency_s", "restart_s", "_speeds", "_stragglers", "_failures"):
            getattr(self, name)
        if self.bytes_per_s <= 0:
            raise ConfigError(f"bandwidth= is greater than 0, got {self.bandwidth!r}.", argument="bandwidth")

    @cached_property
    def bytes_per_s(self) -> float:
        return _amount(self.bandwidth, _BYTES, "bandwidth", '"100 Mbit" or "12 MB"')

    @cached_property
    def latency_s(self) -> float:
        return _seconds(self.latency, "latency")

    @cached_property
    def restart_s(self) -> float | None:
        return None if self.restart is None else _seconds(self.restart, "restart")

    def computing_s(self, worker: int, update: int, rows: int) -> float:
        """How long an update of so many rows takes; each worker counts its updates from 0."""
        seconds = rows / (self.rows_per_s * self._speeds.get(worker, 1.0))
        if worker in self._stragglers:
            probability, factor = self._stragglers[worker]
            seconds *= factor if _draw(self.seed, worker, update) < probability else 1.0
        return seconds

    def failures_s(self, worker: int) -> list[float]:
        """When a worker dies."""
        return sorted(time for who, time in self._failures if who == worker)

    def check(self, workers: int) -> None:
        """That what is said of workers is said of those that there are."""
        if not isinstance(self.speeds, Mapping) and len(self.speeds) not in (0, workers):
            raise ConfigError(
                f"speeds= has one factor for each of the {workers} workers, got {len(self.speeds)}.", argument="speeds"
            )
        named: dict[str, Mapping[int, Any]] = {
            "speeds": self._speeds,
            "stragglers": self._stragglers,
            "failures": dict(self._failures),
        }
        for name, of in named.items():
            for worker in of:
                if worker >= workers:
                    raise ConfigError(f"{name}= is of workers 0 to {workers - 1}, got worker {worker}.", argument=name)

    @cached_property
    def _speeds(self) -> dict[int, float]:
        if not isinstance(self.speeds, Mapping | Sequence) or isinstance(self.speeds, str):
            raise ConfigError(
                f"speeds= is a factor for every worker, or a dict of some, got {self.speeds!r}.", argument="speeds"
            )
        given: Any = self.speeds if isinstance(self.speeds, Mapping) else dict(enumerate(self.speeds))
        return {_worker(who, "speeds"): _positive(speed, f"speeds of worker {who}") for who, speed in given.items()}

    @cached_property
    def _stragglers(self) -> dict[int, tuple[float, float]]:
        found: dict[int, tuple[float, float]] = {}
        for who, pair in _pairs(self.stragglers, "stragglers", "{3: (0.1, 5.0)}"):
            numbers: Any = pair if isinstance(pair, Sequence) and len(pair) == 2 else (None, None)
            if not all(map(_is_number, numbers)) or not 0 <= numbers[0] <= 1 or numbers[1] < 1:
                raise ConfigError(
                    f"stragglers= of worker {who} is a probability (0 to 1) and a factor (1 or more), got {pair!r}.",
                    argument="stragglers",
                )
            found[_worker(who, "stragglers")] = (float(numbers[0]), float(numbers[1]))
        return found

    @cached_property
    def _failures(self) -> list[tuple[int, float]]:
        given = _pairs(self.failures, "failures", '{3: "12.5 s"} or [(3, "12.5 s")]')
        return [(_worker(who, "failures"), _seconds(time, f"failures of worker {who}")) for who, time in given]


def _draw(seed: int, worker: int, update: int) -> float:
    """From 0 to 1, always the same for the same update."""
    key = blake2b(f"{seed}/{worker}/{update}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "little") / 2**64


def _pairs(given: Any, what: str, example: str) -> list[tuple[Any, Any]]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given or []
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise ConfigError(f"{what}= looks like {example}, got {given!r}.", argument=what)
    if not all(isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f"{what}= looks like {example}, got {given!r}.", argument=what)
    return [(pair[0], pair[1]) for pair in pairs]


def _amount(given: Any, units: Mapping[str, float], what: str, example: str) -> float:
    match = re.fullmatch(_AMOUNT, given.lower()) if isinstance(given, str) else None
    if match is None:
        raise ConfigError(f"{what}= is a number and a unit, as in {example}, got {given!r}.", argument=what)
    if match[2] not in units:
        raise ConfigError(f"{what}={given!r}: {unknown('unit', match[2], units)}", argument=what)
    return float(match[1]) * units[match[2]]


def _seconds(given: Any, what: str) -> float:
    return _amount(given, _SECONDS, what, '"50 us" or "12.5 s"')


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _positive(value: Any, what: str) -> float:
    if not _is_number(value) or value <= 0:
        raise ConfigError(f"{what}= is a number greater than 0, got {value!r}.", argument=what)
    return float(value)


def _worker(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{what}= names workers by their numbers, 0 or more, got {value!r}.", argument=what)
    return value
