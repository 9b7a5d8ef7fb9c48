"""`write_ctf`: a table as a file in CNTK's text format, from which the same numbers are read, a block at a time."""

import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.arrow import array_of
from ...data.batch import Batch, Stream
from ...data.fields import Field, nbytes_of
from ...data.ragged import Ragged
from ...data.source import Table
from ...data.sparse import Sparse
from ...errors import DataError
from ..whole import whole
from ..write import check_rows, same_streams, say_what_is_lost
from .layout import Column, Layout
from .numbers import Places

BLOCK_BYTES = 1 << 22
FIRST_ROWS = 64


def write_ctf(
    path: str | Path,
    table_or_batches: Table | Iterable[Batch],
    *,
    fields: Mapping[str, str] | None = None,
    ids: bool = True,
) -> None:
    """Writes rows as sequences numbered from 0, packed if the name ends in `.gz`.

    `fields`: what a stream is called in the file, where that is not to be its name. `ids=False` leaves the numbers
    out, for rows that have a single line each. Numbers are written with as many digits as it takes to read the same
    ones back. There is a whole file under the name, or what was there before.
    """
    check_rows(table_or_batches)
    path = Path(path)
    with whole(path) as beside, ExitStack() as files:
        file = files.enter_context(open(beside, "xb"))
        out: Any = file
        if path.suffix.lower() == ".gz":
            out = files.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        rows = 0
        for layout, fields_of_rows, count in _blocks(table_or_batches, fields):
            out.write(_text(layout, fields_of_rows, count, rows, ids))
            rows += count
        if not rows:
            raise DataError(f"there are no rows to write to {path}.")
    say_what_is_lost(table_or_batches, path)


def _blocks(data: Any, names: Mapping[str, str] | None) -> Iterator[tuple[Layout, Mapping[str, Field], int]]:
    """Rows of a table as many at a time as make blocks of about one size, or batches as they come."""
    if isinstance(data, Table):
        layout, start, rows = _layout(data.streams, names), 0, FIRST_ROWS
        while start < len(data):
            stop = min(len(data), start + rows)
            fields = data.rows(start, stop).fields
            size = nbytes_of(fields)
            yield layout, fields, stop - start
            rows = max(1, min(4 * rows, BLOCK_BYTES * (stop - start) // max(1, size)))
            start = stop
        return
    known: Layout | None = None
    for batch in same_streams(data):
        known = known or _layout(batch.streams, names)
        yield known, batch.fields, batch.rows


def _layout(streams: Iterable[Stream], names: Mapping[str, str] | None) -> Layout:
    """The columns in the order in which they are written."""
    streams = list(streams)
    columns = {column.name: column for column in Layout.of(streams, names).columns}
    return Layout(tuple(columns[stream.name] for stream in streams))


def _text(layout: Layout, fields: Mapping[str, Any], rows: int, first: int, ids: bool) -> Any:
    """The lines of some rows, as bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa

    if numbers.dtype in (torch.bfloat16, torch.float16):
        numbers = numbers.float()
    if numbers.dtype == torch.bool:
        numbers = numbers.to(torch.uint8)
    return array_of(numbers).cast(pa.large_string())


def _placed(strings: Any, places: Places, total: int) -> Any:
    """Strings on the lines where they belong, null on the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(places) == total:
        return strings
    which = np.full(total, -1)
    which[places] = np.arange(len(places))
    return pc.take(strings, pa.array(which, mask=which < 0))


def _scalar(text: str) -> Any:
    import pyarrow as pa

    return pa.scalar(text, pa.large_string())
