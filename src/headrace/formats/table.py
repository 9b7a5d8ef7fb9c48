"""Files and frames as tables: `open_table`, and `open_like` for data that are read as others were."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..data.arrays import ArrayTable
from ..data.batch import Stream
from ..data.encoding import Categories, Encoding
from ..data.source import Table, fingerprint_of
from ..data.views import Wrapper
from ..errors import ConfigError, DataError
from .cache import cached, free_bytes
from .encode import Columns as ColumnsOf
from .encode import Encoder, Request
from .frames import is_frame, read_frame, where_of
from .lazy import pa
from .npy import read_npy, read_npz
from .nulls import nulls_in
from .paths import SUFFIXES, DataFile, digests, find, reading
from .read import Batches, Select, Types, read_csv, read_ipc, read_json_lines, read_parquet
from .schema import index_in
from .select import Columns, Selection, are_numbers, begins_with_numbers, categories_in, no_names, streams_in

BLOCK_BYTES = 2**24
MEMORY_SHARE = 0.25  # of the free memory, which data may take


def open_table(
    path: Any,
    *,
    columns: Columns | None = None,
    dtypes: Mapping[str, Any] | None = None,
    categories: Categories | None = None,
    nulls: Mapping[str, Any] | None = None,
    streams: Sequence[Stream] | None = None,
    like: Table | Encoding | None = None,
    cache: str | Path | None = None,
    memory_bytes: int | None = None,
) -> Table:
    """Opens files, or a frame, as a table.

    `.npy` and `.arrow` files are mapped into memory. Others are read, up to `memory_bytes`. Larger ones are converted
    once into an Arrow file, which is mapped.

    Args:
        path: a file, a list of files, a pattern such as "train-*.parquet", a directory, or an fsspec URL such as
            "s3://bucket/train.parquet". The suffix names the format: `.npy` (stream "x"), `.npz`, `.arrow`, `.feather`,
            `.ipc`, `.parquet`, `.csv`, `.tsv`, `.jsonl` or `.ndjson`; text may also have `.gz`. Files are read one
            after the other: those of a list in its order, others sorted by name. Also a pandas or Polars frame, or a
            `pa.Table`.
        columns: the columns to read, `["a", "b"]`, or the streams to make of them, `{"x": ["width", "height"], "y":
            "species"}`. Several columns of numbers become one stream of vectors.
        dtypes: as in `{"x": "float32"}`. A number that does not fit is an error; fractions are rounded.
        categories: the strings that the codes of a column stand for, `{"y": ["setosa", ...]}`. The default is all
            strings of the column, sorted.
        nulls: what replaces missing values and NaN, as in `{"age": "mean", "fare": 0.0, "home": "unknown"}`: "mean" or
            "median" of the other rows, a number, or a string as a category. A list for several columns of a stream.
            Integers filled with fractions become float64. `Table.nulls` has the values that were used.
        streams: what a file does not contain: the width of sparse rows, the length of lists that are vectors.
        like: a table, or `Trainer.encoding`, with the columns, dtypes, categories and nulls to use. A trainer reads
            paths and frames in this way.
        cache: the directory of converted files; by default in the user's caches.
        memory_bytes: the default is a quarter of the free memory.
    """
    if like is not None:
        if any(other is not None for other in (columns, dtypes, categories, nulls, streams, cache, memory_bytes)):
            raise ConfigError("like= says how all columns are read. Leave the other arguments out.")
        encoding = like.encoding if isinstance(like, Table) else like
        if not isinstance(encoding, Encoding):
            raise ConfigError(f"like= takes a table, or the encoding of a trainer, got a {type(like).__name__}.")
        return open_like(path, encoding)
    selection = Selection(columns, dtypes)
    request = Request(
        selection,
        {} if categories is None else categories_in(categories),
        () if streams is None else streams_in(streams),
        {} if nulls is None else nulls_in(nulls),
        cache=None if cache is None else Path(cache),
        memory_bytes=memory_bytes,
    )
    return open_by(path, request)


def open_like(data: Any, like: Encoding, required: Collection[str] = (), left_out: Collection[str] = ()) -> Table:
    """Opens files or a frame as the data were read whose encoding is `like`.

    Columns that those had not are left out, and so are streams of which columns are missing, unless they are
    `required`, and streams that are `left_out`. Data whose columns have other names are read as the only stream that
    is required, all columns side by side, if there are as many as that stream has numbers.
    """
    where = where_of(data) if is_frame(data) else str(data)
    if str(data).lower().endswith((".ctf", ".ctf.gz")) and isinstance(data, str | Path):
        from .text import open_ctf

        return open_ctf(data, [stream for stream in like.streams if stream.name not in left_out])
    if like.maps:
        raise DataError(
            f"the training data were changed by map({', '.join(like.maps)}), and {where} would be read without that. "
            "Open it and map it: hr.map(hr.open_table(path, ...), function)."
        )
    there = column_names(data)
    columns = _columns(like, there, required, where)
    for stream in columns.keys() & required:
        if lost := [column for column in columns[stream] if column not in there]:
            if are_numbers(there):
                raise DataError(no_names(where))
            raise DataError(
                f"{where} has no column {lost[0]!r} for the stream {stream!r}, as the training data have. "
                f"It has: {', '.join(sorted(there))}."
            )
    kept = {name: of for name, of in columns.items() if name not in left_out and set(of) <= set(there)}
    if not kept:
        raise DataError(
            f"{where} has none of the columns of the training data, {', '.join(sorted(_all(columns)))}. "
            f"It has: {', '.join(sorted(there))}."
        )
    streams = [stream for stream in like.streams if stream.name in kept]
    beside = _beside(like, there)
    chosen = {name: of[0] if len(of) == 1 and name not in beside else of for name, of in kept.items()}
    selection = Selection(chosen, {stream.name: stream.dtype for stream in streams})
    nulls = {name: value for name, value in like.nulls.items() if name in kept}
    categories = {name: strings for name, strings in like.categories.items() if name in kept}
    declared = tuple(stream for stream in streams if stream.layout == "sparse")
    return open_by(data, Request(selection, {}, declared, like=Encoding(categories=categories, nulls=nulls)))


def _all(columns: Mapping[str, Sequence[str]]) -> set[str]:
    return {column for of in columns.values() for column in of}


def _columns(like: Encoding, there: Sequence[str], required: Collection[str], where: str) -> dict[str, list[str]]:
    """Which columns are to become which streams."""
    if like.columns is not None:
        return {name: [of] if isinstance(of, str) else list(of) for name, of in like.columns.items()}
    names = [stream.name for stream in like.streams]
    columns = {name: [name] for name in names}
    given = [stream for stream in like.streams if stream.name in required]
    others = [name for name in there if name not in names]
    if len(given) == 1 and given[0].name not in there and _fits(given[0], others):
        if begins_with_numbers(there):
            raise DataError(no_names(where))
        columns[given[0].name] = others
    return columns


def _beside(like: Encoding, there: Sequence[str]) -> set[str]:
    """The streams whose rows are vectors, be they of a single column."""
    if like.columns is not None:
        return {name for name, of in like.columns.items() if not isinstance(of, str)}
    return {stream.name for stream in like.streams if stream.shape == (1,)}


def _fits(stream: Stream, columns: Sequence[str]) -> bool:
    """Whether columns may be this stream: one is, whatever its name; several are as many as its rows have numbers."""
    return len(columns) == 1 or stream.shape == (len(columns),)


# --- reading ---------------------------------------------------------------------------------------------


READERS: dict[str, Callable[[DataFile, Select, Types], Any]] = {
    "npy": read_npy,
    "npz": read_npz,
    "parquet": read_parquet,
    "ipc": read_ipc,
    "csv": read_csv,
    "jsonl": read_json_lines,
}
"""By the kind of a file; each gives `Batches`, or the arrays of a file by name."""


def add_format(suffix: str, read: Callable[[Any], Any]) -> None:
    """Lets `open_table`, and whatever takes a path, read files with another suffix, as ".events".

    `read` gets the file, opened for bytes, and returns a table of Arrow's, or what `pyarrow.table` makes one of.
    Categories, nulls, several files, URLs and messages are as with all other formats.
    """

    def read_columns(file: DataFile, select: Select, types: Types) -> Batches:
        with file.open() as opened:
            table = pa.table(read(opened))
        table = table.select(select(table.column_names, index_in(table.schema)))
        return Batches(table.to_batches, table.nbytes, schema=table.schema)

    if not suffix.startswith(".") or suffix.count(".") > 1 or not callable(read):
        raise ConfigError(f"add_format() takes a suffix, as '.events', and a function; got {suffix!r} and {read!r}.")
    if SUFFIXES.setdefault(suffix.lower(), suffix) != suffix:
        raise ConfigError(f"add_format(): {suffix} is read already, as {SUFFIXES[suffix.lower()]}.")
    READERS[suffix] = read_columns


def open_by(data: Any, request: Request) -> Table:
    """Opens files or a frame as a request says."""
    if is_frame(data):
        return open_frame(data, request)
    return open_files(find(data), request)


def column_names(data: Any) -> list[str]:
    """Returns the names of the columns of a file or a frame, whatever they hold; of several files, the first one's."""
    names: list[str] = []

    def none_of(held: Sequence[str], aside: Collection[str] = ()) -> list[str]:
        names[:] = [name for name in held if name not in aside]
        return []

    if is_frame(data):
        read_frame(data, none_of)
    else:
        _read(find(data)[0], Request(), none_of)
    return names


class FileTable(Wrapper):
    """Files of one kind as one table. `again`, a function and its arguments, opens them when it is unpickled."""

    encoding: Encoding = Encoding()
    categories: Categories = {}  # noqa: RUF012

    def __init__(
        self,
        rows: Table,
        files: Sequence[DataFile],
        encoding: Encoding,
        block: int,
        again: tuple[Any, ...],
        fingerprint: str = "",
    ) -> None:
        super().__init__(rows)
        self.files, self.block, self.encoding = list(files), block, encoding
        self.categories = encoding.categories
        self._again, self._fingerprint = again, fingerprint

    def fingerprint(self) -> str:
        """A hash of rows, streams and files, and of how they are read."""
        if not self._fingerprint:
            self._fingerprint = fingerprint_of(
                len(self),
                *self.streams,
                self.encoding.columns,
                sorted(self.categories.items()),
                *sorted(self.nulls.items()),
                *digests(self.files),
            )
        return self._fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again


def open_files(files: Sequence[DataFile], request: Request) -> FileTable:
    """Opens files and makes one table of their rows."""
    columns = [(file, _read(file, request)) for file in files]
    decoded = [data for _, data in columns if isinstance(data, Batches) and not data.mapped]
    block = max((data.block for _, data in columns if isinstance(data, Batches)), default=0)
    budget = MEMORY_SHARE * free_bytes() if request.memory_bytes is None else request.memory_bytes
    if sum(data.nbytes for data in decoded) > budget:
        path, encoding = cached(columns, request)
        rows = open_files([DataFile.local(str(path))], Request()).table
    else:
        encoder = Encoder([(file, _in_memory(file, data)) for file, data in columns], request)
        rows, encoding = encoder.table(), encoder.encoding
    block = block or min(len(rows), max(1, BLOCK_BYTES * len(rows) // max(1, sum(file.size for file in files))))
    names, sizes = [file.full_name for file in files], [file.size for file in files]
    again = (_reopen, (names, sizes, replace(request, categories=dict(encoding.categories))))
    return FileTable(rows, files, encoding, block, again)


def _in_memory(file: DataFile, data: Any) -> Any:
    with reading(file):
        return data.loaded() if isinstance(data, Batches) and not data.mapped else data


def _read(file: DataFile, request: Request, select: Any = None) -> Any:
    """The columns of a file by its kind; `select` chooses among their names, as the request does."""
    select = select or partial(request.selection.wanted, file)
    if file.kind == "ctf":
        raise ConfigError(f"{file} is in CNTK's text format. Open it with hr.open_ctf(path, streams).")
    if file.kind not in READERS:
        raise DataError(f"{file} is of no known kind. Known are: {', '.join(SUFFIXES)}.")
    with reading(file):
        found = READERS[file.kind](file, select, request.text_types())
    if (request.streams or request.nulls) and not isinstance(found, Batches):
        raise ConfigError(
            f"{file} holds arrays, which have no nulls and say what their streams are: leave nulls= and streams= out."
        )
    return found


def _reopen(names: list[str], sizes: list[int], request: Request) -> Table:
    files = find(names)
    for file, size in zip(files, sizes, strict=True):
        if file.size != size:
            raise DataError(f"{file} has changed: it had {size} bytes, now {file.size}. Open the table again.")
    return open_files(files, request)


def open_frame(frame: Any, request: Request, where: str = "") -> ArrayTable:
    """Reads a frame into a table in memory; numbers are used in place. `where` is what messages call it."""
    if request.streams or request.cache is not None:
        name = "streams=" if request.streams else "cache="
        raise ConfigError(f"a frame is read without {name}, which is for files. Leave it out.")
    where = where or where_of(frame)
    columns: list[ColumnsOf] = [(where, read_frame(frame, partial(request.selection.wanted, where)))]
    encoder = Encoder(columns, request)
    return ArrayTable(encoder.in_memory(), encoding=encoder.encoding)
