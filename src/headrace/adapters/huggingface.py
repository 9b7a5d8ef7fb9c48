"""Data sets of Hugging Face: read from their Arrow tables, in place; what only their own code can decode, by that.

Nothing is imported from `datasets` here: whoever has such an object has imported it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import ArrayTable
from ..data.fields import Field
from ..data.maps import Mapped
from ..data.ragged import Ragged
from ..data.source import Source, Table
from ..data.views import Concat, View
from ..errors import DataError, SourceError
from ..formats.encode import Request
from ..formats.files import open_frame
from .iterables import SampleSource
from .loaders import hugging_kind
from .samples import Samples

IN_ONE_PIECE = 256 << 20  # bytes up to which chunks are copied together, so that rows are gathered at full speed
_NUMBERS = ("Value", "ClassLabel")


def from_hugging_face(data: Any) -> Table | Source:
    """A Dataset as a Table, an IterableDataset as a Source."""
    kind = hugging_kind(data)
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise DataError(f"this is a dict of data sets: {', '.join(map(str, data))}. Pass one of them: data['train'].")
    if kind == "IterableDataset":
        known = data.features or {}
        shown = data if data._formatting is not None else data.with_format("torch")  # numbers of the declared types
        return SampleSource(shown, sequences=_sequences(known))
    return _table(data)


def _table(data: Any) -> Table:
    if not len(data):
        raise DataError("this Dataset has no rows: there is nothing to read.")
    shown = data.format
    wanted = {name: kind for name, kind in data.features.items() if name in shown["columns"]}
    if shown["type"] == "custom" or not all(map(_in_arrow, wanted.values())):
        return Samples(data, sequences=_sequences(wanted) if shown["type"] != "custom" else ())
    if texts := [name for name, kind in wanted.items() if getattr(_leaf(kind), "dtype", "") in _TEXT]:
        raise DataError(
            f"column {texts[0]!r} of this Dataset holds text. Make numbers of it with data.map(...) or "
            "data.class_encode_column(...), then drop it: data.remove_columns(...)."
        )
    table = _stored(data.data.table.select(list(wanted)), wanted)
    if data._indices is not None:
        table = View(table, torch.from_numpy(data._indices.column(0).to_numpy().astype(np.int64)))
    if shown["type"] == "torch":  # its tensors are not always of the type that is stored
        types = {name: part.dtype for name, part in data[0].items() if isinstance(part, Tensor)}
        table = Mapped(table, _AsShown(types))
    return table


_TEXT = ("string", "large_string", "string_view")


def _stored(table: Any, kinds: Mapping[str, Any]) -> Table:
    """The columns in one piece, or, if that would take too much memory, piece by piece as they are."""
    batches = table.to_batches()
    pieces = [table] if table.nbytes <= IN_ONE_PIECE or len(batches) == 1 else batches
    found = [_piece(piece, kinds) for piece in pieces]
    return found[0] if len(found) == 1 else Concat(found)


def _piece(piece: Any, kinds: Mapping[str, Any]) -> ArrayTable:
    tensors = {name: kind for name, kind in kinds.items() if type(kind).__name__.startswith("Array")}
    plain = [name for name in kinds if name not in tensors]
    columns: dict[str, Any] = {}
    if plain:
        columns |= open_frame(piece.select(plain), Request(), "this Dataset").columns
    for name in tensors:
        columns[name] = _array(name, piece.column(name))
    categories = {name: list(kind.names) for name, kind in kinds.items() if type(kind).__name__ == "ClassLabel"}
    return ArrayTable({name: columns[name] for name in kinds}, categories=categories)


def _array(name: str, column: Any) -> Any:
    """A column of arrays of one shape; where their first dimension differs, they are sequences."""
    if column.null_count:
        raise DataError(f"column {name!r} of this Dataset has {column.null_count} nulls. Fill them or drop those rows.")
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in getattr(column, "chunks", [column])]
    rows = np.concatenate(chunks) if len(chunks) > 1 else chunks[0]
    return Ragged.of(list(rows)) if rows.dtype == object else rows


def _in_arrow(kind: Any) -> bool:
    """Whether a column holds numbers or lists of them, rather than pictures, sounds or structures to be decoded."""
    return type(kind).__name__ in ("Array2D", "Array3D", "Array4D", "Array5D") or type(_leaf(kind)).__name__ in _NUMBERS


def _leaf(kind: Any) -> Any:
    """What the items of a column are, be it one of lists."""
    return kind.feature if type(kind).__name__ in ("List", "LargeList", "Sequence") else kind


def _sequences(kinds: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns whose lists have no length of their own."""
    return tuple(name for name, kind in kinds.items() if _leaf(kind) is not kind and getattr(kind, "length", -1) == -1)


class _AsShown:
    """Numbers of the types that a data set's format gives."""

    thread_safe = True

    def __init__(self, types: Mapping[str, torch.dtype]) -> None:
        self._types = types
        self.__qualname__ = f"as {types}"

    def __call__(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        return {name: self._cast(field, self._types[name]) for name, field in fields.items() if name in self._types}

    def _cast(self, field: Any, dtype: torch.dtype) -> Field:
        if isinstance(field, Ragged):
            if not isinstance(field.values, Tensor):
                raise SourceError("sequences of sparse rows have no format of torch.")
            return field.with_values(field.values.to(dtype))
        cast: Tensor = field.to(dtype)
        return cast
