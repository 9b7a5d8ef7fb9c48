"""Who reads which rows, which have been used, and which are free."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .center import Lease, Terms, Wait

Run = tuple[int, int]
"""Positions from the first to before the second."""
Done = Iterable[tuple[int, int, int]]
"""Positions of leases: (lease, start, stop)."""


class Positions:
    """A set of positions, as few runs in order that do not touch."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: list[Run] = [(int(start), int(stop)) for start, stop in runs]

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.runs)

    def covers(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self.runs)

    def add(self, start: int, stop: int) -> None:
        before = [run for run in self.runs if run[1] < start]
        after = [run for run in self.runs if run[0] > stop]
        touched = [(start, stop), *self.runs[len(before) : len(self.runs) - len(after)]]
        self.runs = [*before, (min(run[0] for run in touched), max(run[1] for run in touched)), *after]

    def remove(self, start: int, stop: int) -> None:
        parts = [part for a, b in self.runs for part in ((a, min(b, start)), (max(a, stop), b))]
        self.runs = [(a, b) for a, b in parts if a < b]


@dataclass(slots=True)
class _Leased:
    worker: int
    rest: Positions
    """What has been neither used nor given back."""


class Ledger:
    """Positions from 0 on, counted from the beginning of the first epoch: each is used, leased or free.

    Leases are given from the earliest free position on. They end at multiples of `Terms.lease` within an epoch, so
    that what is given back falls into the same places again. Lease ids are never given twice: a late word about one
    that has been lost is not believed. The state is what has been used, a few runs of it.
    """

    def __init__(self, terms: Terms, first: int = 0) -> None:
        self.terms = terms
        self._next = first
        self._used = Positions()
        self._leases: dict[int, _Leased] = {}
        self._heard: dict[int, float] = {}

    @property
    def samples(self) -> int:
        """Rows that have been used."""
        return len(self._used)

    @property
    def epochs(self) -> int:
        """Epochs of which all rows have been used."""
        rows = self.terms.rows
        return sum(max(0, stop // rows + -start // rows) for start, stop in self._used.runs)

    @property
    def leases(self) -> dict[int, list[Run]]:
        """What each worker still has to read."""
        found: dict[int, list[Run]] = {}
        for leased in self._leases.values():
            found.setdefault(leased.worker, []).extend(leased.rest.runs)
        return found

    def lease(self, worker: int) -> Lease | Wait | None:
        """The earliest rows that are free; `Wait` if all are leased, `None` if all have been used."""
        start, gap = self._first_free()
        rows, end = self.terms.rows, self.terms.end
        if end is not None and start >= end:
            return Wait() if self._leases else None
        epoch = start // rows * rows
        place = epoch + ((start - epoch) // self.terms.lease + 1) * self.terms.lease
        stop = min(bound for bound in (place, epoch + rows, gap, end) if bound is not None)
        self._next += 1
        self._leases[self._next] = _Leased(worker, Positions([(start, stop)]))
        return Lease(self._next, start, stop)

    def holds(self, worker: int, done: Done) -> bool:
        """Whether all of these are this worker's to use, once."""
        left: dict[int, Positions] = {}
        for lease, start, stop in done:
            leased = self._leases.get(lease)
            if leased is None or leased.worker != worker or start >= stop:
                return False
            rest = left.setdefault(lease, copy.copy(leased.rest))
            if not rest.covers(start, stop):
                return False
            rest.remove(start, stop)
        return True

    def use(self, worker: int, done: Done) -> bool:
        """Records rows as used, all or none of them: none if a lease is not this worker's, or they have been used."""
        done = list(done)
        if not self.holds(worker, done):
            return False
        for lease, start, stop in done:
            self._used.add(start, stop)
            self._take(lease, start, stop)
        return True

    def free(self, worker: int, done: Done) -> None:
        """Rows that were read in vain, as far as they are still this worker's: others may read them."""
        for lease, start, stop in done:
            if lease in self._leases and self._leases[lease].worker == worker:
                self._take(lease, start, stop)

    def has(self, worker: int, lease: int) -> bool:
        """Whether a lease is this worker's."""
        return lease in self._leases and self._leases[lease].worker == worker

    def leave(self, worker: int) -> None:
        """What a worker has leased is free."""
        self._leases = {lease: leased for lease, leased in self._leases.items() if leased.worker != worker}

    def hear(self, worker: int, now: float) -> None:
        """A worker has been heard of, at this time in seconds."""
        self._heard[worker] = now

    def expire(self, now: float, timeout_s: float) -> list[int]:
        """What workers have leased of whom nothing has been heard for so long is free; who they were."""
        silent = {leased.worker for leased in self._leases.values()}
        silent = {worker for worker in silent if now - self._heard.setdefault(worker, now) > timeout_s}
        for worker in silent:
            self.leave(worker)
        return sorted(silent)

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"used": _listed(self._used), "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; what was leased is free."""
        self._used, self._leases = Positions(state["used"]), {}
        self._next = max(self._next, int(state["next"]))
        self._heard = {}

    def _take(self, lease: int, start: int, stop: int) -> None:
        rest = self._leases[lease].rest
        rest.remove(start, stop)
        if not rest.runs:
            del self._leases[lease]

    def _first_free(self) -> tuple[int, int | None]:
        """The earliest free position, and where the free ones after it end, if they do."""
        at = 0
        for start, stop in sorted([*self._used.runs, *(run for leased in self.leases.values() for run in leased)]):
            if start > at:
                return at, start
            at = max(at, stop)
        return at, None


def _listed(positions: Positions) -> list[list[int]]:
    return [list(run) for run in positions.runs]
