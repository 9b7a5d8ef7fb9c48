"""An order in which the rows of a batch have about the same length, as a pure function of (seed, epoch, position)."""

from collections.abc import Callable

import numpy as np

from .order import VERSION, Indices, Order, Permutation, positions_of

BATCHES = 64  # whose rows are sorted together: more make lengths more alike, and batches less random


class BucketOrder(Order):
    """Another order, in which the rows of every 64 batches are sorted by length, and then these batches are shuffled.

    `lengths`: of the rows of the table. The rows of one length stand in the order that they had.
    """

    def __init__(self, order: Order, stream: str, lengths: Callable[[], Indices], batch_size: int) -> None:
        vars(self).update(vars(order))
        self._order, self._lengths = order, lengths
        self.kind, self.batch_size = f"{order.kind}, {batch_size} of like {stream}", batch_size
        self._known: tuple[int, int, Indices] | None = None  # the epoch and the number of a window, and its rows

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        return self.at(epoch, positions_of(self.n, start, stop))

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
