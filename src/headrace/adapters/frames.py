"""Makes tables of what pandas and Arrow hold in memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.arrays import ArrayTable
from ..data.fields import Field, cat
from ..data.source import Categories
from ..errors import DataError
from ..formats.categories import ColumnPlace, is_text, leaf_of, leaves, strings_of
from ..formats.columns import fields_of
from ..formats.lazy import pa
from ..formats.schema import index_in, streams_of


def from_arrow(table: Any, known: Categories | None = None, *, where: str = "this table") -> ArrayTable:
    """Reads an Arrow table or record batch: in place where a column lies in one piece, else copied into one.

    Columns of strings have the categories that are `known`, or those that they hold.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.RecordBatchReader):
        table = table.read_all()
    if not isinstance(table, pa.Table):
        raise DataError(f"expected an Arrow Table or RecordBatch, got a {type(table).__name__}.")
    aside = index_in(table.schema)
    table = table.select([k for k, name in enumerate(table.column_names) if name not in aside])
    _check_names(table.column_names, where)
    streams = streams_of(table.schema, where=where)
    texts = [field.name for field in table.schema if is_text(leaves(field.type))]
    categories = {
        name: list((known or {}).get(name, ()))
        or strings_of(leaf_of(chunk, ColumnPlace(name, where)) for chunk in table.column(name).chunks)
        for name in texts
    }
    parts: list[Mapping[str, Field]] = []
    first = 0
    for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
        parts.append(fields_of(batch, streams, categories, where=where, first=first))
        first += batch.num_rows
    return ArrayTable({s.name: cat([part[s.name] for part in parts]) for s in streams}, categories=categories)


def from_pandas(frame: Any, known: Categories | None = None) -> ArrayTable:
    """Reads a pandas DataFrame: numbers in place, strings and categoricals as codes.

    Those have the categories that are `known`, or their own.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    categories: dict[str, Sequence[str]] = {}
    _check_names(list(frame.columns), "this frame")
    for name, column in frame.items():
        if column.hasnans:
            missing = column.isna().to_numpy()
            raise DataError(
                f"column {name!r} of this frame has {int(missing.sum())} nulls, the first in row "
                f"{int(missing.argmax())}. A stream has a value in every row: fill them, drop those rows, or leave "
                f"out a column that the model does not use: frame.drop(columns={name!r})."
            )
        kind = pa.large_string()
        if isinstance(column.dtype, pd.CategoricalDtype):
            kind = None
            if not all(isinstance(each, str) for each in column.cat.categories):
                column = column.astype(column.cat.categories.dtype)
        if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
            columns[name] = column.to_numpy()
            continue
        _check_strings(name, column)
        strings = from_arrow(pa.table({name: pa.Array.from_pandas(column, type=kind)}), known, where="this frame")
        columns |= strings.columns
        categories |= strings.categories
    return ArrayTable(columns, categories=categories)


def _check_names(names: Sequence[Any], where: str) -> None:
    for name, count in Counter(names).items():
        if not isinstance(name, str):
            raise DataError(f"a column is called {name!r}; a stream has a string for its name. Rename it.")
        if count > 1:
            raise DataError(f"{where} has {count} columns {name!r}. Give them names of their own.")
        if not name:
            raise DataError(f"{where} has a column without a name. Give it one, or leave it out.")
        if "." in name:
            raise DataError(f"{where}: column {name!r} has a dot in its name, which a stream cannot have. Rename it.")


def _check_strings(name: str, column: Any) -> None:
    """Raises unless a column that holds no numbers holds strings."""
    import pandas as pd

    kind = pd.api.types.infer_dtype(column, skipna=False)
    if isinstance(column.dtype, pd.CategoricalDtype) or kind in ("string", "empty"):
        return
    if not isinstance(column.dtype, np.dtypes.ObjectDType) and not pd.api.types.is_string_dtype(column.dtype):
        raise DataError(
            f"column {name!r} of this frame holds {column.dtype}, which is not a number. "
            "Cast it to int64 or float64, or leave it out: frame[['a', 'b']]."
        )
    row = next(row for row, value in enumerate(column) if not isinstance(value, str))
    raise DataError(
        f"column {name!r} of this frame holds objects, a {type(column.iloc[row]).__name__} in row {row} for "
        "example. Make numbers or strings of them, or leave the column out."
    )
