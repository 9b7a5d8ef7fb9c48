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

    `path`: a file, a list of them, a pattern like "train-*.parquet", a directory, or an fsspec URL like
    "s3://bucket/train.parquet". Kinds, by the suffix: `.npy` (stream "x"), `.npz`, `.arrow`, `.feather` or `.ipc`,
    `.parquet`, `.csv` or `.tsv`, and JSON lines, `.jsonl` or `.ndjson`; text also with `.gz`. Files are read one after
    the other, those of a list in its order, others sorted by name. Or a frame of pandas or Polars, a table of Arrow.

    `columns`: which of them, ["a", "b"], or what is made of them, {"x": ["width", "height"], "y": "species"}: several
    columns of numbers stand side by side. `dtypes`: {"x": "float32"}; a number that it does not hold is refused, and
    fractions are rounded. `categories`: what the codes of a column of strings stand for, {"y": ["setosa", ...]}, when
    it is not to be all of its strings, sorted.
    `nulls`: what stands for missing values, {"age": "mean", "fare": 0.0, "home": "unknown"}: "mean" or "median" of the
    rows that have one, a number, or a category of its own for strings; of several columns side by side a list. With
    ["mean", "indicate"] a stream `age_null` says which were missing; "indicate" alone fills in 0. Whole numbers filled
    with fractions become float64, and NaN counts as missing. `Table.nulls` has what was filled in.
    `like`: a table, or `Trainer.encoding`: columns, dtypes, categories and nulls are those of that, as far as the
    columns are there. A trainer reads paths and frames in this way itself.
    `streams`: what a file does not say of itself: the width of sparse rows, the length of lists that are vectors.

    `.npy` and `.arrow` files are mapped into memory. Others are read into memory, up to `memory_bytes`, by default a
    quarter of the memory that is free. Larger ones are converted once into an Arrow file in the folder `cache`, by
    default that of the user's caches, which is mapped.
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
