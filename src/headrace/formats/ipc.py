"""Arrow's own files: record batches in place in a mapped file, or decoded one by one: compressed or remote ones."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..data.arrow import categories_in, fields_of, streams_of
from ..data.batch import Stream
from ..data.categories import Categories, ColumnPlace, is_text, leaf_of, leaves, refuse_nulls, shown
from ..data.fields import cat
from ..data.schema import index_in
from ..errors import ConfigError, DataError, unknown
from .blocks import Fields, Store
from .paths import File, reading
from .select import inner

JOINED_ROWS = 8192  # rows of fewer batches are gathered faster
Wanted = Callable[..., list[str]]


class ArrowStore(Store):
    """A file that comes as Arrow record batches, one for each block."""

    def __init__(self, file: File, schema: Any, declared: Sequence[Stream]) -> None:
        import pyarrow as pa

        super().__init__(file)
        schema = pa.schema([field.with_name(inner(field.name)) for field in schema])
        for stream in declared:
            if stream.name not in schema.names:
                raise ConfigError(
                    f"streams=: {file}: {unknown('column', shown(stream.name), map(shown, schema.names))}"
                )
        self.streams = streams_of(schema, declared, str(file))
        said = categories_in(schema)
        self._texts = {field.name: said.get(field.name) for field in schema if is_text(leaves(field.type))}

    @abstractmethod
    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        """The rows of a block, of these columns only or of all that are read, by their inner names."""

    def read(self, block: int, first: int, categories: Categories, only: Collection[str] = ()) -> Fields:
        streams = [stream for stream in self.streams if not only or stream.name in only]
        parts = list[Fields]()
        for batch in self.batches(block, [stream.name for stream in streams] if only else None):
            parts.append(fields_of(batch, streams, categories, where=str(self.file), first=first))
            first += batch.num_rows
        return {stream.name: cat([part[stream.name] for part in parts]) for stream in streams}

    @property
    def texts(self) -> Mapping[str, Any]:
        return self._texts

    def strings(self, column: str) -> Iterator[Any]:
        for block in range(len(self.counts)):
            for batch in self.batches(block, [column]):
                yield leaf_of(batch.column(0), ColumnPlace(column, str(self.file)))


class HeldStore(ArrowStore):
    """Record batches that are in memory, or mapped into it."""

    held = True

    def __init__(self, file: File, schema: Any, batches: Sequence[Any], declared: Sequence[Stream]) -> None:
        super().__init__(file, schema, declared)
        self._batches = [batch for batch in batches if batch.num_rows]
        self._joined = False
        self.light = all(map(_is_in_place, schema.types))
        self.counts = [batch.num_rows for batch in self._batches]
        self._run = max(self.counts, default=1)
        self._spans = np.array(sorted(set(_spans(self._batches))), np.int64).reshape(-1, 2)
        first = 0
        for batch in self._batches:
            batch.validate()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                refuse_nulls(column, ColumnPlace(name, str(file), lambda item, first=first: first + item))  # type: ignore[misc]
            first += batch.num_rows

    def gather(self, budget_bytes: int) -> int:
        size = sum(map(_decoded_bytes, self._batches))
        if len(self.counts) < 2 or sum(self.counts) >= JOINED_ROWS * len(self.counts) or size > budget_bytes:
            return 0
        self._joined, self.light, self.counts = True, False, [sum(self.counts)]
        return size

    def holds(self, tensor: Tensor) -> bool:
        if not tensor.nbytes:
            return True
        at = int(np.searchsorted(self._spans[:, 0], tensor.data_ptr(), side="right")) - 1
        return at >= 0 and tensor.data_ptr() < self._spans[at, 1]

    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        held = map(_inner, self._batches if self._joined else [self._batches[block]])
        return [batch if columns is None else batch.select(list(columns)) for batch in held]

    @property
    def run(self) -> int:
        return self._run

    def nbytes(self, block: int) -> float:
        held = self._batches if self._joined else [self._batches[block]]
        return float(sum(batch.get_total_buffer_size() for batch in held))


def _is_in_place(kind: Any) -> bool:
    """Whether values of an Arrow type are numbers that lie end to end as torch wants them."""
    import pyarrow.types as pt

    while pt.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pt.is_integer(kind) or pt.is_floating(kind))


class DecodedStore(ArrowStore):
    """Record batches that are compressed, or on another machine: each is read when it is wanted."""

    def __init__(self, file: File, schema: Any, columns: Sequence[int], declared: Sequence[Stream]) -> None:
        import pyarrow as pa

        super().__init__(file, pa.schema([schema.field(index) for index in columns]), declared)
        self._columns = list(columns)
        self._lock = threading.Lock()
        cheapest = min(columns, key=lambda index: (pa.types.is_nested(schema.field(index).type), index))
        counting = self._reader([cheapest])
        counts = [counting.get_batch(k).num_rows for k in range(counting.num_record_batches)]
        self._numbers = [k for k, rows in enumerate(counts) if rows]
        self.counts = [rows for rows in counts if rows]
        self._opened = self._reader(self._columns)

    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        with self._lock:  # one position in one file
            batch = _inner(self._opened.get_batch(self._numbers[block]))
        return [batch if columns is None else batch.select(list(columns))]

    def _reader(self, columns: Sequence[int]) -> Any:
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        return pa.ipc.open_file(self.file.open(), options=options)


def open_ipc(file: File, wanted: Wanted, declared: Sequence[Stream]) -> ArrowStore:
    """An Arrow file, or one of Arrow's streams, as some libraries write them under the same name."""
    import pyarrow as pa

    with reading(file):
        data = file.load() if file.remote is None else None
        head = data[:6].to_pybytes() if data is not None else _first_bytes(file, 6)
        if head.startswith(b"FEA1"):
            raise DataError(f"{file} is a Feather file of version 1. Write it again with version 2.")
        if head != b"ARROW1":
            return _open_stream(file, file.load() if data is None else data, wanted, declared)
        with file.open() as opened:
            schema = pa.ipc.open_file(opened).schema
        columns = [schema.names.index(name) for name in wanted(schema.names, index_in(schema))]
        if data is not None:
            batches = _all(data, columns)  # whole, and then the wanted columns: asked for some, Arrow copies them
            if _inside(batches, data):
                kept = pa.schema([schema.field(index) for index in columns])
                return HeldStore(file, kept, batches, declared)
        return DecodedStore(file, schema, columns, declared)


def _open_stream(file: File, data: Any, wanted: Wanted, declared: Sequence[Stream]) -> HeldStore:
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        names = wanted(reader.schema.names, index_in(reader.schema))
        schema = pa.schema([reader.schema.field(name) for name in names])
        return HeldStore(file, schema, [batch.select(names) for batch in reader], declared)


def _all(data: Any, columns: Sequence[int]) -> list[Any]:
    """The record batches of a mapped file up to the first with rows, and the others if that one lies in place."""
    import pyarrow as pa

    reader = pa.ipc.open_file(data)
    batches: list[Any] = []
    for number in range(reader.num_record_batches):
        batches.append(reader.get_batch(number).select(list(columns)))
        if not _inside(batches[-1:], data):
            break
    return batches


def _inside(batches: Sequence[Any], data: Any) -> bool:
    """Whether record batches lie in a mapped file, rather than in memory that they were decoded into."""
    start, stop = data.address, data.address + data.size
    buffers = (buffer for batch in batches for column in batch.columns for buffer in column.buffers())
    return all(start <= buffer.address <= stop for buffer in buffers if buffer is not None and buffer.size)


def _spans(batches: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where the bytes of record batches begin and stop in memory."""
    for batch in batches:
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None and buffer.size:
                    yield buffer.address, buffer.address + buffer.size


def _decoded_bytes(batch: Any) -> int:
    """At most how many bytes the rows of a record batch take once they are copied: bits and codes become larger."""
    import pyarrow.types as pt

    def growth(kind: Any) -> int:
        return 8 if pt.is_boolean(kind) or pt.is_dictionary(kind) else 1

    return sum(column.get_total_buffer_size() * growth(leaves(column.type)) for column in batch.columns)


def _first_bytes(file: File, size: int) -> bytes:
    with file.open() as opened:
        return bytes(opened.read(size))


def _inner(batch: Any) -> Any:
    return batch.rename_columns([inner(name) for name in batch.schema.names])
