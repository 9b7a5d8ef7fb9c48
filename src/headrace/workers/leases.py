"""Which rows are free, which are out with a worker, and which have been used."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import WorkerError

Rows = tuple[int, int]
"""Positions from the first to before the second, counted from the beginning of the first epoch."""


class Leases:
    """Every position before `next` is `free`, `out` with a worker, or used; those from `next` on are free.

    Leases are given from the earliest free position on, up to position `end`. They hold `size` rows, and end at
    multiples of it within an epoch of `rows` rows, so that what is given back falls into the same places.
    """

    def __init__(self, rows: int, size: int, end: int | None = None) -> None:
        self.rows, self.size, self.end = rows, size, end
        self.next = 0
        self.free: list[Rows] = []
        self.out: dict[int, list[Rows]] = {}

    @property
    def used(self) -> int:
        """How many rows have been used."""
        return self.next - sum(stop - start for start, stop in self._unused())

    @property
    def epochs(self) -> int:
        """Epochs of which, as of all before, every row has been used."""
        return min([self.next, *(start for start, _ in self._unused())]) // self.rows

    def lease(self, worker: int) -> Rows | None:
        """The earliest free rows, for this worker; `None` if there are none now."""
        start, gap = self.free[0] if self.free else (self.next, None)
        if self.end is not None and start >= self.end:
            return None
        epoch = start // self.rows * self.rows
        place = epoch + ((start - epoch) // self.size + 1) * self.size
        stop = min(bound for bound in (place, epoch + self.rows, gap, self.end) if bound is not None)
        if gap is None:
            self.next = stop
        else:
            self.free[:1] = [(stop, gap)] if stop < gap else []
        self.out[worker] = joined([*self.out.get(worker, []), (start, stop)])
        return start, stop

    def use(self, worker: int, used: Iterable[Rows]) -> None:
        """Records rows as used, which are out with this worker."""
        for start, stop in used:
            mine = self.out.get(worker, [])
            leased = next(((first, last) for first, last in mine if first <= start < stop <= last), None)
            if leased is None:
                raise WorkerError(f"worker {worker} has used rows {start} to {stop}, which were not leased to it.")
            rest = [(leased[0], start), (stop, leased[1])]
            self.out[worker] = joined([*(rows for rows in [*mine, *rest] if rows != leased and rows[0] < rows[1])])
        if not self.out.get(worker):
            self.out.pop(worker, None)

    def give_back(self, worker: int) -> None:
        """What is out with a worker is free."""
        self.free = joined([*self.free, *self.out.pop(worker, [])])

    def state_dict(self) -> dict[str, Any]:
        out = [[worker, [list(rows) for rows in leases]] for worker, leases in sorted(self.out.items())]
        return {"rows": self.rows, "next": self.next, "free": [list(rows) for rows in self.free], "out": out}

    def load_state_dict(self, state: Mapping[str, Any], workers: int) -> None:
        """Goes back to a state; what was out with a worker of another number than these is free."""
        self.next = int(state["next"])
        self.free = [(int(start), int(stop)) for start, stop in state["free"]]
        self.out = {int(worker): [(int(a), int(b)) for a, b in leases] for worker, leases in state["out"]}
        for worker in [worker for worker in self.out if worker >= workers]:
            self.give_back(worker)

    def _unused(self) -> list[Rows]:
        return [*self.free, *(rows for leases in self.out.values() for rows in leases)]


def joined(rows: Iterable[Rows]) -> list[Rows]:
    """Positions in order, as few ranges."""
    found: list[Rows] = []
    for start, stop in sorted(rows):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found
