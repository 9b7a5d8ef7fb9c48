"""A source that reads a table in an order: which rows stand at which position, and where batches begin and end.

Positions count rows from the beginning of the first epoch, in the order in which they are read. A cut depends on
nothing but the cut before it, so that batches are the same however many are asked for together.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, DataError, SourceError
from ..length import as_count
from .batch import Batch, Macrobatch, State, Stream
from .encoding import Encoding
from .fields import Field, cat
from .maps import Augmentation, Change
from .order import VERSION, Indices, Order
from .orders import BucketOrder, MixOrder
from .shard import WHOLE, Shard
from .source import Source, Table, check_batch, check_fixed, check_names, fingerprint_of, forwarded

STRETCH = 8192  # positions whose rows are computed together, which is cheaper
BY_BLOCKS = ("blocks", "blocks-only", "rows-only")
OF_RUN = ("epoch", "position")  # what a cursor says of its run, rather than of what is read
OF_OTHERS = 2048  # rows of other workers that are worth a call of its own to leave out


class Reader(Source):
    """Reads a table in an order, epoch after epoch, in batches of any size.

    Its position is a few integers, from which any number of workers can continue. Worker r of W gets the rows [g·r //
    W, g·(r+1) // W) of each batch of g rows; with `count`, the sequences with this share of the items.

    Args:
        table: the rows.
        order: "full", "blocks", "blocks-only", "rows-only" or "none", or an `Order`.
        seed: the seed of the order.
        block: consecutive rows in a block, for an order by blocks. A table of files has its own.
        mix: how many shuffled blocks are shuffled together.
        count: the unit of a batch size: "rows", or items of this stream of sequences. Sequences are not divided.
        cross_epochs: whether the last batch of an epoch is filled with the first rows of the next.
        max_epochs: the reader ends after this many epochs.
        max_samples: the reader ends after this many rows.
        buckets: a sequence stream; the rows of a batch then have similar lengths.
        batch_size: with `buckets`, the number of rows in a batch.
        augment: a function of the fields of a batch, and optionally of `Draws`, which returns all fields. It is called
            once the rows are on the device. `Trainer(augment=)` gives it to its reader.
    """

    shards = True
    elastic = True
    marks_ends = True
    aliases = False  # `next_batch` copies what the table keeps
    _marked = True  # cursors hold the fingerprint of the table

    def __init__(
        self,
        table: Table,
        order: str | Order = "full",
        seed: int = 0,
        *,
        block: int | None = None,
        mix: int = 1,
        count: str = "rows",
        cross_epochs: bool = False,
        max_epochs: int | None = None,
        max_samples: int | None = None,
        buckets: str = "",
        batch_size: int | None = None,
        augment: Change | None = None,
    ) -> None:
        if not isinstance(table, Table):
            raise ConfigError(
                f"a Reader reads a Table, got a {type(table).__name__}. Make one: hr.ArrayTable({{...}})."
            )
        if len(table) == 0:
            raise DataError("the table has no rows: there is nothing to read.")
        for name, limit in (("max_epochs", max_epochs), ("max_samples", max_samples)):
            if limit is not None and not as_count(limit):
                raise ConfigError(f"{name}= is at least 1, got {limit!r}.")
        if isinstance(order, Order) and (seed, block, mix) != (0, None, 1):
            raise ConfigError("seed=, block= and mix= are those of the order: give them to hr.Order.")
        block = table.block if block is None else block
        if order in BY_BLOCKS and block is None:
            raise ConfigError(
                f"order={order!r} goes by blocks of rows that lie together, and this {type(table).__name__} does not "
                "say how many make one. Say it: hr.ArrayTable({...}, block=1000), or "
                f"hr.Reader(table, {order!r}, block=1000); or use order='full'."
            )
        if isinstance(order, Order) and not isinstance(order, MixOrder) and order.n != len(table):
            raise ConfigError(
                f"the table has {len(table)} rows, and the order {order.n}. Give hr.Order({len(table)}, ...)."
            )
        if not isinstance(order, Order):
            order = Order(len(table), order, seed=seed, block=block, mix=mix)
        self.order = _in_buckets(table, order, buckets, batch_size) if buckets else order
        limits = [as_count(max_samples), None if max_epochs is None else (as_count(max_epochs) or 0) * self.order.n]
        self.end = min((limit for limit in limits if limit is not None), default=None)
        self.sized_by, self.crosses, self.augment = count, cross_epochs, augment
        self._read(table)

    table: Table
    position: int
    """Rows read since the beginning of the first epoch."""
    order: Order
    """The order in which rows are read."""
    end: int | None
    """The position at which it is finished, if it ever is."""

    def _read(self, table: Table) -> None:
        """Begins to read a table at its first row."""
        check_names(table.streams)
        check_fixed(table.streams)
        self.table, self.position = table, 0
        self.augmentation = None if self.augment is None else Augmentation(self.augment, table, self.sized_by)
        self.fingerprint = table.fingerprint() if self._marked else ""
        if self.augmentation is not None and self.fingerprint:
            self.fingerprint = fingerprint_of("map", self.fingerprint, self.augmentation.name)
        self._lengths, self._items = np.empty(0, np.int64), len(table)
        if self.sized_by != "rows":
            self._lengths = torch.as_tensor(table.lengths(self.sized_by)).numpy()
            self._items = int(self._lengths.sum())
            if len(self._lengths) != len(table):
                raise SourceError(
                    f"{type(table).__name__}.lengths({self.sized_by!r}) gave {len(self._lengths)} numbers for "
                    f"{len(table)} rows."
                )
        order = self.order
        start: State = {"version": VERSION, "seed": order.seed, "order": order.kind, "epoch": 0, "position": 0}
        start |= {"rows": order.n, "block": order.block, "mix": order.mix, "count": self.sized_by}
        self._start = {**start, "cross_epochs": int(self.crosses), "fingerprint": self.fingerprint}
        self._computed: dict[str, tuple[int, Indices]] = {}

    encoding: Encoding = forwarded("table.encoding")
    row_bytes: float = forwarded("table.row_bytes")
    resident = forwarded("table.resident")

    @property
    def streams(self) -> Sequence[Stream]:
        return self.table.streams if self.augmentation is None else self.augmentation.streams

    @property
    def thread_safe(self) -> bool:  # type: ignore[override]
        return self.table.thread_safe and (self.augmentation is None or self.augmentation.thread_safe)

    @property
    def epoch(self) -> int:
        """The epoch of the next row."""
        return self.position // self.order.n

    @property
    def epoch_rows(self) -> int:
        """The number of rows in an epoch; fewer than in the table if the reader ends before."""
        return self.epoch_end(0)

    @property
    def title(self) -> str:
        return f"{type(self.table).__name__}'s Reader"

    @property
    def level(self) -> str:
        return "exactly, after any batch, with any number of workers"

    @property
    def item_bytes(self) -> float:
        return self.row_bytes * len(self.table) / max(1, self._items)

    def over(self, table: Table) -> "Reader":
        """The same reader of another table with as many rows."""
        found = copy.copy(self)
        found._read(table)
        return found

    def until(self, stop: int) -> "Reader":
        """The same reader, which ends at this position, so that nothing behind it is computed ahead either."""
        found = copy.copy(self)
        found.end = stop if self.end is None else min(stop, self.end)
        return found

    def independent_reader(self) -> "Reader":
        return copy.copy(self)  # of what they share nothing depends on where one of them stands

    # --- batches and cursors ---

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | Any:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.only()

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        macrobatch = self.fetch(self.position, size, rows, shard)
        self.position += 0 if macrobatch is None else sum(macrobatch.totals)
        return macrobatch

    def state_dict(self) -> State:
        return self.cursor(self.position)

    def load_state_dict(self, state: State) -> None:
        expected = self.cursor(0)
        if missing := [key for key in expected if key not in state]:
            raise SourceError(f"this is not the cursor of a Reader: it lacks {', '.join(missing)}.")
        differ = [k for k in expected if k not in OF_RUN and state.get(k) != expected[k]]
        if differ:
            listed = "; ".join(f"{k}: saved {state.get(k)!r}, now {expected[k]!r}" for k in differ)
            advice = "Read the same table, or say override=True (--override) to go on with this one."
            if "rows" in differ:
                advice = "A run goes on with as many rows as it had: read the same table, or begin another run."
            raise SourceError(f"this cursor belongs to other data or another order ({listed}). {advice}")
        self.position = int(state["epoch"]) * self.order.n + int(state["position"])

    def cursor(self, at: int) -> State:
        """The cursor of a position: a few integers and names."""
        epoch, position = divmod(at, self.order.n)
        return {**self._start, "epoch": epoch, "position": position}

    # --- where batches begin and end ---

    def epoch_end(self, start: int) -> int:
        """The end of the epoch of this position."""
        reach = (start // self.order.n + 1) * self.order.n
        return reach if self.end is None else min(reach, self.end)

    def cuts(self, start: int, size: int, batches: int) -> list[int]:
        """The bounds of at most so many batches from `start` on, up to the one that ends the epoch."""
        end = self.epoch_end(start)
        if self.sized_by == "rows":
            most = min(batches, -(-(end - start) // size))
            cuts = list(range(start, start + most * size, size))
            return [*cuts, min(cuts[-1] + size, self._reach(cuts[-1]))]
        cuts = [start]
        while len(cuts) <= batches and cuts[-1] < end:
            cuts.append(self._fitting(cuts[-1], size))
        return cuts

    def part(self, start: int, stop: int, shard: Shard) -> tuple[int, int]:
        """A shard's part of the batch between these bounds."""
        if self.sized_by == "rows" or shard.parts:
            first, last = shard.of(stop - start)
            return start + first, start + last
        sums = self._sums(start, stop, stop)
        return start + _even(sums, shard.index, shard.count), start + _even(sums, shard.index + 1, shard.count)

    def batches(self, size: int) -> int | None:
        """How many batches an epoch has, if they are the same number in each."""
        n, rows, end = self.order.n, self.epoch_end(0), self.end or 0
        alike = end % n == 0 and (not self.crosses or n % size == 0)
        return -(-rows // size) if self.sized_by == "rows" and (alike or rows == end) else None

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
            unit = "row" if self.sized_by == "rows" else "item"
            raise ConfigError(f"a batch has at least one {unit}, got size {size}.")
        if (expected := self.order.batch_size) and (found != expected or self.sized_by != "rows"):
            raise ConfigError(
                f"this order ({self.order.kind}) was made for batches of batch_size={expected} rows, and is read in "
                f"batches of {found} {self.sized_by}. Give mix() or the Reader the batch_size of the trainer."
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
        return batches if odd or self.sized_by != "rows" else batches - at % batches

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


class ReaderOfOnePass(Reader):
    """A reader of data that are read once, as in a validation: no run holds its place, and the data are not hashed."""

    _marked = False


def _in_buckets(table: Table, order: Order, stream: str, batch_size: int | None) -> BucketOrder:
    """An order in which batches have rows of like length."""
    table.sequence(stream)
    if not (size := as_count(batch_size)):
        raise ConfigError(f"buckets={stream!r} makes batches of like rows: say of how many, as in batch_size=32.")
    if isinstance(order, MixOrder):
        raise ConfigError(f"buckets={stream!r} sorts the rows of one table. Concatenate tables, or leave it out.")
    return BucketOrder(order, stream, lambda: torch.as_tensor(table.lengths(stream)).numpy(), size)


def _even(sums: Indices, part: int, parts: int) -> int:
    """The cut before which the items come closest to `part` of `parts`; of two, the first."""
    if part in (0, parts):
        return part and len(sums) - 1
    target = sums[0] + (sums[-1] - sums[0]) * part / parts
    after = int(np.searchsorted(sums, target))
    return after - (after > 0 and target - sums[after - 1] <= sums[after] - target)
