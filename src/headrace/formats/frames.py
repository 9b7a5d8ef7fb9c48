"""Frames as columns: those of pandas, and whatever else gives its columns as Arrow's, as those of Polars do."""

from typing import Any, Protocol, runtime_checkable

from ..errors import DataError
from .lazy import pa
from .read import Batches, Select, joined
from .schema import index_in


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


def where_of(frame: Any) -> str:
    """What a frame is called in messages."""
    return "this table" if type(frame).__module__.partition(".")[0] == "pyarrow" else "this frame"


def read_frame(frame: Any, select: Select) -> Batches:
    """The columns of a frame, in place where they are numbers."""
    if is_pandas(frame, "DataFrame"):
        if odd := [name for name in frame.columns if not isinstance(name, str)]:
            raise DataError(f"a column is called {odd[0]!r}; a stream has a string for its name. Rename it.")
        table = pa.table({name: _arrow_column(name, frame[name]) for name in select(list(frame.columns))})
    else:
        table = _table_of(frame)
        table = table.select(select(table.column_names, index_in(table.schema)))
    batches = joined(table) or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return Batches(lambda: batches, schema=table.schema)


def _table_of(frame: Any) -> Any:
    """The columns of a frame as a table of Arrow's."""
    try:
        if isinstance(frame, pa.RecordBatch):
            return pa.Table.from_batches([frame])
        return frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"expected columns by name, got a {type(frame).__name__}: {error}.") from None


def _arrow_column(name: str, column: Any) -> Any:
    """A column of a frame of pandas as Arrow's, in which what is missing is null."""
    try:
        found = pa.Array.from_pandas(column)
        if pa.types.is_list(found.type) and not {set, frozenset}.isdisjoint(map(type, column)):
            raise TypeError("a set has no order")  # Arrow takes that of its hashes
        return found
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"column {name!r} of this frame, of dtype {column.dtype}, cannot be read: {said}. Make numbers or "
            "strings of it, or leave the column out: frame[['a', 'b']]."
        ) from None
