"""Makes tables of columns: streams of numbers, codes of strings, and what stands for nulls."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.arrays import ArrayTable
from ..data.batch import Batch, Stream
from ..data.encoding import Categories, Encoding
from ..data.fields import Field, cat
from ..data.maps import owned
from ..data.source import Table
from ..data.views import Concat
from ..errors import ConfigError, DataError, unknown
from .categories import ColumnPlace, distinct, is_text, leaf_of, leaves, refuse_numbers, strings_of
from .columns import fields_of
from .lazy import pa, pt
from .nulls import LEARNED, Fill, Fills, Nulls, filled, fills_of, learned, said_of, with_fill
from .paths import DataFile, reading
from .read import READ_AS, Batches
from .schema import categories_in, stream_name, streams_of
from .select import MadeOf, Selection, make_streams

MERGED_ROWS = 8192  # mapped record batches with fewer rows are joined, so that rows are gathered faster
MERGED_BYTES = 2**27  # the most that is joined so of a table
Arrays = Mapping[str, Tensor]
Columns = tuple[Any, Batches | Arrays]
"""A file, or what a frame is called in messages, and its columns."""


@dataclass(frozen=True)
class Request:
    """The arguments of `open_table`, checked."""

    selection: Selection = field(default_factory=Selection)
    categories: Categories = field(default_factory=dict)
    streams: tuple[Stream, ...] = ()
    nulls: Nulls = field(default_factory=dict)
    like: Encoding = field(default_factory=Encoding)
    """How other data were read. Of its columns any may be missing, or may hold no strings."""
    cache: Path | None = None
    memory_bytes: int | None = None

    def fills(self) -> dict[str, Fill]:
        """What stands for nulls by column."""
        columns_of = self.selection.columns_of
        known = {name: values for name, values in self.like.nulls.items() if name not in self.nulls}
        return fills_of(known, columns_of, optional=True) | fills_of(self.nulls, columns_of)

    def text_types(self) -> dict[str, str]:
        """The types that columns of text are read as, where the request says so."""
        kinds = {name: kind for name, kind in self.selection.dtypes.items() if kind in READ_AS}
        kinds |= dict.fromkeys(self.categories, "string")
        kinds |= {name: "string" for name, strings in self.like.categories.items() if strings}
        types = {column: kind for name, kind in kinds.items() for column in self.selection.columns_of(name)}
        return types | {column: "string" for column, fill in self.fills().items() if fill.text}

    def settings(self) -> list[Any]:
        """What the rows of a table depend on besides its files."""
        like = (sorted(self.like.categories.items()), sorted(self.like.nulls.items()))
        chosen = (self.selection.columns, sorted(self.selection.dtypes.items()))
        return [*chosen, sorted(self.categories.items()), self.streams, sorted(self.nulls.items()), *like]


class FileColumns:
    """The columns of one file: what they hold, and which streams they become."""

    def __init__(self, where: Any, data: Batches | Arrays, request: Request, fills: Fills) -> None:
        self.where, self.fills = where, fills
        self.texts: dict[str, list[str] | None] = {}
        """The columns of strings, each with its categories where the file stores them."""
        self.categories: Mapping[str, Sequence[str]] = {}
        self.made: list[MadeOf] = []
        if isinstance(data, Batches):
            with reading(str(where)):
                self._learn(_schema_of(where, data), request)
            if empty := [name for name in data.empty if name not in fills]:
                raise _empty(empty[0], where)
        else:
            self.streams = {name: Stream.of(stream_name(name), array) for name, array in data.items()}

    def _learn(self, schema: Any, request: Request) -> None:
        if empty := [column.name for column in schema if pt.is_null(column.type) and column.name not in self.fills]:
            raise _empty(empty[0], self.where)
        if self.fills:  # which may make other types
            schema = filled(pa.RecordBatch.from_pylist([], schema=schema), self.fills, str(self.where)).schema
        for stream in request.streams:
            if stream.name not in schema.names:
                raise ConfigError(f"streams=: {self.where}: {unknown('column', stream.name, schema.names)}")
        self.streams = streams_of(schema, request.streams, str(self.where))
        stored = categories_in(schema)
        self.texts = {column.name: stored.get(column.name) for column in schema if is_text(leaves(column.type))}

    @property
    def names(self) -> set[str]:
        """The columns that are read."""
        return set(self.streams)

    @property
    def made_streams(self) -> list[Stream]:
        """The streams that are made of them."""
        return [made.stream for made in self.made]

    def encode(self, batch: Any, first: int) -> dict[str, Field]:
        """The streams of a record batch; `first` is the number of its first row, for messages."""
        where = str(self.where)
        with reading(where):
            batch = filled(batch, self.fills, where) if self.fills else batch
            fields = fields_of(batch, self.streams, self.categories, where=where, first=first)
        return make_streams(self.made, fields, lambda row: f"{where}, row {first + row}")

    def arrays(self, data: Arrays) -> dict[str, Field]:
        """The streams of the arrays of a file."""
        return make_streams(self.made, data, lambda row: f"{self.where}, row {row}")


class Encoder:
    """Makes streams of the columns of files of one kind."""

    def __init__(self, columns: Sequence[Columns], request: Request) -> None:
        self.columns, fills = columns, request.fills()
        self.files = [FileColumns(where, data, request, fills) for where, data in columns]
        first = self.files[0]
        fills = {column: fill for column, fill in fills.items() if not fill.optional or column in first.names}
        texts = {column for file in self.files for column in file.texts}
        for file in self.files:
            refuse_numbers(request.like.categories, file.names - texts, file.where)
        known = self._known(texts, request)
        unknown_fills = {column for column, fill in fills.items() if fill.value in LEARNED}
        looked = self._look(texts - known.keys(), unknown_fills)
        for column in unknown_fills:
            fills[column] = learned(fills[column], looked[column], ColumnPlace(column, str(first.where)))
        strings = known | {column: strings_of(looked[column]) for column in texts - known.keys()}
        given = {column for name in request.categories for column in request.selection.columns_of(name)}
        categories = {column: with_fill(each, column, fills, column in given) for column, each in strings.items()}
        for file in self.files:
            file.fills, file.categories = fills, categories
            file.made = request.selection.made_of(file.streams, file.texts, file.where)
            if file.made_streams != first.made_streams:
                raise DataError(_unlike(first.where, first.made_streams, file.where, file.made_streams))
        self.encoding = self._encoding(request, fills, categories)

    def _known(self, texts: Collection[str], request: Request) -> dict[str, Sequence[str]]:
        """The categories of columns of strings that were given, or that all files store alike."""
        found: dict[str, Sequence[str]] = {}
        for column in texts:
            stored = [file.texts.get(column) for file in self.files]
            if stored[0] is not None and stored.count(stored[0]) == len(stored):
                found[column] = stored[0]
        for name, strings in request.like.categories.items():
            found |= {
                column: list(strings) for column in request.selection.columns_of(name) if column in texts and strings
            }
        for name, strings in request.categories.items():
            for column in request.selection.columns_of(name):
                if column not in texts:
                    held = sorted(texts) or ["none"]
                    raise ConfigError(f"categories=: {unknown('column of strings', name, held)}")
                found[column] = list(strings)
        return found

    def _look(self, texts: Collection[str], numbers: Collection[str]) -> dict[str, list[Any]]:
        """The different strings, and the numbers, of columns in one pass over all rows."""
        found: dict[str, list[Any]] = {column: [] for column in {*texts, *numbers}}
        for where, data in self.columns if found else ():
            for batch in data.make() if isinstance(data, Batches) else ():
                for column, arrays in found.items():
                    array, place = batch.column(column), ColumnPlace(column, str(where))
                    with reading(str(where)):
                        arrays.append(distinct(leaf_of(array, place)) if column in texts else array)
        return found

    def _encoding(self, request: Request, fills: Fills, categories: Mapping[str, Sequence[str]]) -> Encoding:
        streams = self.files[0].made_streams
        by_stream = {
            stream.name: list(categories[column])
            for stream in streams
            for column in request.selection.columns_of(stream.name)
            if column in categories
        }
        there = {column: fill for column, fill in fills.items() if column in self.files[0].names}
        nulls = said_of({**request.like.nulls, **request.nulls}, there, request.selection.columns_of)
        return Encoding(tuple(streams), by_stream, nulls, request.selection.columns)

    def batches(self) -> Iterator[Batch]:
        """All rows, one record batch after the other."""
        for file, (_, data) in zip(self.files, self.columns, strict=True):
            first = 0
            for batch in data.make() if isinstance(data, Batches) else ():
                yield Batch(file.encode(batch, first), batch.num_rows)
                first += batch.num_rows

    def in_memory(self) -> dict[str, Field]:
        """All rows as streams, in memory."""
        parts = [dict(batch.fields) for batch in self.batches()]
        return {name: cat([part[name] for part in parts]) for name in parts[0]}

    def table(self) -> Table:
        """All rows: those of mapped files in place, others in memory."""
        tables: list[Table] = []
        parts: list[dict[str, Field]] = []  # rows in memory, which are joined
        spare = MERGED_BYTES
        for file, (where, data) in zip(self.files, self.columns, strict=True):
            if not isinstance(data, Batches):
                tables += [*_joined(parts), MappedRows(file.arrays(data), where)]
                continue
            batches = [batch for batch in data.make() if batch.num_rows]
            size = data.nbytes if data.mapped else 0.0
            merges = len(batches) > 1 and sum(b.num_rows for b in batches) < MERGED_ROWS * len(batches)
            in_place = data.mapped and not (merges and size <= spare)
            spare -= int(size) if data.mapped and not in_place else 0
            first = 0
            for batch in batches:
                rows = file.encode(batch, first)
                if in_place:
                    tables += [*_joined(parts), MappedRows(rows, where)]
                else:
                    parts.append(rows)
                first += batch.num_rows
        tables += _joined(parts)
        if not tables:
            others = ", nor have the others" if len(self.files) > 1 else ""
            raise DataError(f"{self.files[0].where} has no rows{others}.")
        return tables[0] if len(tables) == 1 else Concat(tables)


class MappedRows(ArrayTable):
    """Rows of a mapped file, whose numbers are used in place. Whoever reads them gets copies."""

    aliases = False

    def __init__(self, columns: Mapping[str, Field], file: DataFile) -> None:
        super().__init__(columns)
        self._file = file

    def take(self, indices: Tensor) -> Batch:
        self._file.check()
        return super().take(indices)

    def rows(self, start: int, stop: int) -> Batch:
        self._file.check()
        return owned(super().rows(start, stop))  # nobody may write into the file


def _empty(column: str, where: Any) -> DataError:
    return DataError(
        f"column {column!r} of {where} is empty in every row. Fill it, or leave it out of the columns that are read."
    )


def _schema_of(where: Any, data: Batches) -> Any:
    if data.schema is not None:
        return data.schema
    first = next(iter(data.make()), None)
    if first is None:
        raise DataError(f"{where} has no rows.")
    return first.schema


def _joined(parts: list[dict[str, Field]]) -> list[Table]:
    """The rows that have been collected, as one table; they are taken out."""
    if not parts:
        return []
    names = list(parts[0])
    columns = {name: cat([part.pop(name) for part in parts]) for name in names}
    parts.clear()
    return [ArrayTable(columns)]


def _unlike(one: Any, its: Sequence[Stream], other: Any, others: Sequence[Stream]) -> str:
    """How two files differ in their streams."""
    there = {stream.name: stream for stream in others}
    for stream in its:
        if stream.name not in there:
            return f"{one} has a stream {stream.name!r} and {other} has not. columns= says which are read."
        if there[stream.name] != stream:
            return (
                f"stream {stream.name!r} is {_kind(stream)} in {one} and {_kind(there[stream.name])} in {other}. "
                f"Make them one: dtypes={{{stream.name!r}: 'float32'}}, or write one of the files again."
            )
    added = sorted(set(there) - {stream.name for stream in its})
    if not added:
        return f"{one} and {other} have their streams in another order. columns= says which are read, and in which."
    return f"{other} has a stream {added[0]!r} and {one} has not. columns= says which are read."


def _kind(stream: Stream) -> str:
    return str(stream).partition(": ")[2]
