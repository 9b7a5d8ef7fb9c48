"""`open_table`: files and frames as tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.batch import Stream
from ..data.encoding import Categories, Encoding
from ..data.source import Table
from ..errors import ConfigError
from .encode import Request
from .files import open_by
from .like import open_like
from .nulls import nulls_in
from .select import Columns, Selection, categories_in, streams_in


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
