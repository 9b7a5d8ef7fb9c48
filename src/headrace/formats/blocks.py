"""Open files, and their rows in blocks: mapped into memory, or decoded when needed and cached."""

import threading
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.arrays import populate
from ..data.batch import Batch, Stream
from ..data.fields import Field, map_tensors, nbytes_of, take, tensors_of
from ..data.source import Categories, Table, forwarded
from .paths import DataFile, reading
from .select import Picks

BUDGET_BYTES = 2**28
SCATTERED = 16  # blocks decoded again before a word is said
Fields = Mapping[str, Field]


class OpenFile(ABC):
    """An open data file: its streams, and its rows in blocks."""

    held = False
    """Whether rows lie in memory or in a mapped file, so that reading them again costs nothing."""

    light = False
    """Whether all columns of a held block lie in place: nothing has to be decoded or joined."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.streams: Sequence[Stream] = ()
        self.counts: Sequence[int] = ()
        """Rows of each block."""
        self.texts: Mapping[str, Any] = {}
        """The columns of strings, each with its categories where the file stores them."""

    @abstractmethod
    def read(self, block: int, first: int, categories: Categories, only: Collection[str] = ()) -> Fields:
        """Reads a block: all columns, or at least these.

        `first` is the number of its first row in the file, for messages.
        """

    def gather(self, budget_bytes: int) -> int:
        """Joins many small blocks into one, if that takes at most so many bytes; returns the bytes it takes."""
        return 0

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor of a `held` file lies in the memory of the file itself, and is no copy."""
        return True

    def strings(self, column: str) -> Iterator[Any]:
        """The strings of a column, as Arrow arrays."""
        yield from ()

    def nbytes(self, block: int) -> float:
        """About how many bytes the rows of a block take."""
        return 0.0

    @property
    def run(self) -> int:
        """How many rows lie together, for orders that go by blocks."""
        return max(self.counts, default=1)


class BlockCache:
    """Caches decoded blocks: those used last, up to so many bytes. Any thread may call it."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self._held: OrderedDict[Any, tuple[Fields, int]] = OrderedDict()
        self._bytes = 0
        self._seen: set[Any] = set()
        self._again = self._decoded = self._taken = 0
        self._lock = threading.Lock()

    def get(self, key: Any, rows: int, decode: Callable[[], Fields]) -> Fields:
        with self._lock:
            self._taken += rows
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        fields = decode()
        size = nbytes_of(fields)
        with self._lock:
            self._count(key, fields)
            self._bytes += size - self._held.pop(key, ({}, 0))[1]
            self._held[key] = fields, size
            while self._bytes > self.budget_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
        return fields

    def _count(self, key: Any, fields: Fields) -> None:
        """Warns once when most decoded rows are thrown away unused."""
        self._again += key in self._seen
        self._seen.add(key)
        self._decoded += max((len(field) for field in fields.values()), default=0)  # type: ignore[arg-type]
        if self._again == SCATTERED and self._decoded > 4 * self._taken:
            warnings.warn(
                f"rows are taken from all over files whose blocks are decoded whole: {self._decoded} rows decoded for "
                f"{self._taken}. Read by blocks, with order='blocks', or make it .arrow with hr.write_table.",
                stacklevel=2,
            )


class Block(Table):
    """One block of a file, as a Table."""

    aliases = False
    thread_safe = True

    def __init__(
        self, store: OpenFile, number: int, first: int, picks: Picks, categories: Categories, cache: BlockCache
    ) -> None:
        self._store, self._number, self._first = store, number, first
        self._picks, self._raw_categories, self._cache = picks, categories, cache
        self._in_file: Fields | None = None
        """The columns that are read in place, once they are known. Only the cache keeps the others."""
        self._others: list[str] = []

    streams: Sequence[Stream] = forwarded("_picks.streams")

    def __len__(self) -> int:
        return self._store.counts[self._number]

    def prepare(self) -> None:
        """Prepares the block now if that costs nothing.

        Done block by block while rows are read, the little that is kept of each would lie between the batches in the
        heap, and keep their memory from being used again.
        """
        if self._store.held and self._store.light:
            self._in_place()

    def take(self, indices: Tensor) -> Batch:
        fields = self._fields(len(indices))
        return self._picked({name: take(field, indices) for name, field in fields.items()}, indices)

    def rows(self, start: int, stop: int) -> Batch:
        fields = self._fields(stop - start)  # copied, so that nobody writes into a file or into what is kept
        cut: Fields = {name: map_tensors(field[start:stop], torch.clone) for name, field in fields.items()}  # type: ignore[index]
        return self._picked(cut, torch.arange(start, stop))

    def lengths(self, stream: str) -> Tensor:
        name = self._picks.column_of(self.sequence(stream).name)
        in_file = self._in_place()
        field = (in_file if name in in_file else self._read([name]))[name]
        return field.host_offsets.diff()  # type: ignore[union-attr]

    def resident(self, device: torch.device) -> bool:
        return device.type == "cpu" and self._store.held  # the system reads ahead: no thread has to

    def prefetch(self, start: int, stop: int, *, now: bool = True) -> None:
        for field in self._in_place().values():
            populate(field[start:stop], now)  # type: ignore[index]

    @property
    def row_bytes(self) -> float:
        return self._store.nbytes(self._number) / max(1, len(self)) or super().row_bytes

    def _fields(self, rows: int) -> Fields:
        in_file = self._in_place()
        if in_file and not self._others:
            return in_file
        decoded = self._cache.get(self._key, rows, lambda: self._read(self._others))
        return {**in_file, **decoded}

    @property
    def _key(self) -> tuple[int, int]:
        return id(self._store), self._number

    def _in_place(self) -> Fields:
        self._store.file.check()
        if self._in_file is None:
            read = self._read() if self._store.held else {}
            in_file = {name: field for name, field in read.items() if all(map(self._store.holds, tensors_of(field)))}
            decoded = {name: field for name, field in read.items() if name not in in_file}
            if decoded:
                self._cache.get(self._key, 0, lambda: decoded)
            self._others = list(decoded)
            self._in_file = in_file  # last: another thread may be here
        return self._in_file

    def _read(self, only: Collection[str] = ()) -> Fields:
        with reading(self._store.file):
            return self._store.read(self._number, self._first, self._raw_categories, only)

    def _picked(self, fields: Fields, indices: Tensor) -> Batch:
        where = str(self._store.file)
        return Batch(self._picks(fields, lambda item: f"{where}, row {self._first + int(indices[item])}"), len(indices))
