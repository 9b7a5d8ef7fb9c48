"""A Table and an order make a Source: shuffled, sharded, and resumable at any row."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from ..errors import ConfigError, DataError, SourceError
from ..length import whole
from .ahead import Ahead
from .batch import Batch, Macrobatch, State, Stream
from .draws import Draws
from .fields import Field, cat
from .lanes import KINDS, AheadInLanes, Lanes
from .order import VERSION, Indices, MixOrder, Order
from .packing import STRETCH, ByItems, ByRows, Packing, Span
from .source import WHOLE, Cursor, Shard, Source, Table, check_batch, check_fixed, check_names

WORTH_BYTES = 4 << 20  # what lies together is worth a call to the system from this size on
BY_BLOCKS = ("blocks", "blocks-only", "rows-only")
OF_RUN = ("epoch", "position", "lanes")  # what a cursor says of its run, rather than of what is read
OF_OTHERS = 2048  # rows of other workers that are worth a call of its own to leave out


class Reader(Source):
    """Reads a table in an order, epoch after epoch, in batches of whatever size is asked.

    `order`, `seed`, `block` and `mix` are those of `Order`; a table of files knows its own `block`, and any other is
    asked for one by an order that goes by blocks. `count`: a size
    counts "rows", or the items of a sequence stream; sequences stay whole. `cross_epochs`: the last batch of an epoch
    is filled up with the first rows of the next. It is finished after `max_epochs` or `max_samples` rows.

    The size is that of the whole batch: shard r of W gets rows [g·r // W, g·(r+1) // W) of each batch of g, or the
    sequences that hold as large a part of the items. Where it stands is a few integers, so that any number of workers
    can go on from there.
    """

    shards = True
    elastic = True
    thread_safe = True
    marks_ends = True
    aliases = False  # `next_batch` copies what the table keeps

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
    ) -> None:
        if not isinstance(table, Table):
            raise ConfigError(
                f"a Reader reads a Table, got a {type(table).__name__}. Make one: hr.ArrayTable({{...}})."
            )
        if len(table) == 0:
            raise DataError("the table has no rows: there is nothing to read.")
        for name, limit in (("max_epochs", max_epochs), ("max_samples", max_samples)):
            if limit is not None and not whole(limit):
                raise ConfigError(f"{name}= is at least 1, got {limit!r}.")
        max_epochs, max_samples = whole(max_epochs), whole(max_samples)
        check_names(table.streams)
        check_fixed(table.streams)
        self.table, self.sized_by = table, count
        if order in BY_BLOCKS and block is None and table.block is None:
            raise ConfigError(
                f"order={order!r} goes by blocks of rows that lie together, and this {type(table).__name__} does not "
                "say how many make one. Say it: hr.ArrayTable({...}, block=1000), or "
                f"hr.Reader(table, {order!r}, block=1000); or use order='full'."
            )
        if isinstance(order, MixOrder):
            self._plain: Order | MixOrder = order
        else:
            self._plain = Order(len(table), order, seed=seed, block=table.block if block is None else block, mix=mix)
        self.order: Order | MixOrder | Lanes = self._plain
        self._lanes: Lanes | None = None
        self.max_epochs, self.max_samples = max_epochs, max_samples
        self.position = 0
        """Rows read since the beginning of the first epoch."""
        limits = [max_samples, None if max_epochs is None else max_epochs * self.order.n]
        end = min((limit for limit in limits if limit is not None), default=None)
        self.end = end
        """The position at which it is finished, if it ever is."""
        self._span = Span(self.order.n, cross_epochs, end)
        self._packing: Packing = ByRows() if count == "rows" else ByItems(table, count, self._rows_at)
        self._held: tuple[int, Indices] = (0, np.empty(0, np.int64))
        together = self.order.block * self.order.mix * table.row_bytes
        self._announces = table.block is not None and together >= WORTH_BYTES and self.order.kind != "none"
        self._ahead: Ahead | AheadInLanes = Ahead(table, self._plain, self.epoch)
        self._fingerprint = table.fingerprint()

    def over(self, table: Table) -> "Reader":
        """The same reading of another table."""
        order = self._plain
        found = Reader(
            table,
            order if isinstance(order, MixOrder) else order.kind,
            order.seed,
            block=order.block,
            mix=order.mix,
            count=self.sized_by,
            cross_epochs=self._span.crosses,
            max_epochs=self.max_epochs,
            max_samples=self.max_samples,
        )
        if self._lanes is not None:
            found.in_lanes(self._lanes.count, self._lanes.unit)
        return found

    def in_lanes(self, count: int, unit: int) -> None:
        """Before the first batch: lays the blocks out for workers that each read `unit` rows for a model of its own.

        With batches of `count * unit` rows each of them gets whole blocks, as far as there are as many for each: see
        `Lanes`. An order without shuffled blocks stays as it is, and so does one that is in the middle of an epoch.
        The lanes are part of the cursor: whoever goes on from it, as many workers or not, keeps them.
        """
        if self.sized_by == "rows" and self._plain.kind in KINDS and self.position % self._span.rows == 0:
            self._lay_out(None if count == 1 else Lanes(self._plain, count, unit))

    def read_to(self, stop: int) -> None:
        """It is finished at this position, for now, where nothing is read or computed ahead either."""
        self._span = replace(self._span, end=stop if self.end is None else min(stop, self.end))

    @property
    def streams(self) -> Sequence[Stream]:
        return self.table.streams

    @property
    def read_by(self) -> Mapping[str, Sequence[str]]:
        return {stream.name: () for stream in self.streams} | dict(self.table.read_by)

    @property
    def title(self) -> str:
        return f"{type(self.table).__name__}'s Reader"

    @property
    def epoch(self) -> int:
        """The epoch of the next row."""
        return self.position // self._span.rows

    @property
    def level(self) -> str:
        return "exactly, after any batch, with any number of workers"

    @property
    def row_bytes(self) -> float:
        return self.table.row_bytes

    @property
    def item_bytes(self) -> float:
        return self.row_bytes * self._packing.rows_per_item

    @property
    def epoch_rows(self) -> int:
        """How many rows an epoch has; fewer than the table where it is finished before its end."""
        return self._span.epoch_end(0)

    def batches(self, size: int) -> int | None:
        return self._packing.batches(size, self._span)

    def resident(self, device: torch.device) -> bool:
        return self.table.resident(device)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.only()

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        if not (found := whole(size)):
            raise ConfigError(
                f"a batch has at least one {'row' if self.sized_by == 'rows' else 'item'}, got size {size}."
            )
        start, size = self.position, found
        if self._span.end is not None and start >= self._span.end:
            return None
        cuts = self._packing.cuts(start, size, self._wanted(start, size, rows), self._span)
        stop = cuts[-1]
        parts = list(pairwise(cuts))
        if shard.count > 1:
            parts = [self._packing.shard(a, b, shard) for a, b in parts]
        macrobatch = Macrobatch({}, [b - a for a, b in parts], [b - a for a, b in pairwise(cuts)], [])
        self._fill(macrobatch, parts if shard.count > 1 else [(start, stop)])
        self.position = stop
        macrobatch.cursors = [self._cursor(at) for at in cuts[1:]]
        macrobatch.ends_epoch = stop >= self._span.epoch_end(cuts[-2])
        return macrobatch

    def state_dict(self) -> State:
        return self._cursor(self.position)

    def apart(self) -> "Reader":
        return copy.copy(self)  # of what they share nothing depends on where one of them stands

    def load_state_dict(self, state: State) -> None:
        expected = self._cursor(self.position)
        if missing := [key for key in expected if key not in state and key != "lanes"]:
            raise SourceError(f"this is not the cursor of a Reader: it lacks {', '.join(missing)}.")
        differ = [k for k in expected if k not in OF_RUN and state.get(k) != expected[k]]
        if differ:
            listed = "; ".join(f"{k}: saved {state.get(k)!r}, now {expected[k]!r}" for k in differ)
            if changed := self.table.changed_files(str(state["fingerprint"])):
                listed += f"; changed: {', '.join(changed)}"
            advice = "Read the same table, or say override=True (--override) to go on with this one."
            if "rows" in differ:
                advice = "A run goes on with as many rows as it had: read the same table, or begin another run."
            raise SourceError(f"this cursor belongs to other data or another order ({listed}). {advice}")
        lanes = None if (text := state.get("lanes")) is None else Lanes.parse(text, self._plain)
        self.position = int(state["epoch"]) * self._span.rows + int(state["position"])
        self._lay_out(lanes)

    def _lay_out(self, lanes: Lanes | None) -> None:
        """Goes on in these lanes, or in none, from where it stands."""
        if str(lanes) != str(self._lanes):
            self._lanes, self.order, self._held = lanes, lanes or self._plain, (0, np.empty(0, np.int64))
        self._ahead = Ahead(self.table, self._plain, self.epoch)
        if self._lanes is not None:
            self._ahead = AheadInLanes(self.table, self._lanes)

    def _wanted(self, start: int, size: int, rows: int) -> int:
        """How many batches to read together: up to the next multiple of as many, where they began with one."""
        batches = max(1, rows // size)
        at, odd = divmod(start % self._span.rows, size)
        return batches if odd or self.sized_by != "rows" else batches - at % batches

    def _fill(self, macrobatch: Macrobatch, parts: Sequence[tuple[int, int]]) -> None:
        """Reads the rows of these runs of positions, and does to them what the table wants done."""
        pieces = [piece for start, stop in parts for piece in self._by_epoch(start, stop)]
        macrobatch.fields = self._read(parts, pieces)
        macrobatch.aliases = self.order.kind == "none" and self.table.aliases
        if not self.table.augments:
            return
        draws = Draws.at(self.order.seed, pieces)

        def finish(fields: Mapping[str, Field]) -> Mapping[str, Field]:
            device = next(iter(fields.values())).device  # type: ignore[union-attr]
            found = self.table.augment(fields, draws.to(device))
            if self.sized_by != "rows" and found[self.sized_by].items != fields[self.sized_by].items:  # type: ignore[union-attr]
                raise SourceError(f"a map changes the lengths of {self.sized_by!r}, whose items a size counts.")
            check_batch(Batch(found, len(draws)), self.streams, type(self.table).__name__)
            return found

        if self.table.augments == "device":
            macrobatch.finish = finish
        else:
            macrobatch.own()  # a map may work in place
            macrobatch.fields = finish(macrobatch.fields)

    def _by_epoch(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """A run of positions as (epoch, start, stop) within each epoch that it touches."""
        n, pieces = self._span.rows, []
        while True:
            epoch, at = divmod(start, n)
            end = min(stop, (epoch + 1) * n)
            pieces.append((epoch, at, end - epoch * n))
            if end == stop:
                return pieces
            start = end

    def _read(self, runs: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int, int]]) -> Mapping[str, Field]:
        for piece in pieces if self._announces else ():
            self._ahead(*piece)
        if self.order.kind == "none":
            return self._stored(pieces)
        indices = self._indices(runs, pieces)
        return self._checked(self.table.take(torch.from_numpy(indices)), len(indices)).fields

    def _stored(self, pieces: Sequence[tuple[int, int, int]]) -> Mapping[str, Field]:
        """Rows as they stand, of each run of them."""
        batches = [self._checked(self.table.rows(start, stop), stop - start) for _, start, stop in pieces]
        return {name: cat([batch[name] for batch in batches]) for name in batches[0].fields}

    def _indices(self, runs: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int, int]]) -> Indices:
        """The rows at these runs of positions, which are a shard's or all: those between them where that is cheaper."""
        first, last = runs[0][0], runs[-1][1]
        if len(runs) == 1 or last - first - sum(stop - start for start, stop in runs) < OF_OTHERS:
            rows = self._rows_at(first, last)
            return np.concatenate([rows[start - first : stop - first] for start, stop in runs])
        epochs: dict[int, list[Indices]] = {}
        for epoch, start, stop in pieces:
            epochs.setdefault(epoch, []).append(np.arange(start, stop))
        return np.concatenate([self.order.at(epoch, np.concatenate(those)) for epoch, those in epochs.items()])

    def _rows_at(self, start: int, stop: int) -> Indices:
        """The rows at these positions, computed a longer stretch at a time, which is cheaper, and kept until used."""
        first, held = self._held
        if not first <= start <= stop <= first + len(held):
            ends = self._span.epoch_end(max(start, stop - 1))  # looking ahead ends with the epoch
            wanted = max(stop, min(start + STRETCH, ends))
            pieces = self._by_epoch(start, wanted)
            held = np.concatenate([self.order.indices(*piece) for piece in pieces])
            first, self._held = start, (start, held)
        return held[start - first : stop - first]

    def _checked(self, batch: Batch, rows: int) -> Batch:
        owner = type(self.table).__name__
        if isinstance(batch, Batch) and batch.rows != rows:
            raise SourceError(f"{owner}.take was asked for {rows} rows and gave {batch.rows}.")
        if not self.table.augments:
            check_batch(batch, self.streams, owner)
        return batch

    def _cursor(self, at: int) -> State:
        order, (epoch, position) = self.order, divmod(at, self._span.rows)
        cursor: Cursor = {
            "version": VERSION,
            "seed": order.seed,
            "order": order.kind,
            "epoch": epoch,
            "position": position,
            "rows": order.n,
            "block": order.block,
            "mix": order.mix,
            "count": self.sized_by,
            "cross_epochs": int(self._span.crosses),
            "fingerprint": self._fingerprint,
        }
        if self._lanes is not None:
            cursor["lanes"] = str(self._lanes)
        return dict(cursor)


@contextmanager
def rewound(source: Source) -> Iterator[None]:
    """A source that stands afterwards where it stood before, if it can; a table is read from its first row."""
    state = copy.deepcopy(source.state_dict())
    if isinstance(source, Reader) and state is not None:
        source.load_state_dict({**state, "epoch": 0, "position": 0})
    try:
        yield
    finally:
        if state is not None:
            source.load_state_dict(state)
