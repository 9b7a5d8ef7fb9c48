"""Orders in which each of several workers reads whole blocks, and what a table is told of blocks that come up."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, SourceError
from .order import Indices, MixOrder, Order, positions_of
from .source import Table

KINDS = ("blocks", "blocks-only")  # the orders that have blocks in an order of their own
MOST = {"count": 2**16, "unit": 2**62 - 1}

Runs = list[tuple[int, int]]
Track = tuple[int, int, int, int]
"""A lane, from where to where its rows stand in the order without lanes, and where it ends there."""


class Lanes:
    """An order of blocks in `count` lanes, each a run of whole blocks, of which a round takes `unit` rows of each.

    The rounds follow one another: `unit` rows of lane 0, as many of lane 1, and so on. Lanes that are used up drop
    out. So a worker r of `count`, whose shard of a batch is `unit` rows, reads lane r from its beginning on: blocks of
    its own, one after the other. Once a lane is used up, all workers share what is left of the others.

    It has the same rows as the order that it is made of, each of them once an epoch; no order of the workers' is kept.
    Blocks whose rows are shuffled together (`mix`) stay together in a lane.
    """

    def __init__(self, order: Order | MixOrder, count: int, unit: int) -> None:
        for name, number in (("count", count), ("unit", unit)):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST[name]:
                raise ConfigError(f"in_lanes: {name}= is a whole number from 1 to {MOST[name]}, got {number!r}.")
        if not isinstance(order, Order) or order.kind not in KINDS:
            raise ConfigError(f"only an order of shuffled blocks has lanes, got {order.kind!r}.")
        self.order, self.count, self.unit = order, count, unit
        self.n, self.kind, self.seed, self.block, self.mix = order.n, order.kind, order.seed, order.block, order.mix
        self._held: tuple[int, Indices, list[_Phase]] | None = None

    def __str__(self) -> str:
        """As a cursor has it: "4x32"."""
        return f"{self.count}x{self.unit}"

    @classmethod
    def parse(cls, text: object, order: Order | MixOrder) -> "Lanes":
        """Makes the lanes that a cursor names."""
        count, _, unit = str(text).partition("x")
        try:
            return cls(order, int(count), int(unit))
        except ValueError as error:
            raise SourceError(f"this is not the cursor of a Reader: lanes are like '4x32', got {text!r}.") from error

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The rows at positions `start` to `stop` of an epoch."""
        return self.at(epoch, positions_of(self.n, start, stop))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The rows at these positions of an epoch, wherever they are."""
        return self.order.at(epoch, self._inner(epoch, positions))

    def tracks(self, epoch: int, start: int, stop: int) -> Iterator[Track]:
        """The runs of rows, one of each lane, that positions `start` to `stop` come by."""
        inner, cuts = self._inner(epoch, np.arange(start, stop)), self._phases(epoch)[0]
        owners = np.searchsorted(cuts, inner, side="right") - 1
        for lane in np.unique(owners).tolist():
            own = inner[owners == lane]  # one after the other
            yield lane, int(own[0]), int(own[-1]) + 1, int(cuts[lane + 1])

    def _inner(self, epoch: int, positions: Indices) -> Indices:
        """Where these positions stand in the order without lanes."""
        inner = np.empty_like(positions)
        first, last = (positions.min(), positions.max()) if len(positions) else (0, -1)
        for phase in self._phases(epoch)[1]:
            if last < phase.start or phase.stop <= first:
                continue
            whole = phase.start <= first and last < phase.stop
            those: Any = slice(None) if whole else (positions >= phase.start) & (positions < phase.stop)
            rounds, found = np.divmod(positions[those] - phase.start, phase.period)
            owners = np.searchsorted(phase.begins, found, side="right") - 1
            inner[those] = rounds * self.unit + found + phase.moves[owners]
        return inner

    def _phases(self, epoch: int) -> tuple[Indices, list["_Phase"]]:
        """The bounds of the lanes, and the phases of an epoch."""
        held = self._held
        if held is None or held[0] != epoch:
            cuts = self.order.cuts(epoch, self.count)
            held = self._held = epoch, cuts, list(_phases(cuts, min(self.unit, self.n)))
        return held[1:]  # another thread may have put its own there meanwhile


class Ahead:
    """Prefetches rows of a table: those that are shuffled together now, those after them soon.

    `first`: the epoch that is read first, after which all pages have their places, if one epoch comes by all of them.
    """

    def __init__(self, table: Table, order: Order | MixOrder | Lanes, first: int | None = None) -> None:
        self._table, self._order, self._first = table, order, first
        self._told: dict[int, tuple[int, Runs]] = {}  # of each lane: up to where the table knows what comes, and what

    def __call__(self, epoch: int, start: int, stop: int) -> None:
        """Positions `start` to `stop` of an epoch come up."""
        order = self._order
        if isinstance(order, Lanes):
            for track in order.tracks(epoch, start, stop):
                self._follow(order.order, epoch, *track)
        elif isinstance(order, Order):
            self._follow(order, epoch, 0, start, stop, order.n)

    def _follow(self, order: Order, epoch: int, lane: int, start: int, stop: int, end: int) -> None:
        """Positions `start` to `stop` come up, and after them those up to `end`, where the lane ends."""
        before, prefetch = epoch * order.n, self._table.prefetch
        known, coming = self._told.get(lane, (-1, []))
        while known < before + stop:
            at = max(start, known - before)
            if self._first is None or epoch == self._first:
                for run in coming if known == before + at else order.stretches(epoch, at, at + 1):
                    prefetch(*run, now=True)
            after = order.stretch_end(epoch, at)
            coming = order.stretches(epoch, after, after + 1) if after < end else []
            for run in coming:
                prefetch(*run, now=False)
            known = before + after
        self._told[lane] = known, coming


class _Phase(NamedTuple):
    """Rounds that are alike: as many rows of each lane in every one, up to the round in which a lane ends."""

    start: int
    stop: int
    period: int
    """Rows of a round."""
    begins: Indices
    """Where each lane that is not used up begins within a round, and how far its rows are moved to stand in order."""
    moves: Indices


def _phases(cuts: Indices, unit: int) -> Iterator[_Phase]:
    lengths, start = np.diff(cuts), 0
    turns = np.unique(np.concatenate([[0], lengths // unit, -(-lengths // unit)])).tolist()
    for chunk, after in pairwise(turns):
        sizes = np.clip(lengths - chunk * unit, 0, unit)
        lanes = np.flatnonzero(sizes)
        bounds = np.cumsum(sizes[lanes])
        begins, stop = bounds - sizes[lanes], start + (after - chunk) * int(bounds[-1])
        yield _Phase(start, stop, int(bounds[-1]), begins, cuts[lanes] + chunk * unit - begins)
        start = stop
