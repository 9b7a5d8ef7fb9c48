"""Tables from what other libraries hold in memory: pandas, Arrow, scipy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.arrays import ArrayTable
from ..data.arrow import fields_of, streams_of
from ..data.categories import Categories, ColumnPlace, is_text, leaf_of, leaves, strings_of
from ..data.fields import Field, cat
from ..data.schema import index_in
from ..data.sparse import Sparse
from ..errors import DataError, unknown


def from_arrow(table: Any, known: Categories | None = None, *, where: str = "this table") -> ArrayTable:
    """The columns of an Arrow table or record batch: in place where they lie in one piece, else copied into one.

    Columns of strings have the categories that are `known`, or those that they hold.
    """
    import pyarrow as pa

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
    """The columns of a pandas DataFrame: numbers in place, strings and categoricals as codes.

    Those have the categories that are `known`, or their own.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    categories: dict[str, list[str]] = {}
    _check_names(list(frame.columns), "this frame")
    for name, column in frame.items():
        if column.hasnans:
            missing = column.isna().to_numpy()
            raise DataError(
                f"column {name!r} of this frame has {int(missing.sum())} nulls, the first in row "
                f"{int(missing.argmax())}. A stream has a value in every row: fill them, drop those rows, or leave "
                f"out a column that the model does not use: frame.drop(columns={name!r})."
            )
        columns[name], strings = _column(name, column, pd)
        if strings is not None:
            categories[name] = list((known or {}).get(name, strings))
            columns[name] = _renumbered(columns[name], strings, categories[name], name)
    return ArrayTable(columns, categories=categories)


def from_scipy(matrix: Any, name: str = "x") -> ArrayTable:
    """A scipy.sparse matrix as one stream of sparse rows."""
    return ArrayTable({name: Sparse.of(matrix)})


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


def _column(name: str, column: Any, pd: Any) -> tuple[Any, list[str] | None]:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        strings = list(dtype.categories)
        if not all(isinstance(each, str) for each in strings):
            return _column(name, column.astype(dtype.categories.dtype), pd)
        return column.cat.codes.to_numpy(np.int64), strings
    if pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_numeric_dtype(dtype):
        return column.to_numpy(), None
    if pd.api.types.is_string_dtype(dtype) or isinstance(dtype, np.dtypes.ObjectDType):
        return _strings(name, column)
    raise DataError(
        f"column {name!r} of this frame holds {dtype}, which is not a number. "
        "Cast it to int64 or float64, or leave it out: frame[['a', 'b']]."
    )


def _renumbered(codes: NDArray[np.int64], strings: list[str], known: list[str], name: str) -> NDArray[np.int64]:
    """Codes of strings as places among those that are known."""
    if strings == known:
        return codes
    place = {string: k for k, string in enumerate(known)}
    found = np.array([place.get(string, -1) for string in strings], np.int64)[codes]
    if len(missing := np.flatnonzero(found < 0)):
        row = int(missing[0])
        raise DataError(f"column {name!r} of this frame, row {row}: {unknown('string', strings[codes[row]], known)}")
    return found


def _strings(name: str, column: Any) -> tuple[Any, list[str]]:
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=False) not in ("string", "empty"):
        row = next(row for row, value in enumerate(column) if not isinstance(value, str))
        raise DataError(
            f"column {name!r} of this frame holds objects, a {type(column.iloc[row]).__name__} in row {row} for "
            "example. Make numbers or strings of them, or leave the column out."
        )
    numbers, strings = pd.factorize(column, sort=True)
    return numbers.astype(np.int64), list(strings)
