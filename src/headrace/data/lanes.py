"""Orders in which each of several workers reads whole blocks, and what a table is told of blocks that come up."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..errors import ConfigError, SourceError
from .order import Indices, MixOrder, Order
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
        self._held: tuple[int, list[_Phase]] = (-1, [])

    def __str__(self) -> str:
        """As a cursor has it: "4x32"."""
        return f"{self.count}x{self.unit}"

    @classmethod
    def parse(cls, text: object, order: Order | MixOrder) -> "Lanes":
        """The lanes that a cursor tells of."""
        count, _, unit = str(text).partition("x")
        try:
            return cls(order, int(count), int(unit))
        except ValueError as error:
            raise SourceError(f"this is not the cursor of a Reader: lanes are like '4x32', got {text!r}.") from error

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The rows at positions `start` to `stop` of an epoch."""
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"positions {start} to {stop} are not within an epoch of {self.n} rows.")
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The rows at these positions of an epoch, wherever they are."""
        if not len(positions):
            return positions
        phases = self._phases(epoch)
        first, last = (bisect_right(phases, int(p), key=_start) for p in (positions.min(), positions.max()))
        if first == last:
            return self.order.at(epoch, phases[first - 1].inner(positions))
        inner = np.empty_like(positions)
        for phase in phases[first - 1 : last]:
            those = (positions >= phase.start) & (positions < phase.stop)
            inner[those] = phase.inner(positions[those])
        return self.order.at(epoch, inner)

    def tracks(self, epoch: int, start: int, stop: int) -> Iterator[Track]:
        """The runs of rows that positions `start` to `stop` come by; a lane may come up again."""
        phases = self._phases(epoch) if start < stop else []
        for phase in phases[bisect_right(phases, start, key=_start) - 1 :]:
            if phase.start >= stop:
                return
            yield from phase.tracks(max(start, phase.start), min(stop, phase.stop))

    def _phases(self, epoch: int) -> "list[_Phase]":
        known, phases = self._held
        if known != epoch:
            phases = list(_phases(self.order.cuts(epoch, self.count), min(self.unit, self.n)))
            self._held = epoch, phases  # another thread may have put its own there meanwhile
        return phases


class Ahead:
    """Tells a table which rows come up: those that are shuffled together now, those after them soon.

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


class _Phase:
    """Rounds that are alike: as many rows of each lane in every one."""

    def __init__(self, start: int, chunk: int, rounds: int, cuts: Indices, sizes: Indices, unit: int) -> None:
        """`chunk`: how many rounds were before. `cuts`: the lanes' bounds. `sizes`: the rows of each in a round."""
        lanes = np.flatnonzero(sizes)  # those that are not used up
        bounds = np.cumsum(sizes[lanes])
        self.start, self.unit, self.period = start, unit, int(bounds[-1])
        self.stop = start + rounds * self.period
        self._begins = bounds - sizes[lanes]  # of each lane, within a round
        self._firsts = cuts[lanes] + chunk * unit  # where the first round stands in the order without lanes
        self._moves = self._firsts - self._begins
        columns = lanes, self._begins, sizes[lanes], self._firsts, cuts[lanes + 1]
        self._lanes = list(zip(*(column.tolist() for column in columns), strict=True))

    def inner(self, positions: Indices) -> Indices:
        """Where these positions stand in the order without lanes."""
        rounds, found = np.divmod(positions - self.start, self.period)
        owners = np.searchsorted(self._begins, found, side="right") - 1
        found += rounds * self.unit
        found += self._moves[owners]
        return found

    def tracks(self, start: int, stop: int) -> Iterator[Track]:
        """The runs of rows, one of each lane, that these positions come by."""
        (whole, rest), (whole_end, rest_end) = (divmod(at - self.start, self.period) for at in (start, stop))
        owner = bisect_right(self._lanes, rest, key=_begin) - 1
        lane, begin, size, first, end = self._lanes[owner]
        if rest + stop - start <= begin + size:  # as it is for a worker that reads its own lane
            first += whole * size + rest - begin
            yield lane, first, first + stop - start, end
            return
        for lane, begin, size, first, end in self._lanes:
            before, after = (
                n * size + min(max(0, at - begin), size) for n, at in ((whole, rest), (whole_end, rest_end))
            )
            if before < after:
                yield lane, first + before, first + after, end


def _begin(lane: tuple[int, ...]) -> int:
    return lane[1]


def _start(phase: _Phase) -> int:
    return phase.start


def _phases(cuts: Indices, unit: int) -> Iterator[_Phase]:
    """From a round in which a lane ends to the next such, all rounds are alike."""
    lengths = np.diff(cuts)
    turns = np.unique(np.concatenate([[0], lengths // unit, -(-lengths // unit)])).tolist()
    start = 0
    for chunk, after in pairwise(turns):
        sizes = np.clip(lengths - chunk * unit, 0, unit)
        phase = _Phase(start, chunk, after - chunk, cuts, sizes, unit)
        start = phase.stop
        yield phase
