"""Tables made of tables: one after the other, side by side, a part of one, or moved to a device."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from .arrays import ArrayTable
from .batch import Batch, Stream
from .encoding import Categories, Encoding
from .fields import cat, take
from .source import Table, fingerprint_of, forwarded

BLOCK = 65536  # rows looked at together where a whole table is read once


class _Joined(Table):
    """What tables made of several tables have in common."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = list(tables)
        self.thread_safe = all(table.thread_safe for table in tables)
        self.block = max((table.block for table in tables if table.block is not None), default=None)

    @property
    def aliases(self) -> bool:
        return any(table.aliases for table in self.tables)

    def resident(self, device: torch.device) -> bool:
        return all(table.resident(device) for table in self.tables)


class Concat(_Joined):
    """Tables with the same streams, one after the other."""

    def __init__(self, tables: Sequence[Table]) -> None:
        if not tables:
            raise ConfigError("concat() needs at least one table.")
        first = tables[0]
        for k, table in enumerate(tables):
            if list(table.streams) != list(first.streams):
                listed = [", ".join(map(str, each.streams)) for each in (first, table)]
                raise DataError(f"concat(): table 0 has the streams {listed[0]}; table {k} has {listed[1]}.")
            if _strings(table) != _strings(first):
                raise DataError(
                    f"concat(): table {k} has other categories than table 0. Open both by the same: "
                    "hr.open_table(path_or_frame, categories=...), those of the first or a list of all."
                )
            if table.nulls != first.nulls:
                raise DataError(
                    f"concat(): table {k} has {table.nulls} for nulls, table 0 has {first.nulls}. "
                    "Open it with nulls=first.nulls."
                )
        super().__init__(tables)
        self._first = first
        self._bounds = np.array([0, *accumulate(map(len, tables))])

    streams: Sequence[Stream] = forwarded("_first.streams")
    encoding: Encoding = forwarded("_first.encoding")

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
        return Batch({name: take(cat([p[name] for p in parts]), places) for name in parts[0].fields}, len(numbers))

    def rows(self, start: int, stop: int) -> Batch:
        parts = [self.tables[k].rows(a, b) for k, a, b in self._parts(start, stop)] or [self._first.rows(0, 0)]
        return Batch({name: cat([part[name] for part in parts]) for name in parts[0].fields}, stop - start)

    def lengths(self, stream: str) -> Tensor:
        return torch.cat([table.lengths(stream) for table in self.tables])

    @property
    def row_bytes(self) -> float:
        return sum(table.row_bytes * len(table) for table in self.tables) / max(1, len(self))

    def fingerprint(self) -> str:
        return fingerprint_of(*(table.fingerprint() for table in self.tables))

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
    """A table that forwards to another one, except for what it overrides."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.block, self.thread_safe = table.block, table.thread_safe

    streams: Sequence[Stream] = forwarded("table.streams")
    encoding: Encoding = forwarded("table.encoding")
    aliases: bool = forwarded("table.aliases")
    row_bytes: float = forwarded("table.row_bytes")
    take = forwarded("table.take")
    rows = forwarded("table.rows")
    lengths = forwarded("table.lengths")
    resident = forwarded("table.resident")
    fingerprint = forwarded("table.fingerprint")

    def __len__(self) -> int:
        return len(self.table)


class View(Wrapper):
    """The rows of a table with these numbers, in this order. With a `range`, they are read as they are stored."""

    aliases = False

    def __init__(self, table: Table, numbers: Tensor | range) -> None:
        super().__init__(table)
        self.numbers, self.aliases = numbers, isinstance(numbers, range) and table.aliases

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, indices: Tensor) -> Batch:
        run = self.numbers
        return self.table.take(indices + run.start if isinstance(run, range) else run[indices])

    def rows(self, start: int, stop: int) -> Batch:
        run = self.numbers[start:stop]
        return self.table.rows(run.start, run.stop) if isinstance(run, range) else self.table.take(run)

    def lengths(self, stream: str) -> Tensor:
        run = self.numbers
        return self.table.lengths(stream)[slice(run.start, run.stop) if isinstance(run, range) else run]

    def fingerprint(self) -> str:
        run = self.numbers
        said = [run.start, run.stop] if isinstance(run, range) else [run.numpy().tobytes()]
        return fingerprint_of(self.table.fingerprint(), *said)


class Zipped(_Joined):
    """Tables side by side: row i has the streams of row i of each."""

    streams: Sequence[Stream] = ()

    def __init__(self, tables: Sequence[Table]) -> None:
        lengths = [len(table) for table in tables]
        if len(set(lengths)) != 1:
            raise DataError(
                f"zip() puts row i beside row i, and the tables have {', '.join(map(str, lengths))} rows. "
                "Join them by a key before (pandas.merge), or cut them with hr.head()."
            )
        owner: dict[str, int] = {}
        for k, table in enumerate(tables):
            for stream in table.streams:
                if stream.name in owner:
                    raise DataError(
                        f"zip(): table {owner[stream.name]} and table {k} both have a stream {stream.name!r}. Give one "
                        f"another name: hr.open_table(path, columns={{'y': {stream.name!r}}}), or "
                        f"hr.map(table, lambda fields: {{'y': fields[{stream.name!r}]}})."
                    )
                owner[stream.name] = k
        super().__init__(tables)
        self.streams = [stream for table in tables for stream in table.streams]

    def __len__(self) -> int:
        return len(self.tables[0])

    def take(self, indices: Tensor) -> Batch:
        return self._joined([table.take(indices) for table in self.tables])

    def rows(self, start: int, stop: int) -> Batch:
        return self._joined([table.rows(start, stop) for table in self.tables])

    def lengths(self, stream: str) -> Tensor:
        self.stream(stream)
        return next(t for t in self.tables if stream in [s.name for s in t.streams]).lengths(stream)

    @property
    def categories(self) -> Categories:
        return {name: strings for table in self.tables for name, strings in table.categories.items()}

    @property
    def encoding(self) -> Encoding:
        return reduce(Encoding.beside, (table.encoding for table in self.tables))

    @property
    def row_bytes(self) -> float:
        return sum(table.row_bytes for table in self.tables)

    def fingerprint(self) -> str:
        return fingerprint_of("zip", *(table.fingerprint() for table in self.tables))

    @staticmethod
    def _joined(batches: Sequence[Batch]) -> Batch:
        return Batch({name: batch[name] for batch in batches for name in batch.fields}, batches[0].rows)


class OnDevice(Wrapper):
    """A table whose rows have been read once, into the memory of a device."""

    def __init__(self, table: Table, device: torch.device) -> None:
        in_memory = ArrayTable(table.rows(0, len(table)).fields)
        super().__init__(in_memory.to(device))
        self.block, self._origin = table.block, table

    encoding: Encoding = forwarded("_origin.encoding")
    fingerprint = forwarded("_origin.fingerprint")


def blocks_of(table: Table) -> Iterator[Batch]:
    """A whole table, as stored, a block at a time."""
    for start in range(0, len(table), BLOCK):
        yield table.rows(start, min(len(table), start + BLOCK))


def _strings(table: Table) -> dict[str, list[str]]:
    """What the codes of a table stand for, also those of which a map has made something else."""
    return {name: list(strings) for name, strings in table.encoding.categories.items()}


def name_of(change: Callable[..., Any]) -> str:
    return getattr(change, "__qualname__", type(change).__name__)


def origin(table: Table, row: int) -> tuple[int, int]:
    """Where a row comes from, below splits, filters and changes: which of the tables of a mix, and its number there."""
    which = 0
    while isinstance(table, Wrapper | Concat):
        if isinstance(table, Concat):
            ends = list(accumulate(map(len, table.tables)))
            which = bisect_right(ends, row)
            row -= ends[which] - len(table.tables[which])
            table = table.tables[which]
        else:
            row = int(table.numbers[row]) if isinstance(table, View) else row
            table = table.table
    return which, row
