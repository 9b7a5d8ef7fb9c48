"""Which columns of a file become which streams, and of which dtype."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Stream, torch_dtype
from ..data.fields import Field
from ..data.ragged import Ragged
from ..data.source import check_fixed, check_names
from ..data.sparse import Sparse
from ..errors import ConfigError, DataError, unknown

STACKED_ROWS = 4096  # of columns that are put side by side
Columns = Sequence[str] | Mapping[str, str | Sequence[str]]


def streams_in(streams: Any) -> tuple[Stream, ...]:
    """Checks the streams that a user has declared."""
    if isinstance(streams, Stream | str | Mapping) or not isinstance(streams, Sequence):
        raise ConfigError(f"streams= is a list of Streams, got {streams!r}. Write streams=[Stream('x', (5,))].")
    if strange := [stream for stream in streams if not isinstance(stream, Stream)]:
        raise ConfigError(f"streams= takes Streams, got {strange[0]!r}. Try Stream('x', (5,)).")
    check_names(streams)
    check_fixed(streams)
    return tuple(streams)


def categories_in(categories: Any) -> dict[str, Sequence[str]]:
    """Checks the categories that a user has given: different strings for each stream."""
    example = "Write {'y': ['no', 'yes']}."
    if not isinstance(categories, Mapping):
        raise ConfigError(f"categories= is {{stream: strings}}, got {categories!r}. {example}")
    for name, strings in categories.items():
        said = f"categories=: stream {name!r}"
        if isinstance(strings, str) or not isinstance(strings, Sequence):
            raise ConfigError(f"{said} takes a list of strings, got {strings!r}. {example}")
        if strange := [each for each in strings if not isinstance(each, str)]:
            raise ConfigError(f"{said} takes strings, got {strange[0]!r}, a {type(strange[0]).__name__}. {example}")
        if twice := _twice(strings):
            raise ConfigError(f"{said} has {twice[0]!r} twice: a string has one code. Leave one out.")
    return dict(categories)


def begins_with_numbers(held: Sequence[str]) -> bool:
    """Whether these names are the numbers of a first row; 0, 1 and so on may well be names."""
    return are_numbers(held) and not all(name.isdigit() for name in held)


def are_numbers(held: Sequence[str]) -> bool:
    """Whether all names of columns are numbers."""
    return all(re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", name) for name in held)


def no_names(where: object) -> str:
    """The error message for a file without names of columns."""
    return f"{where}: the first line holds numbers: a CSV begins with the names of its columns. Add such a line."


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _dtype_name(dtype: Any) -> str:
    """The name of a dtype that is given as torch's, NumPy's or by name."""
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    try:
        return str(torch_dtype(dtype if isinstance(dtype, str) else np.dtype(dtype).name)).removeprefix("torch.")
    except TypeError:
        raise ConfigError(f"dtypes=: {dtype!r} is not a dtype. Try 'float32' or 'int64'.") from None


@dataclass(frozen=True)
class MadeOf:
    """A stream, and the columns that it is made of: one, or several numbers side by side."""

    stream: Stream
    columns: tuple[str, ...]
    stacked: bool


class Selection:
    """Which columns to read, and as which dtypes: `columns` and `dtypes` of `open_table`."""

    def __init__(self, columns: Columns | None = None, dtypes: Mapping[str, Any] | None = None) -> None:
        if isinstance(columns, str):
            raise ConfigError(
                f"columns= is a list of names or {{stream: column}}, got {columns!r}. Write [{columns!r}]."
            )
        if columns is not None and not isinstance(columns, Mapping):
            columns = {name: name for name in columns}
        if columns is not None:
            columns = {name: held if isinstance(held, str) else tuple(held) for name, held in columns.items()}
        if columns == {}:
            raise ConfigError("columns= is empty: there is nothing to read.")
        if bare := [name for name, held in (columns or {}).items() if held == ()]:
            raise ConfigError(f"columns=: stream {bare[0]!r} has no columns. Name at least one.")
        if dtypes is not None and not isinstance(dtypes, Mapping):
            raise ConfigError(f"dtypes= is {{stream: dtype}}, got {dtypes!r}. Write {{'x': 'float32'}}.")
        self.columns = columns
        self.dtypes = {name: _dtype_name(dtype) for name, dtype in (dtypes or {}).items()}

    def columns_of(self, stream: str) -> list[str]:
        """The columns of a stream, by the names they have in the file."""
        wanted = stream if self.columns is None else self.columns.get(stream, [])
        return [wanted] if isinstance(wanted, str) else list(wanted)

    def wanted(self, where: object, held: Sequence[str], aside: Collection[str] = ()) -> list[str]:
        """The columns to read of a file, in its order; those `aside` only if they are named."""
        if not held:
            raise DataError(f"{where} has no columns.")
        if twice := _twice(held):
            count = held.count(twice[0])
            raise DataError(f"{where} has {count} columns {twice[0]!r}. Give them names of their own.")
        if self.columns is None:
            if begins_with_numbers(held):
                raise DataError(no_names(where))
            if "" in held:
                raise DataError(f"{where} has a column without a name. Give it one, or leave it out with columns=.")
            return [name for name in held if name not in aside]
        asked = [name for stream in self.columns for name in self.columns_of(stream)]
        for name in asked:
            if name not in held:
                raise DataError(f"{where}: {unknown('column', name, held)}")
        return [name for name in held if name in asked]

    def made_of(self, known: Mapping[str, Stream], texts: Collection[str], where: object) -> list[MadeOf]:
        """What is made of the columns of a file; `texts` are the columns of strings among them."""
        found = []
        for name in self.columns or known:
            columns = self.columns_of(name)
            stacked = self.columns is not None and not isinstance(self.columns[name], str)
            stream = _stacked(name, [(c, known[c]) for c in columns], texts, where) if stacked else known[columns[0]]
            _refuse_dots(name, where)
            dtype = self.dtypes.get(name, stream.dtype)
            stream = Stream(name, stream.shape, dtype, stream.layout, stream.sequence)
            found.append(MadeOf(stream, tuple(columns), stacked))
        for name in self.dtypes:
            if name not in [made.stream.name for made in found]:
                raise ConfigError(f"dtypes=: {unknown('stream', name, [made.stream.name for made in found])}")
        return found


def make_streams(made: Sequence[MadeOf], fields: Mapping[str, Any], where: Callable[[int], str]) -> dict[str, Field]:
    """Makes streams of the columns of a file; `where` tells where a row is, for messages."""
    found: dict[str, Field] = {}
    for each in made:
        name, dtype = each.stream.name, torch_dtype(each.stream.dtype)
        columns = [cast(fields[column], dtype, name, where) for column in each.columns]
        found[name] = _side_by_side(columns) if each.stacked else columns[0]
    return found


def _side_by_side(columns: Sequence[Tensor]) -> Tensor:
    """Columns of numbers as those of a matrix, some rows at a time, which stay in the processor's cache."""
    if columns[0].dtype == torch.bfloat16:  # which NumPy has not
        return torch.stack(list(columns), 1)
    arrays = [column.numpy() for column in columns]
    matrix = np.empty((len(arrays[0]), len(arrays)), arrays[0].dtype)
    for start in range(0, len(matrix), STACKED_ROWS):
        rows = slice(start, start + STACKED_ROWS)
        np.stack([array[rows] for array in arrays], 1, out=matrix[rows])
    return torch.from_numpy(matrix)


def cast(field: Any, dtype: torch.dtype, name: str, where: Callable[[int], str]) -> Any:
    """Casts a field; refuses numbers that the new dtype does not hold."""
    if field.dtype == dtype:
        return field
    if not isinstance(field, Ragged | Sparse):
        return _cast(field, dtype, name, where)

    def of_item(item: int) -> str:
        return where(int(field.rows_of(torch.tensor(item))))

    if isinstance(field, Ragged):
        return field.with_values(cast(field.values, dtype, name, of_item))
    made = field.map(lambda tensor: tensor)
    made.values = None if field.values is None else cast(field.values, dtype, name, of_item)
    made.dtype = dtype
    return made


def _cast(rows: Tensor, dtype: torch.dtype, name: str, where: Callable[[int], str]) -> Tensor:
    parts = rows.real if rows.dtype.is_complex and not dtype.is_complex else rows
    cast = parts.to(dtype)
    lost = _lost(parts, cast)
    if parts is not rows:
        lost = rows.imag.ne(0) if lost is None else lost | rows.imag.ne(0)
    if lost is not None and bool(lost.any()):
        first = int(torch.nonzero(lost.view(-1))[0])
        item = first // max(1, rows[0].numel())
        value = rows.reshape(-1)[first].item()
        raise DataError(
            f"stream {name!r}, {where(item)}: {value} is not a number that {str(dtype).removeprefix('torch.')} holds. "
            f"Give dtypes={{{name!r}: ...}} another one."
        )
    return cast


def _lost(rows: Tensor, cast: Tensor) -> Tensor | None:
    """Marks the numbers that a cast has changed; rounding a fraction does not count."""
    if rows.dtype == torch.bool:
        return None
    fractions = rows.dtype.is_floating_point or rows.dtype.is_complex
    if cast.dtype == torch.bool:
        return rows.ne(0) & rows.ne(1) if fractions else torch.from_numpy(~np.isin(rows.numpy(), (0, 1)))
    if cast.dtype.is_floating_point or cast.dtype.is_complex:
        if not fractions:
            return _inexact(rows.numpy(), torch.finfo(cast.dtype))
        if torch.finfo(cast.dtype).max >= torch.finfo(rows.dtype).max or _all_finite(cast):
            return None
        return rows.isfinite() & ~cast.isfinite()
    fits = torch.iinfo(cast.dtype)
    if fractions:
        return ~((rows >= fits.min) & (rows < float(fits.max) + 1) & (rows == rows.trunc()))
    numbers = rows.numpy()  # torch does not compare unsigned integers
    if np.can_cast(numbers.dtype, cast.numpy().dtype, "safe"):
        return None
    return torch.from_numpy((numbers < fits.min) | (numbers > fits.max))


def _all_finite(numbers: Tensor) -> bool:
    """Whether all numbers are certainly finite: by the smallest and the largest, found in one pass."""
    if numbers.dtype.is_complex or not numbers.numel():
        return bool(numbers.isfinite().all())
    return all(math.isfinite(each) for each in numbers.aminmax())


def _inexact(numbers: Any, kind: torch.finfo) -> Tensor | None:
    """Marks the whole numbers that a float type does not hold: too large, or with too many digits."""
    held = round(2 / kind.eps)  # up to here all of them
    if not numbers.size or (numbers.max() <= held and numbers.min() >= -held):
        return None
    large = numbers.astype(np.uint64)
    large = np.where(numbers < 0, ~large + np.uint64(1), large)
    digits = large // np.maximum(large & (~large + np.uint64(1)), np.uint64(1))  # without the zeros at their end
    return torch.from_numpy((digits >= held) | (large.astype(np.float64) > kind.max))


def _stacked(name: str, parts: Sequence[tuple[str, Stream]], texts: Collection[str], where: object) -> Stream:
    """The stream that columns of numbers make side by side."""
    for column, part in parts:
        if column in texts or part.shape or part.sequence or part.layout != "dense":
            kind = "strings" if column in texts else str(part).partition(": ")[2]
            raise DataError(
                f"{where}: column {column!r} cannot stand beside others in stream {name!r}: it holds {kind}. "
                "Give it a stream of its own."
            )
    kinds = [part.dtype for _, part in parts]
    dtype = "float32" if "bfloat16" in kinds and len(set(kinds)) > 1 else kinds[0]
    if "bfloat16" not in kinds:
        dtype = str(np.result_type(*kinds))
    return Stream(name, (len(parts),), dtype)


def _refuse_dots(name: str, where: object) -> None:
    if "." in name:
        raise DataError(
            f"{where}: column {name!r} has a dot in its name, which a stream cannot have. "
            f"Name it: columns={{{name.replace('.', '_')!r}: {name!r}}}."
        )
