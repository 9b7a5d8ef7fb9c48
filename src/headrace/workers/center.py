"""The center: weights in worker 0 with which workers exchange theirs, and the rows that it leases to them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError, WorkerError
from ..loss.tally import LossSums
from .wire import bytes_of, places, table_of

Body = dict[str, Any]
"""The arguments of a call of the center, or its answer, beside the weights: plain values."""
Merge = Callable[[list[Tensor], list[Tensor]], None]
"""Changes the tensors of the center and those of a worker, which continues with them, both in place."""
Rows = tuple[int, int]
"""Positions from the first to before the second, counted from the beginning of the first epoch."""


class HostWeights:
    """Copies of tensors in one piece of memory on the host: `named` are views of `flat`, which is bytes."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        table = table_of(named)
        self.flat = torch.zeros(bytes_of(table), dtype=torch.uint8)
        self.named = places(table, self.flat)
        self.tensors = [*self.named.values()]
        self.load(named)

    @property
    def memory(self) -> memoryview:
        """All bytes, in place, for messages."""
        flat: Any = self.flat.numpy()
        return memoryview(flat)

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Copies these tensors into the memory."""
        if missing := self.named.keys() - named.keys():
            raise CheckpointError(f"the center's state lacks {min(missing)!r}, which the model has.")
        torch._foreach_copy_(self.tensors, [named[name].detach() for name in self.named])


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
        unused = [*self.free, *(rows for leases in self.out.values() for rows in leases)]
        return self.next - sum(stop - start for start, stop in unused)

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
        """Frees what is out with a worker."""
        self.free = joined([*self.free, *self.out.pop(worker, [])])

    def state_dict(self) -> dict[str, Any]:
        out = [[worker, [list(rows) for rows in leases]] for worker, leases in sorted(self.out.items())]
        return {"rows": self.rows, "next": self.next, "free": [list(rows) for rows in self.free], "out": out}

    def load_state_dict(self, state: Mapping[str, Any], workers: int) -> None:
        """Goes back to a state; what was out with a worker of another number than these is free."""
        if (rows := int(state["rows"])) != self.rows:
            raise ConfigError(
                f"an epoch had {rows} rows when the run was saved, and has {self.rows} now. Read the same data."
            )
        self.next = int(state["next"])
        self.free = [(int(start), int(stop)) for start, stop in state["free"]]
        self.out = {int(worker): [(int(a), int(b)) for a, b in leases] for worker, leases in state["out"]}
        for worker in [worker for worker in self.out if worker >= workers]:
            self.give_back(worker)


def joined(rows: Iterable[Rows]) -> list[Rows]:
    """Positions in order, as few ranges."""
    ranges: list[Rows] = []
    for start, stop in sorted(rows):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = ranges[-1][0], stop
        else:
            ranges.append((start, stop))
    return ranges


class Center:
    """The center itself, in worker 0; `serve` is called by one worker at a time.

    An exchange merges weights and records the rows that they have learnt from in one call, so that the center's
    weights have learnt from exactly the rows that are recorded as used.
    """

    def __init__(self, weights: HostWeights, leases: Leases, merge: Merge, count: int) -> None:
        self.weights, self.leases, self.count = weights, leases, count
        self.exchanges = 0
        self.stop = ""
        """Why all workers are to stop, if one of them has asked for it."""
        self.came: set[int] = set()
        """The workers that have connected."""
        self.gone: set[int] = set()
        """The workers that have left the training."""
        self.lost: int | None = None
        """A worker whose connection has broken."""
        self._sums, self._rows = LossSums(), [0] * count  # what has come since the last report
        self._merge, self._lock, self._failure = merge, threading.Lock(), ""

    def serve(self, worker: int, name: str, body: Body, weights: HostWeights | None = None) -> Body:
        """Answers a call; the weights that come with it become those that the worker continues with.

        "lease": rows to read, or none now; `over` if none will be free any more. "exchange": merges weights. "pull":
        copies the center's. "stop": all workers are to stop. "leave": the worker takes no further part.
        """
        with self._lock:
            if self._failure:
                raise WorkerError(self._failure)
            try:
                return self._serve(worker, name, body, weights)
            except Exception as error:
                self._failure = f"the center failed while it served worker {worker}: {type(error).__name__}: {error}"
                raise

    def _serve(self, worker: int, name: str, body: Body, weights: HostWeights | None) -> Body:
        if name == "lease":
            rows = None if self.stop else self.leases.lease(worker)
            over = rows is None and (bool(self.stop) or not self.leases.out)
            return {"rows": rows, "over": over, "exchanges": self.exchanges}
        if name == "exchange" and weights is not None:
            self._merge(self.weights.tensors, weights.tensors)
            self.leases.use(worker, body["used"])
            self._sums.add_totals(body["terms"])
            self._rows[worker] += body["rows"]
            self.exchanges += 1
        elif name == "pull" and weights is not None:
            weights.flat.copy_(self.weights.flat)
        elif name == "stop":
            self.stop = self.stop or body["why"]
        elif name == "leave":
            self.leases.give_back(worker)
            self.gone.add(worker)
        return self.progress

    @property
    def progress(self) -> Body:
        """How far the training is."""
        return {"samples": self.leases.used, "stop": self.stop}

    def report(self) -> tuple[LossSums, list[int]]:
        """What has come since the last report: loss terms of the other workers, and rows of each worker."""
        with self._lock:
            sums, rows = self._sums, self._rows
            self._sums, self._rows = LossSums(), [0] * self.count
        return sums, rows

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {
                "weights": {name: tensor.clone() for name, tensor in self.weights.named.items()},
                "leases": self.leases.state_dict(),
                "exchanges": self.exchanges,
                "terms": self._sums.totals(),
            }

    def load_state_dict(self, state: Mapping[str, Any], workers: int) -> None:
        """Goes back to a state; so many workers continue where they were, and the rows of others are free."""
        self.leases.load_state_dict(state["leases"], workers)
        self.weights.load(state["weights"])
        self.exchanges = int(state["exchanges"])
        self._sums.add_totals(state["terms"])
