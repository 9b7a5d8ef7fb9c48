"""Where the minibatches of a Reader begin and end: a size in rows, or in items of whole sequences.

Positions count rows from the beginning of the first epoch, in the order in which they are read. A cut depends on
nothing but the cut before it, so that batches are the same however many are asked for together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import SourceError
from .source import Shard, Table

STRETCH = 8192
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """What may be read: epochs of `rows` rows up to position `end`, one batch reaching into the next epoch or not."""

    rows: int
    crosses: bool
    end: int | None

    def reach(self, start: int) -> int:
        """The furthest position that a batch beginning here may end at; it crosses one end of an epoch at most."""
        end = (start // self.rows + 1) * self.rows
        reach = end + (self.rows - 1 if self.crosses else 0)
        return reach if self.end is None else min(reach, self.end)

    def epoch_end(self, start: int) -> int:
        """The end of the epoch of this position."""
        reach = (start // self.rows + 1) * self.rows
        return reach if self.end is None else min(reach, self.end)


class Packing(ABC):
    """Cuts a stretch of rows into batches, and a batch into shards."""

    rows_per_item = 1.0
    """How many rows have an item of what sizes count, on average."""

    @abstractmethod
    def cuts(self, start: int, size: int, batches: int, span: Span) -> list[int]:
        """The bounds of at most so many batches from `start` on, up to the one that ends the epoch."""

    @abstractmethod
    def shard(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        """A shard's part of the batch between these bounds."""

    @abstractmethod
    def batches(self, size: int, span: Span) -> int | None:
        """How many batches an epoch has, if they are the same number in each."""


class ByRows(Packing):
    """A size in rows."""

    def cuts(self, start: int, size: int, batches: int, span: Span) -> list[int]:
        end = span.epoch_end(start)
        whole = min(batches, -(-(end - start) // size))
        cuts = list(range(start, start + whole * size, size))
        return [*cuts, min(cuts[-1] + size, span.reach(cuts[-1]))]

    def shard(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        first, last = shard.of(stop - start)
        return start + first, start + last

    def batches(self, size: int, span: Span) -> int | None:
        rows, end = span.epoch_end(0), span.end or 0
        alike = end % span.rows == 0 and (not span.crosses or span.rows % size == 0)
        return -(-rows // size) if alike or rows == end else None


class ByItems(Packing):
    """A size in items of a sequence stream: whole sequences, as many as fit, at least one."""

    def __init__(self, table: Table, stream: str, order: Callable[[int, int], Numbers]) -> None:
        self._lengths: Numbers = torch.as_tensor(table.lengths(stream)).numpy()
        if len(self._lengths) != len(table):
            raise SourceError(
                f"{type(table).__name__}.lengths({stream!r}) gave {len(self._lengths)} numbers for {len(table)} rows."
            )
        self._order = order
        self.rows_per_item = len(table) / max(1, int(self._lengths.sum()))
        self._held: tuple[int, Numbers] = (0, np.zeros(1, np.int64))

    def cuts(self, start: int, size: int, batches: int, span: Span) -> list[int]:
        cuts, end = [start], span.epoch_end(start)
        while len(cuts) <= batches and cuts[-1] < end:
            cuts.append(self._next(cuts[-1], size, span.reach(cuts[-1])))
        return cuts

    def shard(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        sums = self._sums(start, stop, stop)
        return start + self._cut(sums, shard.index, shard.count), start + self._cut(sums, shard.index + 1, shard.count)

    def batches(self, size: int, span: Span) -> int | None:
        return None

    def _next(self, start: int, size: int, reach: int) -> int:
        """The end of the batch that begins here."""
        seen = 1
        while True:
            sums = self._sums(start, min(reach, start + seen), reach)
            fitting = int(np.searchsorted(sums, sums[0] + size, side="right")) - 1
            if fitting < len(sums) - 1 or start + fitting >= reach:
                return start + max(1, fitting)
            seen = 2 * len(sums)

    def _sums(self, start: int, stop: int, reach: int) -> Numbers:
        """How many items come before each position from `start` to `stop`, and on to `reach` as far as it is known.

        They are computed a stretch at a time and counted from somewhere.
        """
        first, sums = self._held
        if not first <= start <= stop < first + len(sums):
            ahead = max(stop, min(reach, start + STRETCH))
            sums = np.zeros(ahead - start + 1, np.int64)
            np.cumsum(self._lengths[self._order(start, ahead)], out=sums[1:])
            first, self._held = start, (start, sums)
        return sums[start - first : reach - first + 1]

    @staticmethod
    def _cut(sums: Numbers, part: int, parts: int) -> int:
        """The cut before which the items come closest to `part` of `parts`; of two, the first."""
        if part in (0, parts):
            return part and len(sums) - 1
        target = sums[0] + (sums[-1] - sums[0]) * part / parts
        after = int(np.searchsorted(sums, target))
        return after - (after > 0 and target - sums[after - 1] <= sums[after] - target)
