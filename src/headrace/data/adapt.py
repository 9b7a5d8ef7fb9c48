"""Whatever a user calls data, as a Table or a Source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import DataError
from ..field import Rows
from .arrays import ArrayTable
from .reader import Reader
from .source import Source, Table

_COLUMN = Tensor | np.ndarray | Rows


def as_table(data: Any) -> Table:
    """Data that has rows by number, as a Table: one array is stream "x", two are "x" and "y", a dict names its own."""
    found = as_data(data)
    if isinstance(found, Table):
        return found
    raise DataError(f"expected rows by number, got a {type(data).__name__}, which gives batches in sequence only.")


def as_source(data: Any, *, order: str = "full", seed: int = 0) -> Source:
    """What a user calls data, as a Source: a Table is read in the given order."""
    found = as_data(data)
    return found if isinstance(found, Source) else Reader(found, order, seed)


def as_data(data: Any) -> Table | Source:
    """What a user calls data: arrays, a frame, a table, a path, a loader or an iterable of batches."""
    if isinstance(data, Table | Source):
        return data
    if isinstance(data, Mapping):
        return ArrayTable(data)
    if isinstance(data, _COLUMN):
        return ArrayTable({"x": data})
    if isinstance(data, tuple | list) and data and all(isinstance(part, _COLUMN) for part in data):
        if len(data) == 2:
            return ArrayTable(dict(zip("xy", data, strict=True)))
        raise DataError(f"expected (x, y), got {len(data)} arrays. Name the streams: {{'a': ..., 'b': ..., 'y': ...}}.")
    found = _of_files(data) or _of_libraries(data)
    if found is None:
        raise DataError(
            f"cannot read data from a {type(data).__name__}. Pass arrays or tensors as x, (x, y) or {{'name': ...}}, "
            "a pandas or Arrow table, a path, a torch Dataset or DataLoader, or a headrace Table or Source."
        )
    return found


def _of_files(data: Any) -> Table | None:
    if not isinstance(data, str | Path):
        return None
    from .files import open_table

    return open_table(data)


def _of_libraries(data: Any) -> Table | Source | None:
    """What other libraries hold; none of them is imported to find out."""
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and type(data).__name__ == "DataFrame":
        from .files import from_pandas

        return from_pandas(data)
    if library == "pyarrow":
        from .files import from_arrow

        return from_arrow(data)
    if library == "scipy":
        return ArrayTable({"x": data})
    from .torch import wrap

    return wrap(data)
