"""Which columns of a file become which streams, and of which dtype."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...batch import Stream, torch_dtype
from ...errors import ConfigError, DataError, unknown
from ...field import Field, Ragged, Sparse

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]
_DOT = "\u2024"  # a stream has no dots in its name, and many a CSV file has: "Sepal.Length"


def inner(column: str) -> str:
    """The name under which a column is read."""
    return column.replace(".", _DOT)


@dataclass(frozen=True)
class Pick:
    """A stream, and the columns that it is made of: one, or several numbers side by side."""

    stream: Stream
    columns: tuple[str, ...]
    stacked: bool = False


class Selection:
    """What a user wants of files, whatever they hold: `columns` and `dtypes` as `open_table` takes them."""

    def __init__(self, columns: Columns | None = None, dtypes: Mapping[str, str] | None = None) -> None:
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
        self.columns = columns
        self.dtypes = {name: str(torch_dtype(dtype)).removeprefix("torch.") for name, dtype in (dtypes or {}).items()}

    def columns_of(self, stream: str) -> list[str]:
        """The columns of a stream, by the names they have in the file."""
        wanted = stream if self.columns is None else self.columns.get(stream, [])
        return [wanted] if isinstance(wanted, str) else list(wanted)

    def wanted(self, held: Sequence[str], where: object) -> list[str]:
        """Those columns of a file that are read, in its order."""
        if not held:
            raise DataError(f"{where} has no columns.")
        if twice := sorted({name for name in held if held.count(name) > 1}):
            raise DataError(f"{where} has two columns {twice[0]!r}. Give them names of their own.")
        if self.columns is None:
            if "" in held:
                raise DataError(f"{where} has a column without a name. Give it one, or leave it out with columns=.")
            return list(held)
        asked = [name for stream in self.columns for name in self.columns_of(stream)]
        for name in asked:
            if name not in held:
                raise DataError(f"{where}: {unknown('column', name, held)}")
        return [name for name in held if name in asked]

    def picks(self, streams: Sequence[Stream], texts: Sequence[str], where: object) -> "Picks":
        """What to make of a file that has these streams; `texts` are the columns of strings among them."""
        known = {stream.name: stream for stream in streams}
        found = []
        for name in self.columns or known:
            columns = [inner(column) for column in self.columns_of(name)]
            stacked = self.columns is not None and not isinstance(self.columns[name], str)
            stream = _stacked(name, [known[c] for c in columns], texts, where) if stacked else known[columns[0]]
            _refuse_dots(name, where)
            dtype = self.dtypes.get(name, stream.dtype)
            found.append(
                Pick(Stream(name, stream.shape, dtype, stream.layout, stream.sequence), tuple(columns), stacked)
            )
        for name in self.dtypes:
            if name not in [pick.stream.name for pick in found]:
                raise ConfigError(f"dtypes=: {unknown('stream', name, [pick.stream.name for pick in found])}")
        return Picks(found)


class Picks:
    """Makes the streams that are wanted of those that a file has."""

    def __init__(self, picks: Sequence[Pick]) -> None:
        self._picks = picks
        self._dtypes = [torch_dtype(pick.stream.dtype) for pick in picks]
        self.streams = tuple(pick.stream for pick in picks)

    def column_of(self, stream: str) -> str:
        return next(pick.columns[0] for pick in self._picks if pick.stream.name == stream)

    def __call__(self, fields: Mapping[str, Any], where: Callable[[int], str]) -> dict[str, Field]:
        found: dict[str, Field] = {}
        for pick, dtype in zip(self._picks, self._dtypes, strict=True):
            name = pick.stream.name
            columns = [cast(fields[column], dtype, name, where) for column in pick.columns]
            found[name] = torch.stack(columns, 1) if pick.stacked else columns[0]
        return found


def cast(field: Any, dtype: torch.dtype, name: str, where: Callable[[int], str]) -> Any:
    """A field of another dtype; a number that the dtype does not hold is refused."""
    if field.dtype == dtype:
        return field
    if isinstance(field, Ragged):

        def of_item(item: int) -> str:
            return where(int(torch.searchsorted(field.bounds, item, right=True)) - 1)

        return field.with_values(cast(field.values, dtype, name, of_item))
    if isinstance(field, Sparse):

        def of_index(item: int) -> str:
            return where(int(torch.searchsorted(field.bounds, item, right=True)) - 1)

        made = field.map(lambda tensor: tensor)
        made.values = None if field.values is None else cast(field.values, dtype, name, of_index)
        made.dtype = dtype
        return made
    return _cast(field, dtype, name, where)


def _cast(rows: Tensor, dtype: torch.dtype, name: str, where: Callable[[int], str]) -> Tensor:
    cast = rows.to(dtype)
    lost = _lost(rows, cast)
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
    """Where a number became another; floats may be rounded, to a finite number."""
    if rows.dtype == torch.bool or cast.dtype.is_complex:
        return None
    if cast.dtype == torch.bool:
        return (
            torch.from_numpy(~np.isin(rows.numpy(), (0, 1)))
            if not rows.dtype.is_floating_point
            else rows.ne(0) & rows.ne(1)
        )
    if cast.dtype.is_floating_point:
        narrower = rows.dtype.is_floating_point and torch.finfo(cast.dtype).max < torch.finfo(rows.dtype).max
        return rows.isfinite() & ~cast.isfinite() if narrower else None
    fits = torch.iinfo(cast.dtype)
    if rows.dtype.is_floating_point:
        return ~((rows >= fits.min) & (rows < float(fits.max) + 1) & (rows == rows.trunc()))
    numbers = rows.numpy()  # torch does not compare unsigned integers
    if np.can_cast(numbers.dtype, cast.numpy().dtype, "safe"):
        return None
    return torch.from_numpy((numbers < fits.min) | (numbers > fits.max))


def _stacked(name: str, parts: Sequence[Stream], texts: Sequence[str], where: object) -> Stream:
    """The stream that columns of numbers make side by side."""
    if not parts:
        raise ConfigError(f"columns=: stream {name!r} has no columns. Name at least one.")
    for part in parts:
        if part.name in texts or part.shape or part.sequence or part.layout != "dense":
            kind = "strings" if part.name in texts else str(part).partition(": ")[2]
            raise DataError(
                f"{where}: column {part.name!r} cannot stand beside others in stream {name!r}: it holds {kind}. "
                "Give it a stream of its own."
            )
    kinds = {part.dtype for part in parts}
    dtype = "float32" if "bfloat16" in kinds and len(kinds) > 1 else parts[0].dtype
    if "bfloat16" not in kinds:
        dtype = str(np.result_type(*kinds))
    return Stream(name, (len(parts),), dtype)


def _refuse_dots(name: str, where: object) -> None:
    plain = name.replace(_DOT, ".")
    if "." in plain:
        raise DataError(
            f"{where}: column {plain!r} has a dot in its name, which a stream cannot have. "
            f"Name it: columns={{{plain.replace('.', '_')!r}: {plain!r}}}."
        )
