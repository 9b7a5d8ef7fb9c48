"""Tables made of tables: one after the other, side by side, a part of one, or with every row changed."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Stream
from ..errors import ConfigError, DataError
from ..field import Field, cat, take, tensors_of
from .draws import Draws
from .source import Table, check_names

Change = Callable[..., Mapping[str, Field]]
"""A function of the fields of many rows, by name, and maybe of draws; it gives all the fields that there are to be."""
BLOCK = 65536  # rows looked at together where a whole table is read once
PROBE = 64  # rows that show what a map makes of them


class Concat(Table):
    """Tables with the same streams, one after the other."""

    def __init__(self, tables: Sequence[Table]) -> None:
        if not tables:
            raise ConfigError("concat() needs at least one table.")
        first = tables[0]
        for k, table in enumerate(tables):
            if list(table.streams) != list(first.streams):
                listed = [", ".join(map(str, each.streams)) for each in (first, table)]
                raise DataError(f"concat(): table 0 has the streams {listed[0]}; table {k} has {listed[1]}.")
            if dict(table.categories) != dict(first.categories):
                raise DataError(f"concat(): table {k} has other categories than table 0. Open it with categories=.")
        self.tables, self._first = list(tables), first
        self._bounds = np.array([0, *accumulate(map(len, tables))])
        blocks = [table.block for table in tables if table.block is not None]
        self.block = max(blocks, default=None)
        plain(tables, "concat")

    @property
    def streams(self) -> Sequence[Stream]:
        return self._first.streams

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def take(self, indices: Tensor) -> Batch:
        numbers = indices.numpy()
        if not len(numbers):
            return self._first.take(indices)
        first, last = numbers.min(), numbers.max()
        k = int(np.searchsorted(self._bounds, first, side="right")) - 1
        if last < self._bounds[k + 1]:  # what is near in the order is mostly near in the tables
            return self.tables[k].take(torch.from_numpy(numbers - self._bounds[k]))
        owners = np.searchsorted(self._bounds, numbers, side="right") - 1
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        own = torch.from_numpy(numbers[order] - self._bounds[owners]).tensor_split(torch.from_numpy(firsts[1:]))
        parts = [self.tables[k].take(rows) for k, rows in zip(owners[firsts].tolist(), own, strict=True)]
        back = np.empty(len(numbers), np.int64)
        back[order] = np.arange(len(numbers))
        places = torch.from_numpy(back)
        return Batch({name: take(cat([p[name] for p in parts]), places) for name in parts[0]}, len(numbers))

    def rows(self, start: int, stop: int) -> Batch:
        parts = [self.tables[k].rows(a, b) for k, a, b in self._parts(start, stop)] or [self._first.rows(0, 0)]
        return Batch({name: cat([part[name] for part in parts]) for name in parts[0]}, stop - start)

    def lengths(self, stream: str) -> Tensor:
        return torch.cat([table.lengths(stream) for table in self.tables])

    def expect(self, start: int, stop: int, *, now: bool = True) -> None:
        for k, a, b in self._parts(start, stop):
            self.tables[k].expect(a, b, now=now)

    def resident(self, device: torch.device) -> bool:
        return all(table.resident(device) for table in self.tables)

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        return self._first.categories

    @property
    def row_bytes(self) -> float:
        return sum(table.row_bytes * len(table) for table in self.tables) / max(1, len(self))

    def fingerprint(self) -> str:
        return _digest(*(table.fingerprint() for table in self.tables))

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Which rows of which table stand at these numbers."""
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        for k in range(first, len(self.tables)):
            low, high = int(self._bounds[k]), int(self._bounds[k + 1])
            if low >= stop:
                return
            if max(start, low) < min(stop, high):
                yield k, max(start, low) - low, min(stop, high) - low


class Wrapper(Table):
    """A table that is another one, but for what it overrides."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.block, self.augments = table.block, table.augments

    @property
    def streams(self) -> Sequence[Stream]:
        return self.table.streams

    def __len__(self) -> int:
        return len(self.table)

    def take(self, indices: Tensor) -> Batch:
        return self.table.take(indices)

    def rows(self, start: int, stop: int) -> Batch:
        return self.table.rows(start, stop)

    def lengths(self, stream: str) -> Tensor:
        return self.table.lengths(stream)

    def expect(self, start: int, stop: int, *, now: bool = True) -> None:
        self.table.expect(start, stop, now=now)

    def augment(self, fields: Mapping[str, Field], draws: Draws) -> Mapping[str, Field]:
        return self.table.augment(fields, draws)

    def resident(self, device: torch.device) -> bool:
        return self.table.resident(device)

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        return self.table.categories

    @property
    def row_bytes(self) -> float:
        return self.table.row_bytes

    def fingerprint(self) -> str:
        return self.table.fingerprint()

    def changed_files(self, fingerprint: str) -> list[str]:
        return self.table.changed_files(fingerprint)


class Run(Wrapper):
    """The rows of a table from `start` to `stop`."""

    def __init__(self, table: Table, start: int, stop: int) -> None:
        super().__init__(table)
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def take(self, indices: Tensor) -> Batch:
        return self.table.take(indices + self.start)

    def rows(self, start: int, stop: int) -> Batch:
        return self.table.rows(self.start + start, self.start + stop)

    def lengths(self, stream: str) -> Tensor:
        return self.table.lengths(stream)[self.start : self.stop]

    def expect(self, start: int, stop: int, *, now: bool = True) -> None:
        self.table.expect(self.start + start, self.start + stop, now=now)

    def fingerprint(self) -> str:
        return _digest(self.table.fingerprint(), self.start, self.stop)


class Chosen(Wrapper):
    """The rows of a table at these numbers, in this order."""

    def __init__(self, table: Table, indices: Tensor) -> None:
        super().__init__(table)
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Tensor) -> Batch:
        return self.table.take(self.indices[indices])

    def rows(self, start: int, stop: int) -> Batch:
        return self.table.take(self.indices[start:stop])

    def lengths(self, stream: str) -> Tensor:
        return self.table.lengths(stream)[self.indices]

    def expect(self, start: int, stop: int, *, now: bool = True) -> None:
        if stop > start:
            run = self.indices[start:stop]
            self.table.expect(int(run.min()), int(run.max()) + 1, now=now)

    def fingerprint(self) -> str:
        return _digest(self.table.fingerprint(), self.indices.numpy().tobytes())


class Zipped(Table):
    """Tables side by side: row i has the streams of row i of each."""

    def __init__(self, tables: Sequence[Table]) -> None:
        lengths = [len(table) for table in tables]
        if len(set(lengths)) != 1:
            raise DataError(
                f"zip() puts row i beside row i, and the tables have {', '.join(map(str, lengths))} rows. "
                "Join them by a stream with key=, or cut them with take()."
            )
        check_names([stream for table in tables for stream in table.streams])
        self.tables = list(tables)
        blocks = [table.block for table in tables if table.block is not None]
        self.block = max(blocks, default=None)
        plain(tables, "zip")

    @property
    def streams(self) -> Sequence[Stream]:
        return [stream for table in self.tables for stream in table.streams]

    def __len__(self) -> int:
        return len(self.tables[0])

    def take(self, indices: Tensor) -> Batch:
        return self._joined([table.take(indices) for table in self.tables])

    def rows(self, start: int, stop: int) -> Batch:
        return self._joined([table.rows(start, stop) for table in self.tables])

    def lengths(self, stream: str) -> Tensor:
        self.stream(stream)
        return next(t for t in self.tables if stream in [s.name for s in t.streams]).lengths(stream)

    def expect(self, start: int, stop: int, *, now: bool = True) -> None:
        for table in self.tables:
            table.expect(start, stop, now=now)

    def resident(self, device: torch.device) -> bool:
        return all(table.resident(device) for table in self.tables)

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        return {name: strings for table in self.tables for name, strings in table.categories.items()}

    @property
    def row_bytes(self) -> float:
        return sum(table.row_bytes for table in self.tables)

    def fingerprint(self) -> str:
        return _digest("zip", *(table.fingerprint() for table in self.tables))

    @staticmethod
    def _joined(batches: Sequence[Batch]) -> Batch:
        return Batch({name: batch[name] for batch in batches for name in batch}, batches[0].rows)


class Changed(Wrapper):
    """A table whose rows are changed on their way: it has other streams, which a look at the first rows shows."""

    def __init__(self, table: Table, change: Change) -> None:
        super().__init__(table)
        self.change = change

    def learn(self, first: Batch) -> None:
        """Learns the streams from rows that have been changed."""
        self._streams = tuple(Stream.of(*item) for item in first.fields.items())
        held = sum(tensor.nbytes for field in first.fields.values() for tensor in tensors_of(field))
        self._row_bytes = held / max(1, first.rows)

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    @property
    def row_bytes(self) -> float:
        return self._row_bytes

    @property
    def categories(self) -> Mapping[str, Sequence[str]]:
        left = {stream.name for stream in self._streams}
        return {name: strings for name, strings in self.table.categories.items() if name in left}

    def fingerprint(self) -> str:
        return _digest("map", self.table.fingerprint(), name_of(self.change))


class Mapped(Changed):
    """A table whose rows are changed as they are read, many at a time, by a function of the fields."""

    def __init__(self, table: Table, change: Change) -> None:
        super().__init__(table, change)
        self._lengths: dict[str, Tensor] = {}
        self.learn(self.rows(0, min(PROBE, len(table))))

    def take(self, indices: Tensor) -> Batch:
        return changed(self.change, self.table.take(indices))

    def rows(self, start: int, stop: int) -> Batch:
        return changed(self.change, self.table.rows(start, stop))

    def lengths(self, stream: str) -> Tensor:
        if stream not in self._lengths:
            blocks = (batch[self.sequence(stream).name] for batch in blocks_of(self))
            self._lengths[stream] = torch.cat([field.bounds.diff() for field in blocks])
        return self._lengths[stream]

    def resident(self, device: torch.device) -> bool:
        return False


class Augmented(Changed):
    """A table whose rows are changed on their way to the model, with random numbers that belong to them.

    It is the Reader that knows the epoch, and so does the change: taken one by one, the rows are those of the table.
    """

    def __init__(self, table: Table, change: Change, where: Literal["host", "device"], draws: bool) -> None:
        super().__init__(table, change)
        if table.augments == "device" and where == "host":
            raise ConfigError("map(): what follows a map on the device is on the device too. Say where='device'.")
        self.augments, self._with_draws = where, draws
        first = table.rows(0, min(PROBE, len(table)))
        self.learn(Batch(self.augment(first.fields, Draws.at(0, [(0, 0, first.rows)])), first.rows))

    def augment(self, fields: Mapping[str, Field], draws: Draws) -> Mapping[str, Field]:
        batch = Batch(self.table.augment(fields, draws), len(draws))
        return changed(self.change, batch, *[draws] * self._with_draws).fields


def changed(change: Change, batch: Batch, *draws: Draws) -> Batch:
    """A batch as a function of its fields has made it."""
    fields = change(dict(batch.fields), *draws)
    if not isinstance(fields, Mapping):
        raise DataError(f"map(): {name_of(change)} returned a {type(fields).__name__}. Return the fields by name.")
    found = Batch(fields, cursor=batch.cursor, total=batch.total, ends_epoch=batch.ends_epoch)
    if found.rows != batch.rows:
        raise DataError(
            f"map(): {name_of(change)} made {found.rows} rows of {batch.rows}. A map keeps rows; filter() drops some."
        )
    return found


def blocks_of(table: Table) -> Iterator[Batch]:
    """A whole table, as stored, a block at a time."""
    for start in range(0, len(table), BLOCK):
        yield table.rows(start, min(len(table), start + BLOCK))


def name_of(change: Callable[..., Any]) -> str:
    return getattr(change, "__qualname__", type(change).__name__)


def plain(tables: Sequence[Table], who: str) -> None:
    """Raises on a table with a map that is done on the way, which knows its place in one table only."""
    if any(table.augments for table in tables):
        raise ConfigError(f"{who}(): a table has a map with draws, or on the device. Map what {who}() gives instead.")


def _digest(*parts: object) -> str:
    text = b"\x1f".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return hashlib.blake2b(text, digest_size=8).hexdigest()
