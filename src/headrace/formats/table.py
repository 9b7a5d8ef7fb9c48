"""`open_table`: files and frames as tables; and `open_like`, for data that are read as others were."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.batch import Stream
from ..data.encoding import Categories, Encoding
from ..data.source import Table
from ..errors import ConfigError, DataError
from .encode import Request
from .files import column_names, open_by
from .frames import is_frame, where_of
from .nulls import nulls_in
from .select import Columns, Selection, are_numbers, begins_with_numbers, categories_in, no_names, streams_in
from .text import open_ctf


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
