"""What a table is told of the rows that come up, before they are taken."""

from .order import MixOrder, Order
from .source import Table

Runs = list[tuple[int, int]]


class Ahead:
    """Tells a table which rows come up: those that are shuffled together now, those after them soon.

    `first`: the epoch that is read first, after which all pages have their places, if one epoch comes by all of them.
    """

    def __init__(self, table: Table, order: Order | MixOrder, first: int | None = None) -> None:
        self._table, self._order, self._first = table, order, first
        self._told = 0  # the position up to which the table knows what comes, counted from the first epoch on
        self._coming: tuple[int, Runs] = (-1, [])

    def __call__(self, epoch: int, start: int, stop: int, end: int | None = None) -> None:
        """Positions `start` to `stop` of an epoch come up, and after them those up to `end`."""
        order, first = self._order, epoch * self._order.n
        while self._told < first + stop:
            at = max(start, self._told - first)
            known, runs = self._coming
            if self._first is None or epoch == self._first:
                for run in runs if known == first + at else order.stretches(epoch, at, at + 1):
                    self._table.prefetch(*run, now=True)
            after = order.stretch_end(epoch, at)
            coming = order.stretches(epoch, after, after + 1) if after < (end or order.n) else []
            for run in coming:
                self._table.prefetch(*run, now=False)
            self._told, self._coming = first + after, (first + after, coming)
