"""Fills nulls: what stands for the missing values of a column."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, unknown
from .categories import ColumnPlace, is_text
from .lazy import pa, pc, pt

LEARNED: Mapping[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median}
Nulls = Mapping[str, Any]
"""What stands for nulls by stream, as `open_table` takes it; plain values that JSON holds."""
_EXAMPLE = "Write {'age': 'mean', 'fare': 0.0, 'home': 'unknown'}."


@dataclass(frozen=True)
class Fill:
    """What stands for the nulls of one column."""

    value: Any
    optional: bool = False
    """Whether the column may be missing: it is read as the training data were, and may be of another file."""

    @property
    def text(self) -> bool:
        """Whether it is a category of a column of strings."""
        return isinstance(self.value, str) and self.value not in LEARNED


Fills = Mapping[str, Fill]
"""By column."""


def nulls_in(nulls: Any) -> dict[str, list[Any]]:
    """Checks what a user has said of nulls: for each stream a list of values."""
    if not isinstance(nulls, Mapping):
        raise ConfigError(f"nulls= is {{stream: what stands for its nulls}}, got {nulls!r}. {_EXAMPLE}")
    found = {}
    for name, given in nulls.items():
        said = list(given) if isinstance(given, list | tuple) else [given]
        said = [each.item() if isinstance(each, np.generic) else each for each in said]
        for each in said:
            if not isinstance(each, str | Real) or (isinstance(each, float) and not np.isfinite(each)):
                raise ConfigError(
                    f"nulls=: stream {name!r} takes 'mean', 'median', a number or a category, got {each!r}. {_EXAMPLE}"
                )
        if not said:
            raise ConfigError(f"nulls=: stream {name!r} takes a value, got {given!r}. {_EXAMPLE}")
        found[name] = said
    return found


def fills_of(nulls: Nulls, columns_of: Callable[[str], Sequence[str]], optional: bool = False) -> dict[str, Fill]:
    """What is filled in by column."""
    fills: dict[str, Fill] = {}
    for stream, values in nulls_in(nulls).items():
        columns = list(columns_of(stream))
        if optional and len(values) not in (1, len(columns)):
            continue  # these data have the columns apart, which their streams will tell
        if not columns:
            raise ConfigError(f"nulls=: no stream is called {stream!r}. columns= says what streams there are.")
        if len(values) not in (1, len(columns)):
            raise ConfigError(
                f"nulls=: stream {stream!r} is made of {len(columns)} columns, and {len(values)} values are to stand "
                "for its nulls. Give one for all of them, or one for each."
            )
        for column, value in zip(columns, values * len(columns) if len(values) == 1 else values, strict=True):
            fill = Fill(value, optional)
            if fills.setdefault(column, fill) != fill:
                raise ConfigError(f"nulls=: column {column!r} is in two streams. Fill its nulls alike in both.")
    return fills


def said_of(nulls: Nulls, fills: Fills, columns_of: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    """What stands for the nulls of each stream, now that it is known; JSON holds it, and `nulls=` takes it."""
    found: dict[str, Any] = {}
    for stream in nulls:
        values = [fills[column].value for column in columns_of(stream) if column in fills]
        if values:
            found[stream] = values if len(values) > 1 else values[0]
    return found


def filled(batch: Any, fills: Fills, where: str) -> Any:
    """A record batch without nulls in the columns that have a fill; fractions make floats of whole numbers."""
    for column, fill in fills.items():
        place, index = ColumnPlace(column, where), batch.schema.get_field_index(column)
        if index < 0:
            if fill.optional:
                continue
            raise ConfigError(f"nulls=: {where}: {unknown('column', column, batch.schema.names)}")
        array, value = batch.column(index), None if fill.value in LEARNED else fill.value
        kind = _filled_type(array.type, fill, place)
        missing = pc.is_null(array, nan_is_null=True)
        field = batch.schema.field(index).with_type(kind)
        batch = batch.set_column(index, field, _filled(array, missing, kind, value, place))
    return batch


def learned(fill: Fill, arrays: Iterable[Any], place: ColumnPlace) -> Fill:
    """The fill with the mean or the median of a column, given in parts."""
    if fill.value not in LEARNED:
        return fill
    parts = []
    for array in arrays:
        _filled_type(array.type, fill, place)
        numbers = _floats(array, place).drop_null().to_numpy(zero_copy_only=False)
        parts.append(numbers[~np.isnan(numbers)])
    numbers = np.concatenate(parts) if parts else np.empty(0)
    if not len(numbers):
        raise DataError(f"{place} is empty in every row, and has no {fill.value}. Fill it with a number.")
    value = float(LEARNED[fill.value](numbers))
    if not np.isfinite(value):
        raise DataError(f"{place} holds infinite numbers, and its {fill.value} is {value}. Fill it with a number.")
    return Fill(value, fill.optional)


def with_fill(strings: Sequence[str], column: str, fills: Fills, given: bool = False) -> list[str]:
    """The categories of a column, with the one that stands for nulls, which comes last unless it has a place."""
    fill = fills.get(column)
    if fill is None or not fill.text or fill.value in strings:
        return list(strings)
    if given:
        raise ConfigError(
            f"nulls=: {fill.value!r} stands for nulls of {column!r}, and is not among its categories=. Add it."
        )
    return [*strings, fill.value]


def _filled_type(kind: Any, fill: Fill, place: ColumnPlace) -> Any:
    """The type of a column once it is filled; raises where such a value cannot stand in it."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_null(kind):
        return pa.large_string() if fill.text else pa.float64() if fill.value in LEARNED else pa.scalar(fill.value).type
    if is_text(kind):
        if not fill.text:
            raise ConfigError(
                f"nulls=: {place} holds strings. Name the category that stands for nulls: "
                f"{{{place.column!r}: 'unknown'}}."
            )
        return pa.large_string()
    if fill.text:
        raise ConfigError(
            f"nulls=: {place} holds {kind}, and {fill.value!r} is no number. Write 'mean', 'median' or a number."
        )
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
        raise ConfigError(f"nulls=: {place} holds {kind}. Nulls are filled in columns of numbers or strings alone.")
    if pt.is_boolean(kind):
        if fill.value is True or fill.value is False:
            return kind
        kind = pa.int64()
    is_integer = isinstance(fill.value, int)
    return kind if is_integer or pt.is_floating(kind) else pa.float64()


def _filled(column: Any, missing: Any, kind: Any, value: Any, place: ColumnPlace) -> Any:
    plain = column.dictionary_decode() if pt.is_dictionary(column.type) else column
    try:
        stands = pa.scalar(value).cast(kind)
    except (pa.ArrowInvalid, OverflowError):
        raise ConfigError(f"nulls=: {place} holds {kind}, which has no {value!r}. Give another number.") from None
    if kind == pa.float64():
        plain = _floats(plain, place)
    return pc.if_else(missing, stands, plain.cast(kind))


def _floats(column: Any, place: ColumnPlace) -> Any:
    plain = column.dictionary_decode() if pt.is_dictionary(column.type) else column
    try:
        return (plain.cast(pa.uint8()) if pt.is_boolean(plain.type) else plain).cast(pa.float64())
    except pa.ArrowInvalid as error:
        raise DataError(f"{place}: nulls filled with fractions make it float64. {error}.") from None
