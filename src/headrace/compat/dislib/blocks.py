"""Reads blocks of rows as dislib's workers do: a whole block each, in as many batches as are asked for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...data.order import Order
from ...data.reader import Reader
from ...data.shard import Shard
from ...data.source import Table

Indices = np.ndarray[Any, Any]


class Shuffle(NamedTuple):
    """What an epoch shuffles: the order of the blocks, the rows within each, or, instead, the rows of all blocks."""

    blocks: bool = True
    rows: bool = True
    total: bool = False


class BlockReader(Reader):
    """Reads a table of blocks, which follow one another and have these lengths, in `batches` batches a block.

    Of the blocks in an epoch's order, worker j of `workers` reads numbers j, j + workers, and so on. A block is cut as
    `numpy.array_split` cuts it; what is empty is left out. With one worker a batch is a part of one block.
    The size that is asked for is ignored.
    """

    order: "_BlockOrder"

    def __init__(
        self, table: Table, lengths: Sequence[int], batches: int, workers: int, shuffle: Shuffle, seed: int
    ) -> None:
        super().__init__(table, _BlockOrder(list(lengths), batches, workers, shuffle, seed))

    def cuts(self, start: int, size: int, batches: int) -> list[int]:
        epoch, at = divmod(start, self.order.n)
        bounds = [*self.order.layout(epoch).bounds.tolist(), self.order.n]
        first, end = bounds.index(at), self.epoch_end(start)
        found = [epoch * self.order.n + bound for bound in bounds[first : first + batches + 1]]
        return [cut for cut in found if cut <= end]

    def part(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        epoch, at = divmod(start, self.order.n)
        layout = self.order.layout(epoch)
        begins = layout.parts[np.searchsorted(layout.bounds, at)] + epoch * self.order.n
        return int(begins[shard.index]), int(begins[shard.index + 1])

    def batches(self, size: int) -> int | None:
        order = self.order
        return len(order.layout(0).bounds) if order.batches <= min(order.lengths) else None


class _Layout(NamedTuple):
    """An epoch: the row at each position, where batches begin and end, and each worker's part of them."""

    rows: Indices
    bounds: Indices
    parts: Indices
    """Of each batch, where the parts of its workers begin, and where the last one ends."""


class _BlockOrder(Order):
    """Which row stands where: as many blocks at a time as there are workers, batch by batch."""

    def __init__(self, lengths: list[int], batches: int, workers: int, shuffle: Shuffle, seed: int) -> None:
        super().__init__(sum(lengths), seed=seed)
        self.kind = f"dislib, {batches} batches a block, {workers} at a time, shuffled: {shuffle}"
        self.lengths, self.batches, self.workers, self.shuffle = lengths, batches, workers, shuffle
        self._laid_out: tuple[int, _Layout] | None = None

    def at(self, epoch: int, positions: Indices) -> Indices:
        return self.layout(epoch).rows[positions]

    def layout(self, epoch: int) -> _Layout:
        """How an epoch is read: a function of the seed and the epoch."""
        held = self._laid_out
        if held is None or held[0] != epoch:
            held = self._laid_out = epoch, self._lay_out(epoch)
        return held[1]  # another thread may have put its own there meanwhile

    def _lay_out(self, epoch: int) -> _Layout:
        draw = np.random.default_rng([self.seed, epoch])
        rows: Any = draw.permutation(self.n) if self.shuffle.total else np.arange(self.n)
        blocks = np.split(rows, np.cumsum(self.lengths)[:-1])
        if self.shuffle.blocks:
            blocks = [blocks[k] for k in draw.permutation(len(blocks))]
        if self.shuffle.rows:
            blocks = [draw.permutation(block) for block in blocks]
        blocks += [rows[:0]] * (-len(blocks) % self.workers)  # in the last round, some workers may have none
        cut = [np.array_split(block, self.batches) for block in blocks]
        rounds = [cut[start : start + self.workers] for start in range(0, len(cut), self.workers)]
        parts = [[block[k] for block in of_round] for of_round in rounds for k in range(self.batches)]
        sizes = np.array([[len(part) for part in of_batch] for of_batch in parts])
        ends = sizes.cumsum().reshape(sizes.shape)
        begins = np.hstack([ends[:, :1] - sizes[:, :1], ends])[sizes.any(axis=1)]
        return _Layout(np.concatenate([part for batch in parts for part in batch]), begins[:, 0], begins)
