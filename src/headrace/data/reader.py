"""Sources that read a table in an order, or divide another source into epochs of a given length."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..errors import ConfigError, DataError, SourceError
from ..length import as_count
from .batch import Batch, Macrobatch, State, Stream
from .encoding import Encoding
from .maps import Change
from .order import Order
from .orders import BucketOrder, MixOrder
from .reading import BY_BLOCKS, Reading
from .shard import WHOLE, Shard
from .source import Source, Table, check_fixed, check_names, forwarded


class Reader(Source):
    """Reads a table in an order, epoch after epoch, in batches of any size.

    Its position is a few integers, from which any number of workers can continue. Worker r of W gets the rows [g·r //
    W, g·(r+1) // W) of each batch of g rows; with `count`, the sequences with this share of the items.

    Args:
        table: the rows.
        order: "full", "blocks", "blocks-only", "rows-only" or "none": see `Order`.
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
        order: str | MixOrder = "full",
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
        check_names(table.streams)
        check_fixed(table.streams)
        block = table.block if block is None else block
        if order in BY_BLOCKS and block is None:
            raise ConfigError(
                f"order={order!r} goes by blocks of rows that lie together, and this {type(table).__name__} does not "
                "say how many make one. Say it: hr.ArrayTable({...}, block=1000), or "
                f"hr.Reader(table, {order!r}, block=1000); or use order='full'."
            )
        size = len(table)
        plain = order if isinstance(order, MixOrder) else Order(size, order, seed=seed, block=block, mix=mix)
        if buckets:
            plain = _in_buckets(table, plain, buckets, batch_size)
        limits = [as_count(max_samples), None if max_epochs is None else (as_count(max_epochs) or 0) * plain.n]
        end = min((limit for limit in limits if limit is not None), default=None)
        self.sized_by, self.position = count, 0
        self.reading = Reading(table, plain, count, cross_epochs, end, self._marked, augment)
        """What stands at which position."""

    position: int
    """Rows read since the beginning of the first epoch."""

    table: Table = forwarded("reading.table")
    order: Order = forwarded("reading.order")
    """The order in which rows are read."""
    end: int | None = forwarded("reading.end")
    """The position at which it is finished, if it ever is."""
    streams: Sequence[Stream] = forwarded("reading.streams")
    encoding: Encoding = forwarded("table.encoding")
    row_bytes: float = forwarded("table.row_bytes")
    resident = forwarded("table.resident")
    thread_safe: bool = forwarded("reading.thread_safe")
    batches = forwarded("reading.batches")

    @property
    def epoch(self) -> int:
        """The epoch of the next row."""
        return self.position // self.order.n

    def over(self, table: Table) -> "Reader":
        """The same reader of another table with as many rows."""
        check_names(table.streams)
        check_fixed(table.streams)
        found = copy.copy(self)
        found.reading, found.position = replace(self.reading, table=table), 0
        return found

    @property
    def title(self) -> str:
        return f"{type(self.table).__name__}'s Reader"

    @property
    def level(self) -> str:
        return "exactly, after any batch, with any number of workers"

    @property
    def item_bytes(self) -> float:
        return self.row_bytes * self.reading.rows_per_item

    @property
    def epoch_rows(self) -> int:
        """The number of rows in an epoch; fewer than in the table if the reader ends before."""
        return self.reading.epoch_end(0)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.only()

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        macrobatch = self.reading.fetch(self.position, size, rows, shard)
        self.position += 0 if macrobatch is None else sum(macrobatch.totals)
        return macrobatch

    def state_dict(self) -> State:
        return self.reading.cursor(self.position)

    def independent_reader(self) -> "Reader":
        return copy.copy(self)  # of what they share nothing depends on where one of them stands

    def load_state_dict(self, state: State) -> None:
        self.position = self.reading.position(state)


def _in_buckets(table: Table, order: Order, stream: str, batch_size: int | None) -> BucketOrder:
    """An order in which batches have rows of like length."""
    table.sequence(stream)
    if not (size := as_count(batch_size)):
        raise ConfigError(f"buckets={stream!r} makes batches of like rows: say of how many, as in batch_size=32.")
    if isinstance(order, MixOrder):
        raise ConfigError(f"buckets={stream!r} sorts the rows of one table. Concatenate tables, or leave it out.")
    return BucketOrder(order, stream, lambda: torch.as_tensor(table.lengths(stream)).numpy(), size)


class ReaderOfOnePass(Reader):
    """A reader of data that are read once, as in a validation: no run holds its place, and the data are not hashed."""

    _marked = False


class SourceWrapper(Source):
    """A source made of another one, which it is like but for what it overrides."""

    def __init__(self, source: Source, **others: Any) -> None:
        self._source = source
        self.take_over(source, **others)

    streams: Sequence[Stream] = forwarded("_source.streams")
    title: str = forwarded("_source.title")
    encoding: Encoding | None = forwarded("_source.encoding")
    row_bytes: float = forwarded("_source.row_bytes")
    item_bytes: float = forwarded("_source.item_bytes")
    resident = forwarded("_source.resident")

    @property
    def level(self) -> str:
        return self._source.level

    @property
    def waiting(self) -> Callable[[], None]:
        """What the source calls while it waits."""
        return self._source.waiting

    @waiting.setter
    def waiting(self, call: Callable[[], None]) -> None:
        self._source.waiting = call


class Epochs(SourceWrapper):
    """A source whose epochs have `rows` rows, each going on where the last one ended.

    The last batch of an epoch is as small as it has to be, if the source gives what is asked; else it crosses the
    end. A source that ends is rewound, where it can be, and goes on within the epoch.
    """

    def __init__(self, source: Source, rows: int) -> None:
        super().__init__(source, marks_ends=True, endless=False)
        self.rows = rows
        self._given = 0
        self._initial = copy.deepcopy(source.state_dict())

    def independent_reader(self) -> "Epochs":
        source = self._source.independent_reader()
        if source is self._source:
            return self
        found = copy.copy(self)
        found._source = source
        return found

    def batches(self, size: int) -> int | None:
        exact = self._source.endless and self.sized_by == "rows" and not self.own_size
        return -(-self.rows // size) if exact else None

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        wanted = min(size, self.rows - self._given) if self.sized_by == "rows" else size
        batch = self._source.pull(wanted, shard)
        if batch is None:  # it has ended: once more from its beginning, where it goes back to by itself if not by us
            if self._initial is not None:
                self._source.load_state_dict(copy.deepcopy(self._initial))
            batch = self._source.pull(wanted, shard)
        if batch is None:
            return None
        self._given += batch.total
        ends = self._given >= self.rows
        self._given -= self.rows * ends
        return Batch(batch.fields, batch.rows, total=batch.total, ends_epoch=ends)

    def state_dict(self) -> State | None:
        inner = self._source.state_dict()
        return None if inner is None else {"rows": self.rows, "given": self._given, "source": inner}

    def load_state_dict(self, state: State) -> None:
        if not state.keys() >= {"rows", "given", "source"}:
            raise SourceError(f"this is not the state of epochs of a {type(self._source).__name__}: {list(state)}.")
        if state["rows"] != self.rows:
            raise SourceError(f"this is the state of epochs of {state['rows']} rows; these have {self.rows}.")
        self._source.load_state_dict(state["source"])
        self._given = int(state["given"])


@contextmanager
def rewound(source: Source) -> Iterator[None]:
    """Puts a source back afterwards to where it stood, if it can be; a table is read from its first row meanwhile."""
    state = copy.deepcopy(source.state_dict())
    if isinstance(source, Reader) and state is not None:
        source.load_state_dict(source.reading.cursor(0))
    try:
        yield
    finally:
        if state is not None:
            source.load_state_dict(state)
