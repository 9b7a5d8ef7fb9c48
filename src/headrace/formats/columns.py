"""Reads Arrow tables and record batches as rows, in place, and writes rows as record batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Stream, torch_dtype
from ..data.encoding import Categories
from ..data.fields import Field
from ..data.ragged import Ragged
from ..data.sparse import Sparse
from ..errors import DataError
from .categories import ColumnPlace, codes, is_text, leaf_of, refuse_nulls, within
from .lazy import pa, pt
from .schema import NUMBERS, differs, fits, is_fixed, is_list, is_pair


def fields_of(
    record_batch: Any,
    streams: Mapping[str, Stream],
    categories: Categories | None = None,
    *,
    where: str = "",
    first: int = 0,
) -> dict[str, Field]:
    """The rows of a record batch by column, in place where the types allow it.

    `where` is the file and `first` the number of the first row, for messages. What lies in place must not be written.
    """
    try:
        record_batch.validate()
    except pa.ArrowInvalid as error:
        raise DataError(f"{where or 'this record batch'} is damaged: {error}. Write it again.") from None
    found: dict[str, Field] = {}
    for name, stream in streams.items():
        place = ColumnPlace(name, where, lambda item: first + item)
        index = record_batch.schema.get_field_index(name)
        if index < 0:
            raise DataError(f"{place} is not there. It has: {', '.join(record_batch.schema.names)}.")
        column = record_batch.column(index)
        if not fits(column.type, stream):
            raise DataError(differs(stream, column.type, place))
        found[name] = _read(column, stream, (categories or {}).get(name), place)
    return found


def record_batch_of(fields: Mapping[str, Any], schema: Any, categories: Categories | None = None) -> Any:
    """A record batch of these rows."""
    columns = [_write(fields[f.name], f, (categories or {}).get(f.name)) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def tensor_of(array: Any) -> Tensor:
    """The numbers of an Arrow array without nulls: in place, and not to be written, where torch can hold them so.

    Through DLPack, since torch warns of read-only memory otherwise, and a warning cannot be kept quiet in one thread.
    """
    if not len(array):
        return torch.empty(0, dtype=torch_dtype(NUMBERS[str(array.type)]))
    data, size = array.buffers()[1], array.type.bit_width
    if pt.is_boolean(array.type):
        start, stop = array.offset // 8, -(-(array.offset + len(array)) // 8)
        bits = np.unpackbits(np.frombuffer(data, np.uint8)[start:stop], bitorder="little")
        return torch.from_numpy(bits[array.offset % 8 :][: len(array)].astype(np.bool_))
    if data.address % (size // 8):
        held = np.frombuffer(data, np.uint8)[array.offset * size // 8 :][: len(array) * size // 8]
        return torch.from_numpy(held.copy()).view(torch_dtype(NUMBERS[str(array.type)]))
    tensor: Tensor = torch.from_dlpack(array)  # type: ignore[attr-defined]
    return tensor


def array_of(tensor: Tensor) -> Any:
    """The numbers of a tensor as an Arrow array, in place where it is contiguous and on the host."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    if flat.dtype == torch.bool:
        return pa.array(flat.numpy())
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.uint16)
    kind = pa.type_for_alias(str(flat.dtype).removeprefix("torch."))
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat.numpy())])


def only_ones(field: Any) -> bool:
    """Whether a field has sparse rows of which every value is 1, so that none is kept."""
    items = field.values if isinstance(field, Ragged) else field
    return isinstance(items, Sparse) and items.values is None


# --- reading ---------------------------------------------------------------------------------------------


def _read(array: Any, stream: Stream, categories: Sequence[str] | None, place: ColumnPlace) -> Field:
    if not stream.sequence:
        return _items(array, stream, categories, place)
    children, bounds, inside = _children(array, place)
    return Ragged(_items(children, stream, categories, inside), bounds)


def _items(array: Any, stream: Stream, categories: Sequence[str] | None, place: ColumnPlace) -> Tensor | Sparse:
    if stream.layout == "sparse":
        return _sparse(array, stream, place)
    rows = len(array)
    if isinstance(array.type, pa.FixedShapeTensorType):
        if (array.type.permutation or []) != sorted(array.type.permutation or []):
            raise DataError(f"{place} holds tensors with permuted dimensions. Write them in the order of their memory.")
        array = array.storage
    refuse_nulls(array, place)
    if is_list(array.type):  # of vectors, as the stream was declared
        array = _vectors(array, stream, place)
    if is_fixed(array.type):
        size = array.type.list_size
        array = array.values.slice(array.offset * size, rows * size)
        place = place.inside(lambda item: item // size)
        refuse_nulls(array, place)
    numbers = _leaf(array, categories, place)
    if stream.dtype == "bfloat16":
        numbers = numbers.view(torch.bfloat16)
    return numbers.view(rows, *stream.shape)


def _vectors(array: Any, stream: Stream, place: ColumnPlace) -> Any:
    """Lists that are all as long as the vectors of a stream."""
    lengths = np.asarray(array.value_lengths())
    if len(odd := np.flatnonzero(lengths != stream.shape[0])):
        raise DataError(
            f"{place.at(int(odd[0]))}: a list of {lengths[odd[0]]} items, expected {stream}. Correct it, or declare a "
            "sequence: hr.Stream(..., sequence=True)."
        )
    return array.cast(pa.list_(array.type.value_type, stream.shape[0]))


def _leaf(array: Any, categories: Sequence[str] | None, place: ColumnPlace) -> Tensor:
    if not is_text(array.type):
        if pt.is_dictionary(array.type):
            array = array.dictionary.take(pa.array(within(array, place)))
            refuse_nulls(array, place)
        return tensor_of(array)
    array = leaf_of(array, place)
    if categories is None:
        raise DataError(f"{place} holds strings, and nothing says which number each one is. Pass categories=.")
    return torch.from_numpy(codes(array, categories, place))


def _children(array: Any, place: ColumnPlace) -> tuple[Any, Tensor, ColumnPlace]:
    """The items of a list column, the offsets of its rows among them, and where an item belongs."""
    refuse_nulls(array, place)
    if not len(array):
        return array.values.slice(0, 0), torch.zeros(1, dtype=torch.int64), place
    bounds = tensor_of(array.offsets).long()
    start, stop, held = int(bounds[0]), int(bounds[-1]), len(array.values)
    if not 0 <= start <= stop <= held or bool((bounds.diff() < 0).any()):
        raise DataError(f"{place} is damaged: its offsets do not rise from 0 to at most {held}. Write it again.")
    bounds = bounds - start if start else bounds
    lists = bounds.numpy()
    inside = place.inside(lambda item: int(np.searchsorted(lists, item, side="right")) - 1)
    return array.values.slice(start, stop - start), bounds, inside


def _sparse(array: Any, stream: Stream, place: ColumnPlace) -> Sparse:
    children, bounds, inside = _children(array, place)
    refuse_nulls(children, inside)
    values = None
    if is_pair(children.type):
        values = children.field(1)
        refuse_nulls(values, inside)
        values = tensor_of(values)
        values = values.view(torch.bfloat16) if stream.dtype == "bfloat16" else values
        children = children.field(0)
        refuse_nulls(children, inside)
    indices = tensor_of(children)
    if indices.dtype not in (torch.int32, torch.int64):
        indices = indices.long()
    try:
        return Sparse(indices, values, bounds, stream.shape[0], torch_dtype(stream.dtype))
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


# --- writing ---------------------------------------------------------------------------------------------


def _write(rows: Any, field: Any, categories: Sequence[str] | None) -> Any:
    kind = field.type
    if isinstance(rows, Ragged):
        items = _write_items(rows.values, kind.value_type, field.name, categories)
        return pa.LargeListArray.from_arrays(array_of(rows.offsets), items, type=kind)
    return _write_items(rows, kind, field.name, categories)


def _write_items(rows: Any, kind: Any, name: str, categories: Sequence[str] | None) -> Any:
    if isinstance(rows, Sparse):
        return pa.LargeListArray.from_arrays(
            array_of(rows.offsets), _write_pairs(rows, kind.value_type, name), type=kind
        )
    if is_fixed(kind):
        children = [_write_leaf(rows, kind.value_type, categories)]
        return pa.Array.from_buffers(kind, len(rows), [None], children=children)
    return _write_leaf(rows, kind, categories)


def _write_leaf(rows: Tensor, kind: Any, categories: Sequence[str] | None) -> Any:
    numbers = array_of(rows)
    if categories is None:
        return numbers
    strings = pa.array(categories, kind.value_type)
    try:
        return pa.DictionaryArray.from_arrays(numbers.cast(kind.index_type), strings)
    except (pa.ArrowInvalid, IndexError):
        low, high = int(rows.min()), int(rows.max())
        raise DataError(f"codes from {low} to {high} are not all among {len(categories)} categories.") from None


def _write_pairs(rows: Sparse, kind: Any, name: str) -> Any:
    values = rows.values
    if not is_pair(kind):
        if values is not None and not bool((values == 1).all()):
            raise DataError(f"stream {name!r} was to hold nothing but ones, and does not. Leave it out of ones=.")
        return array_of(rows.indices).cast(kind)
    if values is None:
        values = torch.ones(len(rows.indices), dtype=rows.dtype)
    indices = array_of(rows.indices).cast(kind.field(0).type)
    return pa.StructArray.from_arrays([indices, array_of(values)], fields=[kind.field(0), kind.field(1)])
