"""What a center records: which rows are leased or used, which workers take part, and what became of their pushes."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from .center import Lease, LeaseTerms, NothingYet, Push, add_terms

Range = tuple[int, int]
"""Positions from the first to before the second."""
Done = Iterable[tuple[int, int, int]]
"""Positions of leases: (lease, start, stop)."""


class Ranges:
    """A set of positions, as few ranges in order that do not touch."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges: list[Range] = [(int(start), int(stop)) for start, stop in ranges]

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def covers(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self.ranges)

    def add(self, start: int, stop: int) -> None:
        before = [run for run in self.ranges if run[1] < start]
        after = [run for run in self.ranges if run[0] > stop]
        touched = [(start, stop), *self.ranges[len(before) : len(self.ranges) - len(after)]]
        self.ranges = [*before, (min(run[0] for run in touched), max(run[1] for run in touched)), *after]

    def remove(self, start: int, stop: int) -> None:
        parts = [part for a, b in self.ranges for part in ((a, min(b, start)), (max(a, stop), b))]
        self.ranges = [(a, b) for a, b in parts if a < b]


@dataclass(slots=True)
class _Leased:
    worker: int
    rest: Ranges
    """What has been neither used nor given back."""


class Ledger:
    """Positions from 0 on, counted from the beginning of the first epoch: each is used, leased or free.

    Leases are given from the earliest free position on. They end at multiples of `LeaseTerms.lease` within an epoch, so
    that what is given back falls into the same places again. Lease ids are never given twice: what comes late
    about one that has been lost is ignored. The state is what has been used, a few ranges of it.
    """

    def __init__(self, terms: LeaseTerms, first: int = 0) -> None:
        self.terms = terms
        self._next = first
        self._used = Ranges()
        self._leases: dict[int, _Leased] = {}

    @property
    def samples(self) -> int:
        """Rows that have been used."""
        return len(self._used)

    @property
    def epochs(self) -> int:
        """Epochs of which all rows have been used."""
        rows = self.terms.rows
        return sum(max(0, stop // rows + -start // rows) for start, stop in self._used.ranges)

    @property
    def leases(self) -> dict[int, list[Range]]:
        """What each worker still has to read."""
        found: dict[int, list[Range]] = {}
        for leased in self._leases.values():
            found.setdefault(leased.worker, []).extend(leased.rest.ranges)
        return found

    def lease(self, worker: int) -> Lease | NothingYet | None:
        """The earliest rows that are free; `NothingYet` if all are leased, `None` if all have been used."""
        start, gap = self._first_free()
        rows, end = self.terms.rows, self.terms.end
        if end is not None and start >= end:
            return NothingYet() if self._leases else None
        epoch = start // rows * rows
        place = epoch + ((start - epoch) // self.terms.lease + 1) * self.terms.lease
        stop = min(bound for bound in (place, epoch + rows, gap, end) if bound is not None)
        self._next += 1
        self._leases[self._next] = _Leased(worker, Ranges([(start, stop)]))
        return Lease(self._next, start, stop)

    def holds(self, worker: int, done: Done) -> bool:
        """Whether all of these are this worker's to use, once."""
        left: dict[int, Ranges] = {}
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

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"used": [list(run) for run in self._used.ranges], "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; what was leased is free."""
        self._used, self._leases = Ranges(state["used"]), {}
        self._next = max(self._next, int(state["next"]))

    def _take(self, lease: int, start: int, stop: int) -> None:
        rest = self._leases[lease].rest
        rest.remove(start, stop)
        if not rest.ranges:
            del self._leases[lease]

    def _first_free(self) -> tuple[int, int | None]:
        """The earliest free position, and where the free ones after it end, if they do."""
        at = 0
        for start, stop in sorted([*self._used.ranges, *(run for leased in self.leases.values() for run in leased)]):
            if start > at:
                return at, start
            at = max(at, stop)
        return at, None


@dataclass(slots=True)
class Member:
    """The center's record of a worker."""

    sequence: int = 0
    """Its last push that has been judged: one that comes again is not applied again."""
    taken: bool = True
    """Whether that one was applied."""
    pushes: int = 0
    rows: int = 0
    """Rows that the center has learnt from it."""
    called_s: float = 0.0
    """When it last called, in seconds."""
    inside: bool = False
    """Whether it has joined the training and has not left it."""
    asked: tuple[int, Lease] | None = None
    """The number of its last request for rows, and what it was given."""

    @property
    def kept(self) -> list[Any]:
        """What outlives the center."""
        return [self.sequence, self.taken, self.pushes, self.rows]


class Members:
    """Which workers are in a training, and what each has last done there."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}

    def __getitem__(self, worker: int) -> Member:
        return self.members.setdefault(worker, Member())

    def inside(self, since: float = -inf) -> tuple[int, ...]:
        """The workers in the training that have called since then."""
        return tuple(sorted(k for k, member in self.members.items() if member.inside and member.called_s >= since))

    def last_call_s(self, workers: Iterable[int]) -> float:
        """When one of these workers called last."""
        return max((self.members[worker].called_s for worker in workers if worker in self.members), default=0.0)

    def enter(self, worker: int, now: float) -> Member:
        member = self[worker]
        member.inside, member.called_s = True, now
        return member

    def leave(self, worker: int) -> None:
        if worker in self.members:
            self.members[worker].inside = False

    def state_dict(self) -> list[list[Any]]:
        return [[worker, *member.kept] for worker, member in sorted(self.members.items())]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        self.members = {
            int(worker): Member(int(sequence), bool(taken), int(pushes), int(rows))
            for worker, sequence, taken, pushes, rows in state
        }


@dataclass(slots=True)
class Counts:
    """What has become of pushes."""

    applied: int = 0
    dropped: int = 0
    """Not taken, because they were too old, or because of `lost`."""
    lost: int = 0
    """Not taken, because their rows were no longer their worker's."""
    repeated: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    """How many pushes had each."""
    tally: dict[str, list[float]] = field(default_factory=dict)
    """Coefficient, sum and weight of the loss terms that came with those that were applied."""

    def add(self, push: Push) -> None:
        """A push has been applied."""
        self.applied += 1
        for name, (coefficient, total, weight) in push.tally.items():
            add_terms(self.tally, name, coefficient, total, weight)

    def state_dict(self) -> dict[str, Any]:
        return {
            "pushes": [self.applied, self.dropped, self.lost, self.repeated],
            "staleness": [[staleness, count] for staleness, count in sorted(self.staleness.items())],
            "tally": {name: list(numbers) for name, numbers in self.tally.items()},
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Counts":
        applied, dropped, lost, repeated = map(int, state["pushes"])
        staleness = {int(age): int(count) for age, count in state["staleness"]}
        tally = {name: [float(number) for number in numbers] for name, numbers in state["tally"].items()}
        return cls(applied, dropped, lost, repeated, staleness, tally)
