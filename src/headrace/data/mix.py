"""The order of a mix: rows of several tables in given proportions, each table shuffled and read again and again."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ..errors import ConfigError, DataError
from ..length import whole
from .order import VERSION, Indices, Order, Permutation

ROUND = 1024  # rows in which the proportions are kept exactly


class MixOrder:
    """Which row of the tables, laid end to end, stands at which position: a pure function of (seed, epoch, position).

    Every round of 1024 rows has the same number of each table, in an order of its own. The n-th row that a table has
    given is row n % len of its epoch n // len, so that none is repeated before all have had their turn.
    """

    block, mix = ROUND, 1

    def __init__(self, lengths: Sequence[int], weights: Sequence[float], *, rows: int | None, seed: int) -> None:
        if len(lengths) != len(weights) or len(lengths) < 2:
            raise ConfigError(
                f"mix() needs two tables or more and a weight for each, got {len(lengths)} and {len(weights)}."
            )
        if not min(lengths):
            raise DataError(f"mix(): table {lengths.index(0)} has no rows.")
        for weight in weights:
            if not 0 < weight < math.inf:
                raise ConfigError(f"mix(): weights are greater than 0, got {weight}.")
        if rows is not None and not whole(rows):
            raise ConfigError(f"mix(): rows= is a whole number greater than 0, got {rows!r}.")
        self.n, self.seed = whole(rows) or sum(lengths), seed
        self._shares = _shares(weights)
        self.kind = f"mix {':'.join(map(str, self._shares))}"
        self._orders = [Order(n, seed=seed + 1 + k) for k, n in enumerate(lengths)]
        self._firsts = [0, *accumulate(lengths)]

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The rows at positions `start` to `stop` of an epoch."""
        first, last = epoch * self.n + start, epoch * self.n + stop
        whole = self._rows_of(first // ROUND, -(-last // ROUND))
        return whole[first % ROUND : first % ROUND + last - first]

    def at(self, epoch: int, positions: Indices) -> Indices:
        """The rows at these positions of an epoch, wherever they are."""
        if not len(positions):
            return positions
        first = int(positions.min())
        return self.indices(epoch, first, int(positions.max()) + 1)[positions - first]

    def stretch_end(self, epoch: int, position: int) -> int:
        """Nothing lies together."""
        return self.n

    def stretches(self, epoch: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Rows come from anywhere."""
        return []

    def _rows_of(self, first: int, last: int) -> Indices:
        """The rows of rounds `first` to `last`. Each has as many turns of a table, so that they follow one another."""
        numbers = np.arange(first * ROUND, last * ROUND)
        slots = Permutation(ROUND, "mix", VERSION, self.seed)(numbers % ROUND, tweak=numbers // ROUND)
        owners = np.searchsorted(np.cumsum([0, *self._shares]), slots, side="right") - 1
        rows = np.empty(len(numbers), np.int64)
        for k, share in enumerate(self._shares):
            rows[owners == k] = self._firsts[k] + self._turns(k, first * share, last * share)
        return rows

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
    if not shares.min():
        raise ConfigError(
            f"mix(): weight {weights[int(shares.argmin())]} is less than 1 in {ROUND}. Leave that table out."
        )
    return [int(share) for share in shares]
