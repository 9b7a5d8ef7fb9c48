"""Reads files as Arrow record batches: one function for each format."""

import csv as plain_csv
import io
import json as plain_json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np

from ..errors import DataError
from .lazy import csv, json, pa, pc, pq, pt
from .paths import DataFile, reading
from .schema import index_in

READ_AS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
"""What a column of text may be read as."""
TEXT_BLOCK_BYTES = 2**24  # types are told by the first block of a text that is read piece by piece
HEAD_BYTES = 2**20
AT_ONCE_BYTES = 2**22  # of a text that is read in several threads; a row has to fit in
BATCH_ROWS, BATCH_BYTES = 65536, 2**24  # of a record batch of Parquet
Select = Callable[..., list[str]]
"""Chooses among the names of the columns of a file; a second argument names those that are read only if asked for."""
Types = Mapping[str, str]
"""The Arrow types of columns of text that are known already."""


@dataclass(frozen=True)
class Batches:
    """The columns of a file, or of a frame, as record batches that can be gone through several times."""

    make: Callable[[], Iterable[Any]]
    nbytes: float = 0.0
    """About how many bytes all of them take in memory."""
    block: int = 0
    """How many rows lie together in the file, if any do."""
    mapped: bool = False
    """Whether they lie in a mapped file, so that they take no memory."""
    schema: Any = None
    """The names and types of the columns; if it is `None`, the first record batch has them."""
    empty: Sequence[str] = ()
    """The columns that are known to be null in every row."""
    load: Callable[[], Any] | None = None
    """Reads all of them at once as a table of Arrow's, where that is faster."""

    def loaded(self) -> "Batches":
        """The same rows in memory, in as few record batches as can be."""
        table = pa.Table.from_batches(self.make(), self.schema) if self.load is None else self.load()
        table.validate()
        empty = [name for name in table.column_names if 0 < table.num_rows == table[name].null_count]
        batches = joined(table)
        return Batches(lambda: batches, self.nbytes, self.block, schema=table.schema, empty=empty)


def joined(table: Any) -> list[Any]:
    """A table of Arrow's as few record batches as can be; joining dictionaries would reorder them, so they stay."""
    together = not any("dictionary" in str(column.type) for column in table.columns)
    batches: list[Any] = (table.combine_chunks() if together else table).to_batches()
    return batches


# --- Parquet, and Arrow's own files ------------------------------------------------------------------------


def read_parquet(file: DataFile, select: Select, types: Types) -> Batches:
    """A Parquet file."""
    opened = pq.ParquetFile(file.open(), pre_buffer=file.local_path is None)
    schema, metadata = opened.schema_arrow, opened.metadata
    names = select(schema.names, index_in(schema))
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    counts = [group.num_rows for group in groups]
    # no further into the metadata: Arrow ends the process where those of a column are damaged
    size = sum(group.total_byte_size for group in groups) * len(names) / max(1, len(schema.names))
    kept = pa.schema([schema.field(name) for name in names])
    row_bytes = sum(map(_width, kept.types))
    batch_rows = int(max(1024, min(BATCH_ROWS, BATCH_BYTES / max(1, row_bytes))))

    def check(rows: int) -> None:
        if rows != sum(counts):
            raise DataError(f"{file} is damaged: its row groups have {rows} rows of {sum(counts)}. Write it again.")

    def make() -> Iterator[Any]:
        rows = 0
        with reading(file):
            for batch in opened.iter_batches(batch_rows, columns=names):
                rows += batch.num_rows
                yield batch.select(names)
        check(rows)

    def load() -> Any:
        with reading(file):
            table = opened.read(columns=names).select(names)
        check(table.num_rows)
        return table

    return Batches(make, max(size, sum(counts) * row_bytes), max(counts, default=0), schema=kept, load=load)


def read_ipc(file: DataFile, select: Select, types: Types) -> Batches:
    """An Arrow file, or one of Arrow's streams, as some libraries write them under the same name."""
    data = file.load()
    head = data.slice(0, min(6, data.size)).to_pybytes()
    if head.startswith(b"FEA1"):
        raise DataError(f"{file} is a Feather file of version 1. Write it again with version 2.")
    if head != b"ARROW1":
        with pa.ipc.open_stream(data) as stream:
            batches, schema = [batch for batch in stream if batch.num_rows], stream.schema
    else:
        opened = pa.ipc.open_file(data)
        batches, schema = _until_decoded(opened, data), opened.schema
    names = select(schema.names, index_in(schema))
    kept = pa.schema([schema.field(name) for name in names])
    batches = [batch.select(names) for batch in batches]
    if head != b"ARROW1" or _inside(batches, data):
        rows = [batch.num_rows for batch in batches if batch.num_rows]
        mapped = file.local_path is not None and _inside(batches, data)
        size = sum(batch.get_total_buffer_size() for batch in batches)
        return Batches(lambda: batches, size, max(rows, default=0), mapped, kept)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
    first, count = batches[0], opened.num_record_batches

    def make() -> Iterator[Any]:
        again = pa.ipc.open_file(data, options=options)
        for k in range(count):
            with reading(file):
                yield again.get_batch(k).select(names)

    return Batches(make, first.nbytes * count, schema=kept)


def _until_decoded(opened: Any, data: Any) -> list[Any]:
    """The record batches with rows of an Arrow file, up to the first that is not in place in the mapped file."""
    batches: list[Any] = []
    for k in range(opened.num_record_batches):
        batch = opened.get_batch(k)
        if batch.num_rows:
            batches.append(batch)
            if not _inside([batch], data):
                break
    return batches


def _inside(batches: Sequence[Any], data: Any) -> bool:
    """Whether record batches lie in a mapped file, rather than in memory that they were decoded into."""
    buffers = (buffer for batch in batches for column in batch.columns for buffer in column.buffers())
    return all(data.address <= b.address <= data.address + data.size for b in buffers if b is not None and b.size)


def _width(kind: Any) -> float:
    """At least how many bytes a value of an Arrow type takes."""
    if pt.is_fixed_size_list(kind):
        return float(_width(kind.value_type) * kind.list_size)
    return float(kind.bit_width / 8) if pt.is_primitive(kind) else 8.0


# --- text -------------------------------------------------------------------------------------------------


def read_csv(file: DataFile, select: Select, types: Types) -> Batches:
    """A CSV file with the names of its columns in the first line; `.tsv` is separated by tabs, `.gz` packed."""
    text = _Text(file)
    with text() as opened:
        head = opened.read(HEAD_BYTES)
    delimiter = "\t" if file.name.lower().removesuffix(".gz").endswith(".tsv") else ","
    held = _header(file, head, delimiter)
    if not (names := select(held)):  # whoever only asks for the names waits for no more
        return Batches(lambda: ())
    quotes = text.quotes
    if quotes % 2:
        _refuse_open_quote(file, text, delimiter)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=quotes != 0)
    first = _first_rows(head, parse)
    types = {name: kind for name, kind in types.items() if name in names}
    types = {name: kind for name, kind in types.items() if kind == "string" or not _is_text(first, name)}
    read, inferred = csv.ReadOptions(block_size=TEXT_BLOCK_BYTES), set(names) - types.keys()
    known = {name: pa.type_for_alias(kind) for name, kind in types.items()}
    convert = csv.ConvertOptions(include_columns=names, strings_can_be_null=True, column_types=known)

    def written(some: Sequence[str]) -> Iterator[str]:
        kinds = csv.ConvertOptions(include_columns=some, column_types=dict.fromkeys(some, pa.string()))
        with text() as opened, csv.open_csv(opened, read, parse, kinds) as batches:
            for column in (column for batch in batches for column in batch.columns):
                yield from column.filter(pc.match_substring_regex(column, f"^{_LONG}$")).to_pylist()

    def load() -> Any:
        with _advised(file, held, types), text() as opened:
            rows = csv.read_csv(opened, csv.ReadOptions(block_size=AT_ONCE_BYTES), parse, convert)
            _refuse_rounded(file, rows, inferred, written)
            return rows

    def make() -> Iterator[Any]:
        with _advised(file, held, types), text() as opened, csv.open_csv(opened, read, parse, convert) as batches:
            for batch in batches:
                _refuse_rounded(file, batch, inferred, written)
                yield batch

    growth = 4.0 if first is None else max(1.0, first.nbytes / len(head))
    return Batches(make, text.size * growth, load=load)


def read_json_lines(file: DataFile, select: Select, types: Types) -> Batches:
    """A file with a JSON object in each line, whose keys are the columns."""
    text, read = _Text(file), json.ReadOptions(block_size=TEXT_BLOCK_BYTES)
    with text() as opened, json.open_json(opened, read) as batches:
        names, schema = select(batches.schema.names), batches.schema
    exact = [(name, kind) for name, kind in types.items() if name in names and kind in ("string", "uint64")]
    exact = [(name, _within(schema.field(name).type, pa.type_for_alias(kind))) for name, kind in exact]
    parse = json.ParseOptions(explicit_schema=pa.schema(exact))
    inferred = set(names) - types.keys()

    def written(some: Sequence[str]) -> Iterator[str]:
        with text() as opened:
            for key, value in re.findall(_MEMBER, opened.read()):
                if plain_json.loads(key, strict=False) in some:  # Python escapes what is not ASCII
                    yield from re.findall(f"(?<![0-9.eE+-]){_LONG}(?=[],}}])", value.decode())

    def load() -> Any:
        with reading(file), text() as opened:
            rows = json.read_json(opened, read, parse).select(names)
            _refuse_rounded(file, rows, inferred, written)
            return rows

    def make() -> Iterator[Any]:
        with reading(file), text() as opened, json.open_json(opened, read, parse) as batches:
            for batch in batches:
                _refuse_rounded(file, batch, inferred, written)
                yield batch.select(names)

    return Batches(make, 2.0 * text.size, load=load)


def _within(kind: Any, item: Any) -> Any:
    """An Arrow type of items, in lists as those of another type are."""
    return pa.list_(_within(kind.value_type, item)) if pt.is_list(kind) else item


class _Text:
    """The text of a file, unpacked; each call opens it at its beginning."""

    def __init__(self, file: DataFile) -> None:
        self._data, self._packed = file.load(), file.name.lower().endswith(".gz")
        self.size = self._data.size * (4 if self._packed else 1)
        """How many bytes it has; a guess if it is packed."""

    def __call__(self) -> Any:
        plain = pa.BufferReader(self._data)
        return pa.CompressedInputStream(plain, "gzip") if self._packed else plain

    @property
    def quotes(self) -> int:
        """How many quotes there are after the first line, within which lines may break."""
        with self() as opened:
            first = opened.read(HEAD_BYTES)
            parts = chain([first[first.find(b"\n") + 1 :]], iter(lambda: opened.read(HEAD_BYTES), b""))
            return sum(int(np.count_nonzero(np.frombuffer(part, np.uint8) == ord('"'))) for part in parts)


def _refuse_open_quote(file: DataFile, text: "_Text", delimiter: str) -> None:
    """Raises if a quote is never closed: to Arrow, the rest of the file would be one value."""
    before, line = plain_csv.field_size_limit(sys.maxsize), 1
    try:
        rows = plain_csv.reader(io.TextIOWrapper(text(), "utf-8", "replace", ""), delimiter=delimiter, strict=True)
        for _ in rows:
            line = rows.line_num + 1
    except plain_csv.Error as error:
        if "unexpected end" in str(error):  # Arrow judges anything else
            raise DataError(
                f"{file}, line {line}: a quote is opened and never closed. Close it, or write it twice, within quotes."
            ) from None
    finally:
        plain_csv.field_size_limit(before)


def _header(file: DataFile, head: bytes, delimiter: str) -> list[str]:
    """The names of the columns of a CSV file."""
    lines = io.StringIO(head.decode("utf-8-sig", errors="replace"), newline="")
    names = next((row for row in plain_csv.reader(lines, delimiter=delimiter) if row), [])
    if odd := [name for name in names if "\ufffd" in name]:
        raise DataError(f"{file}: column {odd[0]!r} is not in UTF-8. {_RECODE}")
    return names


_LONG = r"\s*[+-]?[0-9]{19,}\s*"
_MEMBER = rb'("(?:[^"\\\n]|\\.)*")\s*:(\s*\[[^]"{]*\]|%b[,}])' % _LONG.encode()


def _refuse_rounded(file: DataFile, rows: Any, inferred: set[str], written: Callable[..., Iterator[str]]) -> None:
    """Raises on a whole number of more than 64 bits: Arrow takes it for a fraction, and rounds it.

    `inferred`: the columns whose types Arrow tells; those that have been looked at leave it. `written` reads the long
    whole numbers of columns as they stand in the file.
    """
    columns = {name: rows.column(name) for name in inferred}
    columns = {name: pc.list_flatten(each) if pt.is_list(each.type) else each for name, each in columns.items()}
    fractions = {name: column for name, column in columns.items() if pt.is_float64(column.type)}
    large = [name for name, column in fractions.items() if pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py()]
    inferred.difference_update(large)
    for text in written(large) if large else ():
        number = Decimal(text.strip())
        if not -(2**63) <= number < 2**63 and number != Decimal(float(text)):
            raise DataError(f"{file}: {text.strip()[:40]} does not fit int64, and would be rounded. {_UNROUNDED}")


_UNROUNDED = "Say what its column holds, dtypes={name: 'uint64'} or 'float64', or leave it out: columns=[...]."


def _first_rows(head: bytes, parse: Any) -> Any:
    """The first rows of a CSV file as Arrow infers them; `None` if it cannot."""
    some = csv.ParseOptions(delimiter=parse.delimiter, newlines_in_values=True, invalid_row_handler=lambda row: "skip")
    nulls = csv.ConvertOptions(strings_can_be_null=True)
    try:
        found = csv.read_csv(pa.BufferReader(head), parse_options=some, convert_options=nulls)
    except pa.ArrowException:
        return None
    return found if found.num_rows else None


def _is_text(first: Any, name: str) -> bool:
    """Whether a column is one of strings by its first rows, none of which begins as a number does."""
    if first is None:
        return False
    column = first.column(name)
    return bool(pt.is_string(column.type)) and not pc.any(pc.match_substring_regex(column, r"^\s*[+-]?[0-9.]")).as_py()


@contextmanager
def _advised(file: DataFile, names: Sequence[str], types: Types) -> Iterator[None]:
    """Adds a remedy to Arrow's error for a value that is not of the type of its column."""
    with reading(file):
        try:
            yield
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            raise DataError(f"{file}: {_advice(str(error).rstrip('.'), names, types)}") from None


_RECODE = "Write the file in UTF-8: iconv -f LATIN1 -t UTF-8."


def _advice(said: str, names: Sequence[str], types: Types) -> str:
    found = re.search(r"column #([0-9]+)", said)
    name = names[int(found[1])] if found and int(found[1]) < len(names) else "name"
    if "invalid UTF8" in said:
        return f"{said}. {_RECODE}"
    if name in types:
        return f"{said}, in column {name!r}. Correct it, or give it another type than {types[name]}."
    return (
        f"{said}, in column {name!r}, which begins otherwise. Say what it holds: dtypes={{{name!r}: 'float64'}}, or, "
        f"if it holds strings, categories={{{name!r}: [...]}}."
    )
