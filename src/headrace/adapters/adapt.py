"""Turns whatever a user passes as data into a Table or a Source: arrays, frames, Arrow tables, paths, loaders."""

from collections.abc import Iterable, Mapping
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..data.arrays import ArrayTable
from ..data.batch import Batch
from ..data.fields import Rows
from ..data.read_by import ReadBy, nulls_of, read_by_of
from ..data.reader import Reader
from ..data.source import Categories, Source, Table
from ..errors import DataError, HeadraceError
from ..formats.columns import from_arrow as from_arrow
from ..formats.frames import from_frame, is_frame, is_pandas
from ..formats.frames import from_pandas as from_pandas
from .loaders import LoaderSource, SampleSource
from .passes import hugging_kind
from .samples import fields_of, from_dataset


def as_table(data: Any, categories: Categories | None = None) -> Table:
    """Turns data into a Table: an array is stream "x", a tuple of two is "x" and "y", a dict names its own."""
    found = as_data(data, categories)
    if isinstance(found, Table):
        return found
    of_list = f" {_LISTS}" if isinstance(data, list) else ""
    raise DataError(
        f"expected rows by number, got a {type(data).__name__}, which gives batches in sequence only.{of_list}"
    )


def as_source(data: Any, *, order: str = "full", seed: int = 0) -> Source:
    """Turns data into a Source; a Table is read in the given order."""
    found = as_data(data)
    return found if isinstance(found, Source) else Reader(found, order, seed)


def as_data(data: Any, categories: Categories | None = None) -> Table | Source:
    """Turns arrays, a frame, a table, a path, a loader or an iterable of batches into a Table or a Source.

    A tuple is (x, y), a dict is streams by name, and a list is batches, or paths.
    Columns of strings that have `categories` are read by them, where it is here that they are read.
    """
    if isinstance(data, Table | Source):
        return data
    if isinstance(data, list | tuple) and not data:
        raise DataError(f"the {type(data).__name__} is empty: there is nothing to read.")
    given = ReadBy({name: strings for name, strings in (categories or {}).items() if strings}, nulls_of(categories))
    if isinstance(data, list):
        return _of_list(data, given)
    if isinstance(data, str | Path):
        return _of_files(data, given)
    for known in (_of_arrays, _of_libraries):
        found: Table | Source | None = known(data, given)
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


def _of_arrays(data: Any, categories: Categories) -> Table | None:
    """One column, (x, y), or columns by name."""
    if isinstance(data, Batch):
        return _table(data.fields, categories)
    if isinstance(data, Mapping):
        return None if hugging_kind(data) else _table(data, categories)
    if isinstance(data, tuple):
        return _of_tuple(data, categories)
    alone = _is_column(data) and not is_pandas(data, "DataFrame")  # the columns of a frame are streams
    return _table({"x": data}, categories) if alone else None


def _of_tuple(data: tuple[Any, ...], categories: Categories) -> Table:
    """(x, y)."""
    if not all(map(_is_column, data)):
        raise _refused(data)
    if len(data) != 2:
        raise DataError(f"expected (x, y), got {len(data)} arrays. Name the streams: {{'a': ..., 'b': ..., 'y': ...}}.")
    return _table(dict(zip("xy", data, strict=True)), categories)


def _of_list(data: list[Any], categories: Categories) -> Table | Source:
    """Files, if these are paths; else batches, each as a loader gives it."""
    if all(isinstance(path, str | Path) for path in data):
        return _of_files(data, categories)
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


def _table(parts: Mapping[str, Any], known: Categories) -> ArrayTable:
    columns: dict[str, Any] = {}
    read_by: Categories = {}
    for name, part in parts.items():
        columns[name] = part
        if is_pandas(part, "Series"):
            table = from_pandas(part.to_frame(name), known)
            columns |= table.columns
            read_by = read_by_of(read_by, table.categories)
        elif is_pandas(part, "DataFrame"):
            columns[name] = _matrix(name, part)
        elif isinstance(_first_number(part), Number):
            columns[name] = _array(name, part)
    return ArrayTable(columns, categories=read_by)


def _matrix(name: str, frame: Any) -> np.ndarray:
    """The columns of a frame side by side, as one array."""
    table = from_pandas(frame.set_axis([str(column) for column in frame.columns], axis=1))
    if table.categories:
        raise DataError(
            f"stream {name!r}: column {next(iter(table.categories))!r} of this frame holds text, the others numbers. "
            "Give the columns as streams, frame.to_dict('series'), or leave it out: frame[['a', 'b']]."
        )
    whole: np.ndarray = frame.to_numpy()
    return whole if whole.dtype.kind in "biufc" else np.stack([c.numpy() for c in table.columns.values()], axis=1)  # type: ignore[union-attr]


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


def _of_files(data: Any, categories: Categories) -> Table:
    from ..formats.table import open_by

    return open_by(data, categories)


def _of_libraries(data: Any, categories: Categories) -> Table | Source | None:
    """What other libraries hold; none of them is imported to find out."""
    if is_pandas(data, "DataFrame") or type(data).__module__.partition(".")[0] == "pyarrow":
        return from_frame(data, categories)
    if hugging_kind(data):
        from .huggingface import from_hugging_face

        return from_hugging_face(data)
    if is_frame(data):
        return from_frame(data, categories)
    if isinstance(data, DataLoader):
        return LoaderSource(data)
    if isinstance(data, IterableDataset):
        return SampleSource(data)
    if isinstance(data, Dataset):
        return from_dataset(data)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return LoaderSource(data)
    return None
