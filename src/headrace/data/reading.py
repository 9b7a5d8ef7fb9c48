"""Computes which rows of a table stand at which position, and where batches begin and end: pure functions.

Positions count rows from the beginning of the first epoch, in the order in which they are read. A cut depends on
nothing but the cut before it, so that batches are the same however many are asked for together.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch

from ..errors import ConfigError, SourceError
from ..length import as_count
from .batch import Batch, Macrobatch, State, Stream
from .fields import Field, cat
from .maps import Augmentation, Change
from .order import VERSION, Indices, Order
from .shard import WHOLE, Shard
from .source import Table, check_batch
from .views import digest

STRETCH = 8192  # positions whose rows are computed together, which is cheaper
BY_BLOCKS = ("blocks", "blocks-only", "rows-only")
OF_RUN = ("epoch", "position")  # what a cursor says of its run, rather than of what is read
OF_OTHERS = 2048  # rows of other workers that are worth a call of its own to leave out


@dataclass(frozen=True)
class Reading:
    """A table read in an order, epoch after epoch, up to position `end`.

    A size counts rows, or the items of the sequence stream `count`: whole sequences, as many as fit, at least one.
    `crosses`: a batch may reach into the next epoch.
    """

    table: Table
    order: Order
    """The order in which rows are read."""
    count: str = "rows"
    crosses: bool = False
    end: int | None = None
    marked: bool = True
    """Whether cursors hold the table's fingerprint, which those of data that are read once have no use for."""
    augment: Change | None = None
    """What is done to the rows on the device."""
    augmentation: Augmentation | None = field(init=False)
    fingerprint: str = field(init=False)
    _computed: dict[str, tuple[int, Indices]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        changes = None if self.augment is None else Augmentation(self.augment, self.table, self.count)
        object.__setattr__(self, "augmentation", changes)
        known = self.table.fingerprint() if self.marked else ""
        object.__setattr__(self, "fingerprint", digest("map", known, changes.name) if changes and known else known)
        if self.count != "rows" and len(self._lengths) != len(self.table):
            raise SourceError(
                f"{type(self.table).__name__}.lengths({self.count!r}) gave {len(self._lengths)} numbers for "
                f"{len(self.table)} rows."
            )

    @cached_property
    def rows_per_item(self) -> float:
        """How many rows an item has of what sizes count, on average."""
        return 1.0 if self.count == "rows" else len(self.table) / max(1, int(self._lengths.sum()))

    @property
    def streams(self) -> Sequence[Stream]:
        """What batches hold."""
        return self.table.streams if self.augmentation is None else self.augmentation.streams

    @property
    def thread_safe(self) -> bool:
        """Whether another thread may read, and change, the rows."""
        return self.table.thread_safe and (self.augmentation is None or self.augmentation.thread_safe)

    def until(self, stop: int) -> "Reading":
        """The same reading, where nothing behind this position is read or computed ahead either."""
        found = copy.copy(self)
        object.__setattr__(found, "end", stop if self.end is None else min(stop, self.end))
        return found

    # --- cursors ---

    def cursor(self, at: int) -> State:
        """The cursor of a position: a few integers and names."""
        epoch, position = divmod(at, self.order.n)
        return {**self._start, "epoch": epoch, "position": position}

    @cached_property
    def _start(self) -> State:
        """The cursor of the first position."""
        order = self.order
        start: State = {"version": VERSION, "seed": order.seed, "order": order.kind, "epoch": 0, "position": 0}
        start |= {"rows": order.n, "block": order.block, "mix": order.mix, "count": self.count}
        return {**start, "cross_epochs": int(self.crosses), "fingerprint": self.fingerprint}

    def position(self, cursor: State) -> int:
        """The position of a cursor."""
        expected = self.cursor(0)
        if missing := [key for key in expected if key not in cursor]:
            raise SourceError(f"this is not the cursor of a Reader: it lacks {', '.join(missing)}.")
        if "lanes" in cursor:
            raise SourceError("this cursor is of a version in which workers read blocks in lanes: begin another run.")
        differ = [k for k in expected if k not in OF_RUN and cursor.get(k) != expected[k]]
        if differ:
            listed = "; ".join(f"{k}: saved {cursor.get(k)!r}, now {expected[k]!r}" for k in differ)
            advice = "Read the same table, or say override=True (--override) to go on with this one."
            if "rows" in differ:
                advice = "A run goes on with as many rows as it had: read the same table, or begin another run."
            raise SourceError(f"this cursor belongs to other data or another order ({listed}). {advice}")
        return int(cursor["epoch"]) * self.order.n + int(cursor["position"])

    # --- where batches begin and end ---

    def epoch_end(self, start: int) -> int:
        """The end of the epoch of this position."""
        reach = (start // self.order.n + 1) * self.order.n
        return reach if self.end is None else min(reach, self.end)

    def cuts(self, start: int, size: int, batches: int) -> list[int]:
        """The bounds of at most so many batches from `start` on, up to the one that ends the epoch."""
        end = self.epoch_end(start)
        if self.count == "rows":
            most = min(batches, -(-(end - start) // size))
            cuts = list(range(start, start + most * size, size))
            return [*cuts, min(cuts[-1] + size, self._reach(cuts[-1]))]
        cuts = [start]
        while len(cuts) <= batches and cuts[-1] < end:
            cuts.append(self._fitting(cuts[-1], size))
        return cuts

    def part(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        """A shard's part of the batch between these bounds."""
        if self.count == "rows" or shard.parts:
            first, last = shard.of(stop - start)
            return start + first, start + last
        sums = self._sums(start, stop, stop)
        return start + _even(sums, shard.index, shard.count), start + _even(sums, shard.index + 1, shard.count)

    def batches(self, size: int) -> int | None:
        """How many batches an epoch has, if they are the same number in each."""
        n, rows, end = self.order.n, self.epoch_end(0), self.end or 0
        alike = end % n == 0 and (not self.crosses or n % size == 0)
        return -(-rows // size) if self.count == "rows" and (alike or rows == end) else None

    def _reach(self, start: int) -> int:
        """The furthest position that a batch beginning here may end at; it crosses one end of an epoch at most."""
        n = self.order.n
        reach = (start // n + 1) * n + (n - 1 if self.crosses else 0)
        return reach if self.end is None else min(reach, self.end)

    def _fitting(self, start: int, size: int) -> int:
        """The end of the batch of items that begins here."""
        reach, seen = self._reach(start), 1
        while True:
            sums = self._sums(start, min(reach, start + seen), reach)
            fitting = int(np.searchsorted(sums, sums[0] + size, side="right")) - 1
            if fitting < len(sums) - 1 or start + fitting >= reach:
                return start + max(1, fitting)
            seen = 2 * len(sums)

    @cached_property
    def _lengths(self) -> Indices:
        """How many items every row of the table has."""
        return torch.as_tensor(self.table.lengths(self.count)).numpy()

    def _sums(self, start: int, stop: int, reach: int) -> Indices:
        """How many items come before each position from `start` to `stop`, and on to `reach` as far as it is known.

        They are computed a stretch at a time and counted from somewhere.
        """
        first, sums = self._computed.get("sums", (0, np.zeros(1, np.int64)))
        if not first <= start <= stop < first + len(sums):
            ahead = max(stop, min(reach, start + STRETCH))
            sums = np.zeros(ahead - start + 1, np.int64)
            np.cumsum(self._lengths[self.rows(start, ahead)], out=sums[1:])
            first, self._computed["sums"] = start, (start, sums)
        return sums[start - first : reach - first + 1]

    # --- rows ---

    def rows(self, start: int, stop: int) -> Indices:
        """The rows at these positions, computed a longer stretch at a time and kept until used."""
        first, held = self._computed.get("rows", (0, np.empty(0, np.int64)))
        if not first <= start <= stop <= first + len(held):
            ends = self.epoch_end(max(start, stop - 1))  # looking ahead ends with the epoch
            pieces = self._by_epoch(start, max(stop, min(start + STRETCH, ends)))
            held = np.concatenate([self.order.indices(*piece) for piece in pieces])
            first, self._computed["rows"] = start, (start, held)
        return held[start - first : stop - first]

    def fetch(self, start: int, size: int, rows: int = 0, shard: Shard = WHOLE) -> Macrobatch | None:
        """The batches from `start` on, at least one, of together about `rows` rows; `None` at the end."""
        if not (found := as_count(size)):
            raise ConfigError(f"a batch has at least one {'row' if self.count == 'rows' else 'item'}, got size {size}.")
        if (expected := self.order.batch_size) and (found != expected or self.count != "rows"):
            raise ConfigError(
                f"this order ({self.order.kind}) was made for batches of batch_size={expected} rows, and is read in "
                f"batches of {found} {self.count}. Give mix() or the Reader the batch_size of the trainer."
            )
        if self.end is not None and start >= self.end:
            return None
        cuts = self.cuts(start, found, self._together(start, found, rows))
        totals = [stop - start for start, stop in pairwise(cuts)]
        counts, parts = totals, [(start, cuts[-1])]
        if shard.count > 1:
            parts = [self.part(*bounds, shard) for bounds in pairwise(cuts)]
            counts = [stop - start for start, stop in parts]
        macrobatch = Macrobatch({}, counts, totals, [self.cursor(at) for at in cuts[1:]])
        macrobatch.ends_epoch = cuts[-1] >= self.epoch_end(cuts[-2])
        self._fill(macrobatch, parts)
        return macrobatch

    def _together(self, start: int, size: int, rows: int) -> int:
        """How many batches to read together: up to the next multiple of as many, where they began with one."""
        batches = max(1, rows // size)
        at, odd = divmod(start % self.order.n, size)
        return batches if odd or self.count != "rows" else batches - at % batches

    def _fill(self, macrobatch: Macrobatch, parts: Sequence[tuple[int, int]]) -> None:
        """Reads the rows of these runs of positions."""
        pieces = [piece for start, stop in parts for piece in self._by_epoch(start, stop)]
        macrobatch.fields = self._stored(pieces) if self.order.kind == "none" else self._taken(parts, pieces)
        macrobatch.aliases = self.order.kind == "none" and self.table.aliases
        if self.augmentation is not None:
            macrobatch.finish = partial(
                self.augmentation, seed=self.order.seed, pieces=pieces, counts=macrobatch.counts
            )

    def _by_epoch(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """A run of positions as (epoch, start, stop) within each epoch that it touches."""
        n, pieces = self.order.n, []
        while True:
            epoch, at = divmod(start, n)
            end = min(stop, (epoch + 1) * n)
            pieces.append((epoch, at, end - epoch * n))
            if end == stop:
                return pieces
            start = end

    def _stored(self, pieces: Sequence[tuple[int, int, int]]) -> Mapping[str, Field]:
        """Rows as they stand, of each run of them."""
        batches = [self._checked(self.table.rows(start, stop), stop - start) for _, start, stop in pieces]
        return {name: cat([batch[name] for batch in batches]) for name in batches[0].fields}

    def _taken(self, runs: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int, int]]) -> Mapping[str, Field]:
        """Rows in order, at runs of positions that are a shard's or all: also between them where that is cheaper."""
        first, last = runs[0][0], runs[-1][1]
        if len(runs) == 1 or last - first - sum(stop - start for start, stop in runs) < OF_OTHERS:
            rows = self.rows(first, last)
            indices = np.concatenate([rows[start - first : stop - first] for start, stop in runs])
        else:
            epochs: dict[int, list[Indices]] = {}
            for epoch, start, stop in pieces:
                epochs.setdefault(epoch, []).append(np.arange(start, stop))
            indices = np.concatenate([self.order.at(epoch, np.concatenate(those)) for epoch, those in epochs.items()])
        return self._checked(self.table.take(torch.from_numpy(indices)), len(indices)).fields

    def _checked(self, batch: Batch, rows: int) -> Batch:
        owner = type(self.table).__name__
        if isinstance(batch, Batch) and batch.rows != rows:
            raise SourceError(f"{owner}.take was asked for {rows} rows and gave {batch.rows}.")
        check_batch(batch, self.table.streams, owner)
        return batch


def _even(sums: Indices, part: int, parts: int) -> int:
    """The cut before which the items come closest to `part` of `parts`; of two, the first."""
    if part in (0, parts):
        return part and len(sums) - 1
    target = sums[0] + (sums[-1] - sums[0]) * part / parts
    after = int(np.searchsorted(sums, target))
    return after - (after > 0 and target - sums[after - 1] <= sums[after] - target)
