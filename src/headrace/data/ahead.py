"""What a table is told of the blocks of rows that come up."""

from .mix_order import MixOrder
from .order import Order
from .source import Table


class Ahead:
    """Prefetches rows of a table: those that are shuffled together now, those after them soon.

    `first`: the epoch that is read first, after which all pages have their places.
    """

    def __init__(self, table: Table, order: Order | MixOrder, first: int) -> None:
        self._table, self._order, self._first = table, order, first
        self._known, self._coming = -1, list[tuple[int, int]]()  # up to where the table knows what comes, and what

    def __call__(self, epoch: int, start: int, stop: int) -> None:
        """Positions `start` to `stop` of an epoch come up."""
        order, prefetch = self._order, self._table.prefetch
        if not isinstance(order, Order):
            return
        before = epoch * order.n
        while self._known < before + stop:
            at = max(start, self._known - before)
            if epoch == self._first:
                for run in self._coming if self._known == before + at else order.stretches(epoch, at, at + 1):
                    prefetch(*run, now=True)
            after = order.stretch_end(epoch, at)
            self._coming = order.stretches(epoch, after, after + 1) if after < order.n else []
            for run in self._coming:
                prefetch(*run, now=False)
            self._known = before + after
