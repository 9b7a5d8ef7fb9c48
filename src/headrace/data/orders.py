"""Orders made of others: a mix of several tables, and batches whose rows have about the same length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

import numpy as np

from ..errors import ConfigError, DataError
from ..length import as_count
from .order import VERSION, Indices, Order, Permutation

ROUND = 1024  # rows of a mix in which the proportions are kept exactly
BATCHES = 64  # whose rows are sorted together: more make lengths more alike, and batches less random


@dataclass(frozen=True)
class _Stage:
    """A part of a mix with constant weights: it begins at position `start` with round `number`."""

    start: int
    number: int
    shares: list[int]
    """Rows of each table in a round."""
    turns: list[int]
    """Rows that each table has given before."""

    def owners(self, first: int, last: int, seed: int) -> Indices:
        """The number of the table that each position of its rounds `first` to `last` has a row of."""
        numbers = np.arange(first * ROUND, last * ROUND)
        tweak = numbers // ROUND + self.number
        slots = Permutation(ROUND, "mix", VERSION, seed)(numbers % ROUND, tweak=tweak)
        found: Indices = np.searchsorted(np.cumsum([0, *self.shares]), slots, side="right") - 1
        return found

    def turns_until(self, position: int, seed: int) -> list[int]:
        """The rows that each table has given before a position of this stage."""
        rounds, rest = divmod(position - self.start, ROUND)
        given = np.bincount(self.owners(rounds, rounds + 1, seed)[:rest], minlength=len(self.shares))
        return [
            before + rounds * share + int(each)
            for before, share, each in zip(self.turns, self.shares, given, strict=True)
        ]


class MixOrder(Order):
    """Which row of the tables, laid end to end, stands at which position: a pure function of (seed, epoch, position).

    Every round of 1024 rows has the same number of each table, in an order of its own. The n-th row that a table has
    given is row n % len of its epoch n // len, so that none is repeated before all have had their turn. `later`: other
    weights, each from a position on, where a round begins.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float],
        *,
        rows: int | None,
        seed: int,
        later: Sequence[tuple[int, Sequence[float]]] = (),
    ) -> None:
        stages = [(0, weights), *later]
        for _, each in stages:
            if len(lengths) != len(each) or len(lengths) < 2:
                raise ConfigError(
                    f"mix() needs two tables or more and a weight for each, got {len(lengths)} and {len(each)}."
                )
            for weight in each:
                if not 0 <= weight < inf or (not weight and not later) or not any(each):
                    raise ConfigError(f"mix(): weights are greater than 0, got {weight}.")
        if not min(lengths):
            raise DataError(f"mix(): table {lengths.index(0)} has no rows.")
        if rows is not None and not as_count(rows):
            raise ConfigError(f"mix(): rows= is a whole number greater than 0, got {rows!r}.")
        self.n, self.seed, self.block, self.mix = as_count(rows) or sum(lengths), seed, ROUND, 1
        self._orders = [Order(n, seed=seed + 1 + k) for k, n in enumerate(lengths)]
        self._firsts = [0, *accumulate(lengths)]
        self._stages = [_Stage(0, 0, _shares(weights), [0] * len(lengths))]
        for start, each in later:
            last = self._stages[-1]
            number = last.number - (last.start - start) // ROUND
            self._stages.append(_Stage(start, number, _shares(each), last.turns_until(start, seed)))
        shown = [":".join(map(str, stage.shares)) for stage in self._stages]
        self.kind = f"mix {shown[0]}" + "".join(f", {shown[k + 1]} from {start}" for k, (start, _) in enumerate(later))

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The rows at positions `start` to `stop` of an epoch."""
        first, last = epoch * self.n + start, epoch * self.n + stop
        ends = [*(stage.start for stage in self._stages[1:]), last]
        parts = [
            self._rows_of(stage, max(first, stage.start), min(last, end))
            for stage, end in zip(self._stages, ends, strict=True)
            if stage.start < last and end > first
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The rows at these positions of an epoch, wherever they are."""
        if not len(positions):
            return positions
        first = int(positions.min())
        return self.indices(epoch, first, int(positions.max()) + 1)[positions - first]

    def positions(self, epoch: int, row: int) -> list[int]:
        """Where a row stands in an epoch: nowhere, once, or more often."""
        k = next(k for k, end in enumerate(self._firsts[1:]) if row < end)
        order, first, last = self._orders[k], epoch * self.n, (epoch + 1) * self.n
        before, after = (self._stage(at).turns_until(at, self.seed)[k] for at in (first, last))
        found = []
        for its in range(before // order.n, -(-after // order.n)):
            turn = its * order.n + (order.positions(its, row - self._firsts[k])[0] if order.n > 1 else 0)
            if before <= turn < after:
                found.append(self._place(k, turn) - first)
        return found

    def _stage(self, position: int) -> _Stage:
        return next(stage for stage in reversed(self._stages) if stage.start <= position)

    def _place(self, k: int, turn: int) -> int:
        """The position at which a table gives a row: its `turn`-th."""
        stage = next(each for each in reversed(self._stages) if each.turns[k] <= turn and each.shares[k])
        number, nth = divmod(turn - stage.turns[k], stage.shares[k])
        owners = stage.owners(number, number + 1, self.seed)
        return stage.start + number * ROUND + int(np.flatnonzero(owners == k)[nth])

    def _rows_of(self, stage: _Stage, start: int, stop: int) -> Indices:
        """The rows at positions of a stage. Each round has as many of a table, so that its turns follow one another."""
        first, last = (start - stage.start) // ROUND, -((stage.start - stop) // ROUND)
        owners = stage.owners(first, last, self.seed)
        rows = np.empty(len(owners), np.int64)
        for k, (before, share) in enumerate(zip(stage.turns, stage.shares, strict=True)):
            if share:
                turns = self._turns(k, before + first * share, before + last * share)
                rows[owners == k] = self._firsts[k] + turns
        skipped = start - stage.start - first * ROUND
        return rows[skipped : skipped + stop - start]

    def _turns(self, k: int, start: int, stop: int) -> Indices:
        """The rows that a table gives at its turns `start` to `stop`, over its own epochs."""
        order, parts = self._orders[k], []
        if order.n == 1:
            return np.zeros(stop - start, np.int64)
        while start < stop:
            epoch, at = divmod(start, order.n)
            until = min(order.n, at + stop - start)
            parts.append(order.indices(epoch, at, until))
            start += until - at
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _shares(weights: Sequence[float]) -> list[int]:
    """Rows of each table in a round, by the largest remainders."""
    exact = np.asarray(weights, dtype=float) / sum(weights) * ROUND
    shares = np.floor(exact).astype(int)
    for k in np.argsort(shares - exact, kind="stable")[: ROUND - int(shares.sum())]:
        shares[k] += 1
    if small := [weight for weight, share in zip(weights, shares, strict=True) if weight and not share]:
        raise ConfigError(f"mix(): weight {small[0]} is less than 1 in {ROUND}. Leave that table out.")
    return [int(share) for share in shares]


class BucketOrder(Order):
    """Another order, in which the rows of every 64 batches are sorted by length, and then these batches are shuffled.

    `lengths`: of the rows of the table. The rows of one length stand in the order that they had.
    """

    def __init__(self, order: Order, stream: str, lengths: Callable[[], Indices], batch_size: int) -> None:
        vars(self).update(vars(order))
        self._order, self._lengths = order, lengths
        self.kind, self.batch_size = f"{order.kind}, {batch_size} of like {stream}", batch_size
        self._known: tuple[int, int, Indices] | None = None  # the epoch and the number of a window, and its rows

    def at(self, epoch: int, positions: Indices) -> Indices:
        rows = np.empty(len(positions), np.int64)
        windows, places = np.divmod(positions, BATCHES * self.batch_size)
        for window in np.unique(windows):
            those = windows == window
            rows[those] = self._window(epoch, int(window))[places[those]]
        return rows

    def positions(self, epoch: int, row: int) -> list[int]:
        window = self._order.positions(epoch, row)[0] // (BATCHES * self.batch_size)
        return [window * BATCHES * self.batch_size + int(np.flatnonzero(self._window(epoch, window) == row)[0])]

    def _window(self, epoch: int, window: int) -> Indices:
        """The rows of a window: sorted, cut into batches, and these in an order of their own; a small one is last."""
        if self._known is not None and self._known[:2] == (epoch, window):
            return self._known[2]
        size = BATCHES * self.batch_size
        rows = self._order.indices(epoch, window * size, min(self.n, (window + 1) * size))
        rows = rows[np.argsort(self._lengths()[rows], kind="stable")]
        if (full := len(rows) // self.batch_size) > 1:
            shuffle = Permutation(full, "buckets", VERSION, self.seed, epoch, window)(np.arange(full))
            batches = rows[: full * self.batch_size].reshape(full, self.batch_size)[shuffle]
            rows = np.concatenate([batches.reshape(-1), rows[full * self.batch_size :]])
        self._known = epoch, window, rows
        return rows
