"""Turns whatever a user passes as data into a Table or a Source: arrays, frames, paths, loaders, samples."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..data.arrays import ArrayTable
from ..data.batch import Batch
from ..data.encoding import Encoding
from ..data.fields import Rows, unmasked
from ..data.ragged import Ragged
from ..data.source import Source, Table
from ..errors import DataError, HeadraceError
from ..formats.frames import is_frame, is_pandas
from .iterables import LoaderSource, SampleSource
from .loaders import hugging_kind
from .samples import columns_of, fields_of, from_dataset


def as_table(data: Any, like: Encoding | None = None) -> Table:
    """Turns data into a Table: an array is stream "x", a tuple of two is "x" and "y", a dict names its own."""
    found = as_data(data, like)
    if isinstance(found, Table):
        return found
    of_list = f" {_LISTS}" if isinstance(data, list) else ""
    raise DataError(
        f"expected rows by number, got a {type(data).__name__}, which gives batches in sequence only.{of_list}"
    )


def as_data(data: Any, like: Encoding | None = None) -> Table | Source:
    """Turns arrays, a frame, a table, a path, a loader or an iterable of batches into a Table or a Source.

    A tuple is (x, y), a dict is streams by name, and a list is batches, or paths.
    Files and frames are read as those data were whose encoding is `like`.
    """
    if isinstance(data, Table | Source):
        return data
    if isinstance(data, list | tuple) and not data:
        raise DataError(f"the {type(data).__name__} is empty: there is nothing to read.")
    if isinstance(data, list):
        return _of_list(data, like)
    if isinstance(data, str | Path):
        return _opened(data, like)
    for known in (_of_arrays, _of_libraries):
        found: Table | Source | None = known(data, like)
        if found is not None:
            return found
    raise _refused(data)


def _refused(data: Any) -> DataError:
    kinds = [type(part).__name__ for part in data[:3]] if isinstance(data, tuple | list) else []
    of = f" of {', '.join(kinds)}{' and others' * (len(data) > 3)}" if kinds else ""
    return DataError(
        f"cannot read data from a {type(data).__name__}{of}. Pass arrays or tensors as x, (x, y) or {{'name': ...}}, "
        "a pandas or Arrow table, a path, a torch Dataset or DataLoader, a list of batches, samples as "
        "hr.samples([...]), or a headrace Table or Source."
    )


def _of_arrays(data: Any, like: Encoding | None) -> Table | None:
    """One column, (x, y), or columns by name."""
    if isinstance(data, Batch):
        return _table(data.fields, like)
    if isinstance(data, Mapping):
        return None if hugging_kind(data) else _table(data, like)
    if isinstance(data, tuple):
        return _of_tuple(data, like)
    if is_frame(data):  # its columns are streams
        return None
    return _table({"x": data}, like) if _is_column(data) else None


def _of_tuple(data: tuple[Any, ...], like: Encoding | None) -> Table:
    """(x, y)."""
    if not all(map(_is_column, data)):
        raise _refused(data)
    if len(data) != 2:
        raise DataError(f"expected (x, y), got {len(data)} arrays. Name the streams: {{'a': ..., 'b': ..., 'y': ...}}.")
    return _table(dict(zip("xy", data, strict=True)), like)


def _of_list(data: list[Any], like: Encoding | None) -> Table | Source:
    """Files, if these are paths; else batches, each as a loader gives it."""
    if all(isinstance(path, str | Path) for path in data):
        return _opened(data, like)
    numbers = isinstance(data[0], list) and isinstance(_first_number(data[0]), Number)
    if numbers or any(isinstance(batch, Number | str | Path) for batch in data):
        raise _refused(data)  # lists of numbers may be rows, columns or batches
    tensors = isinstance(data[0], Tensor | np.ndarray)  # which may be x and y: all of them have to be alike
    kinds = [_kind_of_batch(k, batch) for k, batch in enumerate(data if tensors else data[:1])]
    if odd := [k for k, kind in enumerate(kinds) if kind != kinds[0]]:
        raise DataError(f"a list is batches, and item {odd[0]} of this one is not like item 0. {_LISTS}")
    if not isinstance(data[0], Batch) and all(dimensions == 0 for dimensions, _ in kinds[0]):
        raise DataError(
            "a list is batches, and the items of this one have a single dimension each, as rows of samples have. Give "
            "samples as hr.samples([...]), and batches of single numbers as hr.LoaderSource([...])."
        )
    return LoaderSource(data)


_LISTS = "Give x and y as a tuple, (x, y), and samples as hr.samples([...])."


def _kind_of_batch(k: int, batch: Any) -> list[tuple[int | None, Any]]:
    """The dimensions of a row in each stream, where it is a tensor, and what it holds."""
    try:
        fields = Batch(fields_of(batch, None, "a batch")).fields.values()
    except HeadraceError as error:
        raise DataError(f"a list is batches, and item {k} of this one is none: {error} {_LISTS}") from None
    return [(f.dim() - 1, f.dtype) if isinstance(f, Tensor) else (None, type(f)) for f in fields]


def _is_column(part: Any) -> bool:
    """Whether it has a row for each sample: an array, sequences, sparse rows, what pandas holds, lists of numbers."""
    known = isinstance(part, Tensor | np.ndarray | Rows) or type(part).__module__.startswith("scipy.sparse")
    return known or is_pandas(part, "Series", "DataFrame") or isinstance(_first_number(part), Number)


def _first_number(part: Any) -> Any:
    """The first item of lists in lists; `None` of anything else."""
    if not isinstance(part, tuple | list):
        return None
    while isinstance(part, tuple | list):
        part = part[0] if part else None
    return part


def _table(parts: Mapping[str, Any], like: Encoding | None) -> ArrayTable:
    like = like or Encoding()
    if like.maps and any(is_pandas(part, "Series", "DataFrame") for part in parts.values()):
        raise DataError(
            f"the training data were changed by map({', '.join(like.maps)}), and these frames would be read without "
            "that. Map them, hr.map(hr.open_table(frame, ...), function), or give arrays, as after the map."
        )
    columns: dict[str, Any] = {}
    made_of: dict[str, str | tuple[str, ...]] = {}
    encoding = Encoding()
    for name, part in parts.items():
        columns[name], made_of[name] = part, name
        if is_pandas(part, "Series", "DataFrame"):
            table, made_of[name] = _of_pandas(name, part, like)
            columns |= table.columns
            encoding = encoding.beside(table.encoding)
        elif isinstance(_first_number(part), Number):
            columns[name] = _array(name, part)
    streams = tuple(ArrayTable(columns).streams)
    chosen = made_of if any(not isinstance(of, str) for of in made_of.values()) else None
    return ArrayTable(columns, encoding=Encoding(streams, encoding.categories, encoding.nulls, chosen))


def _of_pandas(name: str, part: Any, like: Encoding) -> tuple[ArrayTable, str | tuple[str, ...]]:
    """A column of pandas, or several side by side, as a table, and the columns: those of the training data."""
    from ..formats.encode import Request
    from ..formats.files import open_frame
    from ..formats.select import Selection

    known = Encoding(
        categories={name: like.categories[name]} if name in like.categories else {},
        nulls={name: like.nulls[name]} if name in like.nulls else {},
    )
    if is_pandas(part, "Series"):
        return open_frame(part.to_frame(name), Request(like=known)), name
    frame = part.set_axis([str(column) for column in part.columns], axis=1)
    before = (like.columns or {}).get(name, name)
    of = tuple(frame.columns if isinstance(before, str) else before)
    if missing := [column for column in of if column not in frame.columns]:
        raise DataError(f"stream {name!r}: this frame has no column {missing[0]!r}, as the training data have.")
    return open_frame(frame, Request(Selection({name: of}), like=known)), of


def _array(name: str, rows: Any) -> np.ndarray | Tensor:
    """Lists of numbers as an array; what is a float to Python is of torch's default dtype."""
    try:
        array = np.asarray(rows)
    except (TypeError, ValueError):
        raise DataError(
            f"stream {name!r}: the rows of this {type(rows).__name__} differ in length, or are not all numbers. "
            "Sequences are made by hr.Ragged.of(rows)."
        ) from None
    plain = array.dtype == np.float64 and not isinstance(_first_number(rows), np.generic)
    return torch.from_numpy(array).to(torch.get_default_dtype()) if plain else array


def _opened(data: Any, like: Encoding | None) -> Table:
    """Files, or a frame."""
    from ..formats.table import open_like, open_table

    return open_table(data) if like is None else open_like(data, like)


def _of_libraries(data: Any, like: Encoding | None) -> Table | Source | None:
    """What other libraries hold; none of them is imported to find out."""
    if hugging_kind(data):
        from .huggingface import from_hugging_face

        return from_hugging_face(data)
    if is_frame(data) or type(data).__module__.partition(".")[0] == "pyarrow":
        return _opened(data, like)
    if isinstance(data, DataLoader):
        return LoaderSource(data)
    if isinstance(data, IterableDataset):
        return SampleSource(data)
    if isinstance(data, Dataset):
        table: Table = from_dataset(data)
        return table
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return LoaderSource(data)
    return None


# --- samples ----------------------------------------------------------------------------------------------


def samples(data: Sequence[Any]) -> ArrayTable:
    """Stacks samples into a table, which `fit`, `predict`, `validate` and `step` take.

    A sample is a dict of streams, a tuple of x and y as a Dataset gives it, or x alone, a tensor, an array or a number.
    A stream whose samples differ in their first dimension holds sequences.
    """
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise DataError(f"samples() takes a list of samples, got a {type(data).__name__}.")
    if not data:
        raise DataError("samples() takes at least one sample, got none.")
    for k, sample in enumerate(data):
        unnamed = isinstance(sample, tuple) and len(sample) > 2 and not hasattr(sample, "_asdict")
        if unnamed or isinstance(sample, list):
            what = f"tuple of {len(sample)} parts" if unnamed else "list"
            raise DataError(
                f"sample {k} is a {what}. Give an array, a tuple (x, y), or a dict: {{'x': [...], 'y': ...}}."
            )
    columns = columns_of(data, None, "samples()")
    return ArrayTable({name: _stacked(name, parts) for name, parts in columns.items()})


def _stacked(name: str, parts: Sequence[Any]) -> Tensor | Ragged:
    """The rows of a stream; sequences where they differ in their first dimension."""
    rows = [_row(name, k, part) for k, part in enumerate(parts)]
    if len({row.shape for row in rows}) == 1:
        return torch.stack(rows)
    if not all(row.dim() and row.shape[1:] == rows[0].shape[1:] for row in rows):
        k, odd = next((k, row) for k, row in enumerate(rows) if row.shape != rows[0].shape)
        raise DataError(
            f"stream {name!r}: sample {k} has the shape {list(odd.shape)}, sample 0 has {list(rows[0].shape)}. "
            "Give all one shape; sequences may differ in their first dimension."
        )
    return Ragged.of(rows)


def _row(name: str, k: int, part: Any) -> Tensor:
    who = f"stream {name!r}: sample {k}"
    part = unmasked(part, who)
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):
        kind = "text" if isinstance(part, str | bytes) else f"a {type(part).__name__}"
        raise DataError(
            f"{who} holds {kind}, of which there is no tensor. Make numbers of it, or leave it out."
        ) from None
