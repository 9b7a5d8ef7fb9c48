"""Packs sequences of unequal lengths into rows of one length, so that no computation is spent on padding."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from .batch import Batch, Stream
from .encoding import Encoding
from .order import Indices
from .ragged import Ragged
from .source import Table, fingerprint_of

ADDED = ("positions", "segments", "mask")


class PackedTable(Table):
    """The sequences of a table in rows of `length` items each: see `pack`."""

    def __init__(self, table: Table, stream: str, length: int, fill: Mapping[str, float]) -> None:
        check_packable(table, stream, fill)
        self.table, self.length, self._fill, self._name = table, length, dict(fill), stream
        self.thread_safe = table.thread_safe
        self.encoding = replace(table.encoding, maps=(*table.encoding.maps, f"pack {stream} {length}"))
        self._sizes = torch.as_tensor(table.lengths(stream)).numpy()
        if (self._sizes > length).any():
            row = int(np.argmax(self._sizes > length))
            raise DataError(
                f"pack(): row {row} has {self._sizes[row]} items of {stream!r}, more than length={length}. Cut long "
                "sequences into several rows before, or pack into longer ones."
            )
        bins = _bins(self._sizes, length)
        self._rows = torch.from_numpy(np.concatenate(bins) if bins else np.empty(0, np.int64))
        self._ends = torch.tensor([0, *np.cumsum([len(each) for each in bins])])
        packed = [Stream(s.name, (length, *s.shape), s.dtype) for s in table.streams]
        kinds = zip(ADDED, ("int64", "int64", "bool"), strict=True)
        self.streams = (*packed, *(Stream(name, (length,), kind) for name, kind in kinds))

    streams: Sequence[Stream] = ()
    encoding: Encoding = Encoding()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def fingerprint(self) -> str:
        return fingerprint_of("pack", self.table.fingerprint(), self._name, self.length, sorted(self._fill.items()))

    def take(self, indices: Tensor) -> Batch:
        starts, counts = self._ends[indices], self._ends.diff()[indices]
        first = torch.repeat_interleave(starts - (counts.cumsum(0) - counts), counts)
        numbers = self._rows[first + torch.arange(len(first))]
        batch = self.table.take(numbers)
        sizes = torch.from_numpy(self._sizes[numbers.numpy()])
        owners = torch.repeat_interleave(torch.arange(len(indices)), counts)
        before = sizes.cumsum(0) - sizes
        row_start = torch.zeros(len(indices), dtype=torch.int64).index_add_(0, owners, sizes)
        used, begins = row_start, before - (row_start.cumsum(0) - row_start)[owners]
        items = torch.arange(int(sizes.sum()))
        places = torch.repeat_interleave(owners * self.length + begins - before, sizes) + items
        fields = {s.name: self._spread(s.name, batch[s.name], sizes, places, len(indices)) for s in self.table.streams}
        positions = (torch.arange(self.length) - used[:, None]).reshape(-1)  # of the padding, which is last
        positions[places] = items - torch.repeat_interleave(before, sizes)
        segments = torch.zeros(len(positions), dtype=torch.int64)
        segments[places] = torch.repeat_interleave(
            torch.arange(len(numbers)) - (counts.cumsum(0) - counts)[owners] + 1, sizes
        )
        added = {"positions": positions, "segments": segments, "mask": segments > 0}
        return Batch({**fields, **{name: each.view(len(indices), self.length) for name, each in added.items()}})

    def _spread(self, name: str, field: object, sizes: Tensor, places: Tensor, rows: int) -> Tensor:
        """The items of a stream at their places, and what fills the rest."""
        assert isinstance(field, Ragged)
        if not torch.equal(field.host_offsets.diff(), sizes):
            raise DataError(f"pack(): sequences of {name!r} have other lengths than those of {self._name!r}.")
        values = field.dense()
        found = values.new_full((rows * self.length, *values.shape[1:]), self._fill.get(name, 0))
        found[places] = values
        return found.view(rows, self.length, *values.shape[1:])


def check_packable(table: Table, stream: str, fill: Mapping[str, float]) -> None:
    """Raises unless all streams of the table are sequences that can be joined."""
    table.sequence(stream)
    for each in table.streams:
        if not each.sequence or each.layout != "dense" or each.name in ADDED:
            why = "is added here" if each.name in ADDED else "is no sequence of plain items"
            raise ConfigError(f"pack(): stream {each.name!r} {why}. Leave it out, or give it another name.")
    if strange := [name for name in fill if name not in [each.name for each in table.streams]]:
        raise ConfigError(f"pack(): fill= names {strange[0]!r}, which is no stream of the table.")


def _bins(sizes: Indices, length: int) -> list[Indices]:
    """Which rows lie side by side: the longest first, each where the least room is left behind it."""
    bins: list[list[int]] = []
    spaces: dict[int, list[int]] = {}  # bins by the room in them
    rooms: list[int] = []  # the rooms that there are, sorted
    for row in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[row])
        if (at := bisect_left(rooms, size)) < len(rooms):
            room = rooms[at]
            number = spaces[room].pop()
            if not spaces[room]:
                del rooms[at]
        else:
            room, number = length, len(bins)
            bins.append([])
        bins[number].append(row)
        rest = room - size
        if not spaces.setdefault(rest, []):
            insort(rooms, rest)
        spaces[rest].append(number)
    return [np.sort(np.array(each, dtype=np.int64)) for each in bins]
