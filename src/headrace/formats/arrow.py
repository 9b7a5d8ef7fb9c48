"""Files of Arrow, Parquet and CSV: record batches in a mapped file, in memory, or decoded one by one."""

import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..data.batch import Stream
from ..data.fields import cat
from ..data.source import Categories
from ..errors import ConfigError, DataError, unknown
from .blocks import Fields, OpenFile
from .categories import ColumnPlace, is_text, leaf_of, leaves, refuse_nulls, shown
from .columns import fields_of
from .lazy import csv, pa, pc, pq, pt
from .nulls import Fill, Fills, filled, filled_schema, learned
from .paths import DataFile, reading
from .schema import categories_in, index_in, streams_of
from .select import inner

READ_AS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
"""What a column of a CSV file may be read as."""
CSV_BLOCK_BYTES = 2**24  # types are told by the first block of the text
JOINED_ROWS = 8192  # rows of fewer batches are gathered faster
Wanted = Callable[..., list[str]]


class ArrowFile(OpenFile):
    """A file that comes as Arrow record batches, one for each block."""

    def __init__(self, file: DataFile, schema: Any, declared: Sequence[Stream], fills: Fills) -> None:
        super().__init__(file)
        schema = pa.schema([field.with_name(inner(field.name)) for field in schema])
        schema = filled_schema(schema, fills, str(file))
        self._fills = dict(fills)
        self._sources = {fill.indicator: column for column, fill in fills.items() if fill.indicator}
        for stream in declared:
            if stream.name not in schema.names:
                raise ConfigError(
                    f"streams=: {file}: {unknown('column', shown(stream.name), map(shown, schema.names))}"
                )
        self.streams = streams_of(schema, declared, str(file))
        said = categories_in(schema)
        self.texts = {field.name: said.get(field.name) for field in schema if is_text(leaves(field.type))}

    @abstractmethod
    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        """The rows of a block, of these columns only or of all that are read, by their inner names."""

    def read(self, block: int, first: int, categories: Categories, only: Collection[str] = ()) -> Fields:
        streams = [stream for stream in self.streams if not only or stream.name in only]
        parts = list[Fields]()
        columns = dict.fromkeys(self._sources.get(stream.name, stream.name) for stream in streams)
        for batch in self.batches(block, list(columns) if only else None):
            batch = filled(batch, self._fills, str(self.file)) if self._fills else batch
            parts.append(fields_of(batch, streams, categories, where=str(self.file), first=first))
            first += batch.num_rows
        return {stream.name: cat([part[stream.name] for part in parts]) for stream in streams}

    def strings(self, column: str) -> Iterator[Any]:
        for part in self._parts(column):
            yield leaf_of(part, ColumnPlace(column, str(self.file)))

    def learn(self, column: str, others: Sequence["ArrowFile"]) -> Fill:
        """What stands for the nulls of a column by its rows in this file and in the others."""
        with reading(self.file):
            parts = [part for file in (self, *others) for part in file._parts(column)]
            return learned(self._fills[column], parts, ColumnPlace(column, str(self.file)))

    def put_fill(self, column: str, fill: Fill) -> None:
        """Sets what stands for the nulls of a column."""
        self._fills[column] = fill

    def _parts(self, column: str) -> Iterator[Any]:
        """The rows of a column as they are in the file."""
        for block in range(len(self.counts)):
            for batch in self.batches(block, [column]):
                yield batch.column(0)


class HeldArrowFile(ArrowFile):
    """Record batches that are in memory, or mapped into it."""

    held = True

    def __init__(
        self, file: DataFile, schema: Any, batches: Sequence[Any], declared: Sequence[Stream], fills: Fills
    ) -> None:
        super().__init__(file, schema, declared, fills)
        self._batches = [batch for batch in batches if batch.num_rows]
        self._joined = False
        self.light = all(map(_is_in_place, schema.types)) and not fills
        self.counts = [batch.num_rows for batch in self._batches]
        self._run = max(self.counts, default=1)
        self._spans = np.array(sorted(set(_spans(self._batches))), np.int64).reshape(-1, 2)
        first = 0
        for batch in self._batches:
            batch.validate()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if inner(name) in fills:
                    continue
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
    while pt.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pt.is_integer(kind) or pt.is_floating(kind))


class DecodedArrowFile(ArrowFile):
    """Record batches that are compressed, or on another machine: each is read when it is wanted."""

    def __init__(
        self, file: DataFile, schema: Any, columns: Sequence[int], declared: Sequence[Stream], fills: Fills
    ) -> None:
        super().__init__(file, pa.schema([schema.field(index) for index in columns]), declared, fills)
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
        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        return pa.ipc.open_file(self.file.open(), options=options)


def open_ipc(file: DataFile, wanted: Wanted, declared: Sequence[Stream], fills: Fills) -> ArrowFile:
    """An Arrow file, or one of Arrow's streams, as some libraries write them under the same name."""
    with reading(file):
        data = file.load() if file.remote is None else None
        with file.open() as opened:
            head = bytes(opened.read(6))
        if head.startswith(b"FEA1"):
            raise DataError(f"{file} is a Feather file of version 1. Write it again with version 2.")
        if head != b"ARROW1":
            with pa.ipc.open_stream(file.load() if data is None else data) as reader:
                names = wanted(reader.schema.names, index_in(reader.schema))
                schema = pa.schema([reader.schema.field(name) for name in names])
                return HeldArrowFile(file, schema, [batch.select(names) for batch in reader], declared, fills)
        with file.open() as opened:
            schema = pa.ipc.open_file(opened).schema
        columns = [schema.names.index(name) for name in wanted(schema.names, index_in(schema))]
        if data is not None:
            batches = _all(data, columns)  # whole, and then the wanted columns: asked for some, Arrow copies them
            if _inside(batches, data):
                kept = pa.schema([schema.field(index) for index in columns])
                return HeldArrowFile(file, kept, batches, declared, fills)
        return DecodedArrowFile(file, schema, columns, declared, fills)


def _all(data: Any, columns: Sequence[int]) -> list[Any]:
    """The record batches of a mapped file up to the first with rows, and the others if that one lies in place."""
    reader = pa.ipc.open_file(data)
    batches: list[Any] = []
    for number in range(reader.num_record_batches):
        batches.append(reader.get_batch(number).select(list(columns)))
        if not _inside(batches[-1:], data):
            break
    return batches


def _inside(batches: Sequence[Any], data: Any) -> bool:
    """Whether record batches lie in a mapped file, rather than in memory that they were decoded into."""
    return all(data.address <= start <= data.address + data.size for start, _ in _spans(batches))


def _spans(batches: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Where the bytes of record batches begin and stop in memory."""
    for batch in batches:
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None and buffer.size:
                    yield buffer.address, buffer.address + buffer.size


def _decoded_bytes(batch: Any) -> int:
    """At most how many bytes the rows of a record batch take once they are copied: bits and codes become larger."""

    kinds = [leaves(column.type) for column in batch.columns]
    growth = [8 if pt.is_boolean(kind) or pt.is_dictionary(kind) else 1 for kind in kinds]
    return sum(column.get_total_buffer_size() * times for column, times in zip(batch.columns, growth, strict=True))


def _inner(batch: Any) -> Any:
    return batch.rename_columns([inner(name) for name in batch.schema.names])


# --- Parquet ----------------------------------------------------------------------------------------------


class ParquetFile(ArrowFile):
    """A Parquet file, one block for each of its row groups."""

    def __init__(
        self, file: DataFile, opened: Any, names: Sequence[str], declared: Sequence[Stream], fills: Fills
    ) -> None:
        schema = opened.schema_arrow
        super().__init__(file, pa.schema([schema.field(name) for name in names]), declared, fills)
        self._opened, self._lock = opened, threading.Lock()
        self._names = {inner(name): name for name in names}
        groups = [opened.metadata.row_group(k) for k in range(opened.metadata.num_row_groups)]
        self._groups = [k for k, group in enumerate(groups) if group.num_rows]
        self.counts = [groups[k].num_rows for k in self._groups]
        # no further into the metadata: Arrow ends the process where those of a column are damaged
        part = len(names) / max(1, len(schema.names))
        self._sizes: list[float] = [groups[k].total_byte_size * part for k in self._groups]

    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        names = [self._names[name] for name in columns or self._names]
        with self._lock:  # one position in one file
            table = self._opened.read_row_group(self._groups[block], columns=names)
        if table.num_rows != self.counts[block]:
            raise DataError(f"{self.file} is damaged: a row group has {table.num_rows} rows of {self.counts[block]}.")
        table = table.select(names).rename_columns([inner(name) for name in names])
        found: list[Any] = table.combine_chunks().to_batches()
        return found

    def nbytes(self, block: int) -> float:
        return self._sizes[block]


def open_parquet(file: DataFile, wanted: Wanted, declared: Sequence[Stream], fills: Fills) -> ParquetFile:
    """A Parquet file on a local disk or behind fsspec."""
    with reading(file):
        opened = pq.ParquetFile(file.open(), pre_buffer=file.remote is not None)
        schema = opened.schema_arrow
        return ParquetFile(file, opened, wanted(schema.names, index_in(schema)), declared, fills)


# --- CSV ---------------------------------------------------------------------------------------------------


def open_csv(
    file: DataFile, wanted: Wanted, declared: Sequence[Stream], fills: Fills, types: Mapping[str, str]
) -> HeldArrowFile:
    """The columns of a CSV file with a header; `types` are the Arrow types of those that are known already."""
    packed = file.name.lower().endswith(".gz")
    separator = "\t" if ".tsv" in file.name.lower() else ","
    with reading(file):
        data = file.load()
        if packed:
            with pa.CompressedInputStream(pa.BufferReader(data), "gzip") as text:
                data = text.read_buffer()
        parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        read = csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
        with csv.open_csv(pa.BufferReader(data), read, parse) as reader:
            names = wanted(reader.schema.names)
            types = {name: kind for name, kind in types.items() if name in names}
            first = next(reader, None) if types else None
        types = {name: kind for name, kind in types.items() if kind == "string" or not _is_text(first, name)}
        convert = csv.ConvertOptions(
            include_columns=names,
            strings_can_be_null=True,
            column_types={name: pa.type_for_alias(kind) for name, kind in types.items()},
        )
        try:
            table = csv.read_csv(pa.BufferReader(data), read, parse, convert).combine_chunks()
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            raise DataError(f"{file}: {_advised(str(error), reader.schema.names, types)}") from None
        _refuse_empty(file, table, fills)
        return HeldArrowFile(file, table.schema, table.combine_chunks().to_batches(), declared, fills)


def _refuse_empty(file: DataFile, table: Any, fills: Fills) -> None:
    """Raises on a column without values, whose type cannot be inferred."""
    if not table.num_rows and any(pt.is_null(field.type) for field in table.schema):
        raise DataError(f"{file} has no rows.")
    names = [name for name in table.column_names if inner(name) not in fills]
    if empty := [name for name in names if 0 < table.num_rows == table[name].null_count]:
        raise DataError(
            f"column {empty[0]!r} of {file} is empty in every row. "
            "Fill it, or leave it out of the columns that are read."
        )


def _is_text(first: Any, name: str) -> bool:
    """Whether a column is one of strings by its first rows, none of which begins as a number does."""
    if first is None:
        return False
    column = first.column(name)
    return bool(pt.is_string(column.type)) and not pc.any(pc.match_substring_regex(column, r"^\s*[+-]?[0-9.]")).as_py()


def _advised(said: str, names: Sequence[str], types: Mapping[str, str]) -> str:
    """Arrow's error for a value that is not of the type of its column, with a remedy."""
    found = re.search(r"column #([0-9]+)", said)
    name = names[int(found[1])] if found and int(found[1]) < len(names) else "name"
    said = said.rstrip(".")
    if "invalid UTF8" in said:
        return f"{said}. Write the file in UTF-8: iconv -f LATIN1 -t UTF-8."
    if name in types:
        return f"{said}, in column {name!r}. Correct it, or give it another type than {types[name]}."
    return (
        f"{said}, in column {name!r}, which begins otherwise. Say what it holds: dtypes={{{name!r}: 'float64'}}, or, "
        f"if it holds strings, categories={{{name!r}: [...]}}."
    )
