"""Frames as tables: those of pandas, and whatever else gives its columns as Arrow's, as those of Polars do."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..data.arrays import ArrayTable
from ..data.read_by import ReadBy, nulls_of, read_by_of
from ..data.source import Categories
from ..errors import ConfigError, DataError, unknown
from .categories import refuse_numbers, shown
from .columns import check_names, from_arrow
from .lazy import pa
from .nulls import INDICATE, fills_of, said_of
from .select import Selection, inner

WHERE = "this frame"


@runtime_checkable
class GivesArrow(Protocol):
    """What gives its rows as a stream of Arrow's record batches."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """A capsule with that stream."""


def is_pandas(part: Any, *kinds: str) -> bool:
    """Whether something is of these classes of pandas, which is not imported to find out."""
    return type(part).__module__.partition(".")[0] == "pandas" and type(part).__name__ in kinds


def is_frame(data: Any) -> bool:
    """Whether something has columns by name: a frame of pandas or Polars, or a table of Arrow."""
    column = type(data).__name__ in ("Series", "ChunkedArray")
    return is_pandas(data, "DataFrame") or (isinstance(data, GivesArrow) and not column)


def from_frame(frame: Any, known: Categories | None = None) -> ArrayTable:
    """Reads a frame; columns of strings have the categories that are `known`, or those that they hold."""
    if is_pandas(frame, "DataFrame"):
        return from_pandas(frame, known)
    if type(frame).__module__.partition(".")[0] == "pyarrow":
        return from_arrow(frame, known)
    return from_arrow(_arrow(frame), known, where=WHERE)


def open_frame(frame: Any, selection: Selection, known: ReadBy) -> ArrayTable:
    """Reads those columns of a frame that are asked for; `known`: categories and nulls by stream."""
    frame = frame if is_pandas(frame, "DataFrame") else _arrow(frame)
    names = list(frame.columns) if is_pandas(frame, "DataFrame") else list(frame.column_names)
    if selection.columns is not None:
        names = selection.wanted(WHERE, names)
    check_names(names, WHERE, dots=True)
    inners = [inner(name) for name in names]
    frame = frame[names].set_axis(inners, axis=1) if is_pandas(frame, "DataFrame") else _renamed(frame, names, inners)

    def columns_of(stream: str) -> list[str]:
        return [inner(column) for column in selection.columns_of(stream)]

    fills, indicators = fills_of(known.nulls, columns_of)
    if strange := [column for column in fills if column not in inners]:
        raise ConfigError(f"nulls=: {unknown('column', shown(strange[0]), map(shown, inners))}")
    by_column = {column: strings for stream, strings in known.items() for column in columns_of(stream)}
    said = {column: [fill.value] + [INDICATE] * bool(fill.indicator) for column, fill in fills.items()}
    table = from_frame(frame, ReadBy(by_column, said))
    if strange := [column for column in by_column if column not in table.categories]:
        raise ConfigError(
            f"categories=: {unknown('column of strings', shown(strange[0]), sorted(table.categories) or ['none'])}"
        )
    picks = selection.picks(table.streams, list(table.categories), WHERE, indicators)
    fields = picks(table.columns, lambda row: f"{WHERE}, row {row}")
    categories = {
        name: table.categories[column] for name in fields for column in columns_of(name) if column in table.categories
    }
    nulls = said_of(known.nulls, fills_of(table.nulls, lambda column: [column])[0], columns_of)
    return ArrayTable(fields, categories=read_by_of(ReadBy(categories, nulls)))


def _arrow(frame: Any) -> Any:
    """The columns of a frame as a table of Arrow's."""
    try:
        return frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"expected columns by name, got a {type(frame).__name__}: {error}.") from None


def _renamed(table: Any, names: Sequence[str], inners: Sequence[str]) -> Any:
    return table.select(names).rename_columns(inners)


def from_pandas(frame: Any, known: Categories | None = None) -> ArrayTable:
    """Reads a pandas DataFrame: numbers in place, strings and categoricals as codes.

    Those have the categories that are `known`, or their own.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    indicators: dict[str, Any] = {}
    read_by: Categories = {}
    nulls = nulls_of(known)
    check_names(list(frame.columns), WHERE)
    for name, column in frame.items():
        if name in nulls:
            filled = from_arrow(pa.table({name: _with_nulls(name, column)}), known, where=WHERE)
            columns[name] = filled.columns.pop(name)
            indicators |= filled.columns
            read_by = read_by_of(read_by, filled.categories)
            continue
        if column.hasnans:
            missing = column.isna().to_numpy()
            raise DataError(
                f"column {name!r} of this frame has {int(missing.sum())} nulls, the first in row "
                f"{int(missing.argmax())}. A stream has a value in every row: fill them, "
                f"hr.open_table(frame, nulls={{{name!r}: ...}}), drop those rows, or leave out a column that the model "
                f"does not use: frame.drop(columns={name!r})."
            )
        kind = pa.large_string()
        if isinstance(column.dtype, pd.CategoricalDtype):
            kind = None
            if not all(isinstance(each, str) for each in column.cat.categories):
                column = column.astype(column.cat.categories.dtype)
        if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
            refuse_numbers(known or {}, [name], WHERE)
            columns[name] = column.to_numpy()
            continue
        _check_strings(name, column)
        strings = from_arrow(pa.table({name: pa.Array.from_pandas(column, type=kind)}), known, where=WHERE)
        columns |= strings.columns
        read_by = read_by_of(read_by, strings.categories)
    return ArrayTable({**columns, **indicators}, categories=read_by)


def _with_nulls(name: str, column: Any) -> Any:
    """A column as Arrow's, in which what is missing is null."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype) and not all(isinstance(c, str) for c in column.cat.categories):
        column = column.astype(column.cat.categories.dtype if not column.hasnans else "Float64")
    try:
        return pa.Array.from_pandas(column)
    except pa.ArrowException:
        _check_strings(name, column)
        raise


def _check_strings(name: str, column: Any) -> None:
    """Raises unless a column that holds no numbers holds strings, where it holds anything."""
    import pandas as pd

    kind = pd.api.types.infer_dtype(column, skipna=True)
    if isinstance(column.dtype, pd.CategoricalDtype) or kind in ("string", "empty"):
        return
    if not isinstance(column.dtype, np.dtypes.ObjectDType) and not pd.api.types.is_string_dtype(column.dtype):
        raise DataError(
            f"column {name!r} of this frame holds {column.dtype}, which is not a number. "
            "Cast it to int64 or float64, or leave it out: frame[['a', 'b']]."
        )
    there = np.flatnonzero(column.notna())
    row = next(row for row in there.tolist() if not isinstance(column.iloc[row], str))
    raise DataError(
        f"column {name!r} of this frame holds objects, a {type(column.iloc[row]).__name__} in row {row} for "
        "example. Make numbers or strings of them, or leave the column out."
    )
