"""Rows as lines of CNTK's text format."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.batch import Stream
from ...data.ragged import Ragged
from ...data.sparse import Sparse
from ...errors import DataError
from ..columns import array_of
from ..lazy import pa, pc
from .layout import Column, Layout
from .numbers import Places


def written_layout(streams: Iterable[Stream], names: Mapping[str, str] | None) -> Layout:
    """The columns in the order in which they are written."""
    streams = list(streams)
    columns = {column.name: column for column in Layout.of(streams, names).columns}
    return Layout(tuple(columns[stream.name] for stream in streams))


def text_of(layout: Layout, fields: Mapping[str, Any], rows: int, first: int, ids: bool) -> Any:
    """The lines of some rows, as bytes."""
    starts, total = _lines(layout, fields, rows, first, ids)
    columns = []
    if ids:
        owners = np.repeat(np.arange(first, first + rows), np.diff(np.append(starts, total)))
        columns.append(pa.array(owners).cast(pa.large_string()))
    held = np.zeros(total, bool)
    for column in layout.columns:
        field = fields[column.name]
        places, items = starts, field
        if isinstance(field, Ragged):
            lengths, bounds = field.host_offsets.diff().numpy(), field.host_offsets.numpy()
            places, items = np.repeat(starts - bounds[:-1], lengths) + np.arange(field.items), field.values
        held[places] = True
        columns.append(_placed(_items(column, items), places, total))
    if not held.all():
        empty = np.flatnonzero(~held)
        columns.append(_placed(pa.array(["|#"] * len(empty), pa.large_string()), empty, total))
    joined = pc.binary_join_element_wise(*columns, _scalar(" "), null_handling="skip")
    text = pc.binary_join_element_wise(joined, _scalar(""), _scalar("\n"))
    offsets = np.frombuffer(text.buffers()[1], np.int64)[: total + 1]
    return text.buffers()[2][int(offsets[0]) : int(offsets[-1])]


def _lines(layout: Layout, fields: Mapping[str, Any], rows: int, first: int, ids: bool) -> tuple[Places, int]:
    """The first line of each row, and how many lines there are."""
    counts = np.zeros(rows, np.int64)
    for column in layout.columns:
        field = fields[column.name]
        counts = np.maximum(counts, field.host_offsets.diff().numpy() if isinstance(field, Ragged) else 1)
    if not ids and (counts != 1).any():
        row = int(np.argmax(counts != 1))
        raise DataError(
            f"row {first + row} takes {counts[row]} lines: without ids each row is one line. Write it with ids=True."
        )
    counts = np.maximum(counts, 1)  # a row in which every sequence is empty
    ends = np.cumsum(counts)
    return ends - counts, int(ends[-1]) if rows else 0


def _items(column: Column, items: Any) -> Any:
    """`|name values` for each item."""
    if isinstance(items, Sparse):
        numbers = items.values if items.values is not None else torch.ones(len(items.indices), dtype=torch.uint8)
        parts = pc.binary_join_element_wise(_strings(items.indices), _strings(numbers), _scalar(":"))
        bounds = items.host_offsets.numpy()
    else:
        parts, bounds = _strings(items), np.arange(len(items) + 1) * column.size
    if column.sparse or column.size != 1:
        lists = pa.LargeListArray.from_arrays(pa.array(bounds), parts)
        parts = pc.binary_join(lists, _scalar(" "))
    return pc.binary_join_element_wise(_scalar(f"|{column.field.decode()}"), parts, _scalar(" "))


def _strings(numbers: Tensor) -> Any:
    """Each number with the fewest digits from which it is read back."""
    if numbers.dtype in (torch.bfloat16, torch.float16):
        numbers = numbers.float()
    if numbers.dtype == torch.bool:
        numbers = numbers.to(torch.uint8)
    return array_of(numbers).cast(pa.large_string())


def _placed(strings: Any, places: Places, total: int) -> Any:
    """Strings on the lines where they belong, null on the others."""
    if len(places) == total:
        return strings
    which = np.full(total, -1)
    which[places] = np.arange(len(places))
    return pc.take(strings, pa.array(which, mask=which < 0))


def _scalar(text: str) -> Any:
    return pa.scalar(text, pa.large_string())
