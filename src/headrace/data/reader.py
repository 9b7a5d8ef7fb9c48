"""A Table and an order make a Source: shuffled, sharded, and resumable at any row."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from ..batch import Batch, State, Stream
from ..errors import ConfigError, DataError, SourceError
from ..order import VERSION, Indices, Order
from .source import WHOLE, Cursor, Macrobatch, Shard, Source, Table, check_batch, check_names

STRETCH = 8192


class Reader(Source):
    """Reads a table in an order, epoch after epoch, in batches of whatever size is asked.

    The size is that of the whole batch: shard r of W gets rows [g·r // W, g·(r+1) // W) of each batch of g.
    Where it stands is a few integers, so that any number of workers can go on from there.
    """

    shards = True
    thread_safe = True
    marks_ends = True

    def __init__(
        self,
        table: Table,
        order: str = "full",
        seed: int = 0,
        *,
        block: int | None = None,
        max_epochs: int | None = None,
    ) -> None:
        if len(table) == 0:
            raise DataError("the table has no rows: there is nothing to read.")
        if max_epochs is not None and max_epochs < 1:
            raise ConfigError(f"max_epochs= is at least 1, got {max_epochs}.")
        check_names(table.streams)
        self.table = table
        self.order = Order(len(table), order, seed=seed, block=block)
        self.max_epochs = max_epochs
        self.epoch = 0
        self.position = 0
        self._held: tuple[int, int, Indices] = (-1, 0, np.empty(0, np.int64))
        self._fingerprint = table.fingerprint()

    @property
    def streams(self) -> Sequence[Stream]:
        return self.table.streams

    def batches(self, size: int) -> int:
        return -(-self.order.n // size)

    def resident(self, device: torch.device) -> bool:
        return self.table.resident(device)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.batches()[0]

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        if size < 1:
            raise ConfigError(f"a batch has at least one row, got size {size}.")
        if self.max_epochs is not None and self.epoch >= self.max_epochs:
            return None
        n, epoch, start = self.order.n, self.epoch, self.position
        whole = max(1, rows // size) * size
        stop = min(n, start - start % whole + whole if start % size == 0 else start + whole)
        cuts = [*range(start, stop, size), stop]
        totals = [b - a for a, b in pairwise(cuts)]
        if shard.count == 1:
            counts, batch = totals, self._read(epoch, start, stop)
        else:
            parts = [(a + lo, a + hi) for a, total in zip(cuts, totals, strict=False) for lo, hi in [shard.of(total)]]
            counts = [hi - lo for lo, hi in parts]
            batch = self._take(np.concatenate([self.order.indices(epoch, lo, hi) for lo, hi in parts]))
        self.epoch, self.position = (epoch + 1, 0) if stop == n else (epoch, stop)
        cursor = self._cursor(epoch, 0)
        cursors: list[State | None] = [{**cursor, "position": at} for at in cuts[1:-1]]
        return Macrobatch(batch.fields, counts, totals, [*cursors, self.state_dict()], stop == n)

    def state_dict(self) -> State:
        return dict(self._cursor(self.epoch, self.position))

    def load_state_dict(self, state: State) -> None:
        expected = self._cursor(self.epoch, self.position)
        if missing := [key for key in expected if key not in state]:
            raise SourceError(f"this is not the cursor of a Reader: it lacks {', '.join(missing)}.")
        differ = [k for k in expected if k not in ("epoch", "position") and state.get(k) != expected[k]]  # type: ignore[literal-required]
        if differ:
            listed = "; ".join(f"{k}: saved {state.get(k)!r}, now {expected[k]!r}" for k in differ)  # type: ignore[literal-required]
            raise SourceError(f"this cursor belongs to other data or another order ({listed}). Read the same table.")
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def _read(self, epoch: int, start: int, stop: int) -> Batch:
        if self.order.kind == "none":
            return self._checked(self.table.rows(start, stop), stop - start)
        return self._take(self._ordered(epoch, start, stop))

    def _ordered(self, epoch: int, start: int, stop: int) -> Indices:
        """Positions are computed a longer stretch at a time, which is cheaper, and kept until they are used."""
        held_epoch, first, held = self._held
        if held_epoch != epoch or not first <= start <= stop <= first + len(held):
            held = self.order.indices(epoch, start, max(stop, min(self.order.n, start + STRETCH)))
            self._held = epoch, start, held
            first = start
        return held[start - first : stop - first]

    def _take(self, indices: Indices) -> Batch:
        return self._checked(self.table.take(torch.from_numpy(indices.copy())), len(indices))

    def _checked(self, batch: Batch, rows: int) -> Batch:
        owner = type(self.table).__name__
        if isinstance(batch, Batch) and batch.rows != rows:
            raise SourceError(f"{owner}.take was asked for {rows} rows and gave {batch.rows}.")
        check_batch(batch, self.streams, owner, limit=rows)
        return batch

    def _cursor(self, epoch: int, position: int) -> Cursor:
        order = self.order
        return {
            "version": VERSION,
            "seed": order.seed,
            "order": order.kind,
            "epoch": epoch,
            "position": position,
            "rows": order.n,
            "block": order.block,
            "fingerprint": self._fingerprint,
        }
