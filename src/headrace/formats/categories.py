"""Strings as numbers: a column of strings is read as the places of its strings in a list, its categories."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, unknown
from .lazy import pa, pc, pt


@dataclass(frozen=True)
class ColumnPlace:
    """The column that is being read, the file it is of, and the row that an item of it belongs to."""

    column: str
    file: str = ""
    row: Callable[[int], int] = int

    def __str__(self) -> str:
        return f"column {self.column!r} of {self.file}" if self.file else f"column {self.column!r}"

    def at(self, item: int) -> str:
        return f"{self}, row {self.row(item)}"

    def inside(self, parent: Callable[[int], int]) -> "ColumnPlace":
        """The place of the items of a list column: `parent` tells which list an item is of."""
        return ColumnPlace(self.column, self.file, lambda item: self.row(parent(item)))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of strings, as they are or by a dictionary."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def refuse_nulls(array: Any, place: ColumnPlace) -> None:
    """Raises where values are missing, and says how many and which is the first."""
    if array.null_count:
        first = int(np.argmax(np.asarray(pc.is_null(array))))
        raise DataError(
            f"{place} has {array.null_count} nulls, the first in row {place.row(first)}. "
            f"A stream has a value in every row: fill them, open_table(..., nulls={{{place.column!r}: ...}}), "
            "drop those rows, or leave out a column that the model does not use: columns= says which are read."
        )


def refuse_numbers(known: Mapping[str, Sequence[str]], columns: Iterable[str], where: object) -> None:
    """Raises if a column that had strings in training holds numbers: they need not be the numbers of those strings."""
    for column in columns:
        if strings := known.get(column):
            raise DataError(
                f"{ColumnPlace(column, str(where))} holds no strings, and in the training data it does: "
                f"{', '.join(map(repr, strings[:3]))}{', …' * (len(strings) > 3)}. Give the strings here, too, or "
                "numbers of these as an array."
            )


def codes(array: Any, categories: Sequence[str], place: ColumnPlace) -> NDArray[np.int64]:
    """For each string of an Arrow array, its place among the categories."""
    known = pa.array(categories, pa.large_string())
    if not pt.is_dictionary(array.type):
        found = _find(array, known)
        return _refuse_unknown(found, array, known, place)
    indices = within(array, place)
    refuse_nulls(array.dictionary.take(pa.array(np.unique(indices))), place)
    found = _find(array.dictionary, known)[indices]
    return _refuse_unknown(found, array, known, place)


def within(array: Any, place: ColumnPlace) -> NDArray[Any]:
    """The indices of a dictionary array, none of them outside the dictionary."""
    indices: NDArray[Any] = np.asarray(array.indices)
    size = len(array.dictionary)
    if len(outside := np.flatnonzero((indices < 0) | (indices >= size))):
        first = int(outside[0])
        raise DataError(
            f"{place.at(first)}: index {int(indices[first])} is outside its dictionary of {size} entries. "
            "The file is damaged: write it again."
        )
    return indices


def leaf_of(array: Any, place: ColumnPlace) -> Any:
    """The strings inside of lists, of whatever depth; nothing of a damaged array is touched."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{place} is damaged: {error}. Write it again.") from None
    while not is_text(array.type):
        if pt.is_null(array.type):
            return array.cast(pa.large_string())
        array = array.flatten()
    return array


def distinct(strings: Any) -> Any:
    """The different strings of an Arrow array; of a dictionary array only its dictionary counts."""
    return strings.slice(0, 0) if pt.is_dictionary(strings.type) else pc.unique(_plain(strings))


def strings_of(arrays: Iterable[Any]) -> list[str]:
    """The categories of a column given in parts: the dictionary where all parts have that one, else sorted strings."""
    same: list[str] | None = None
    differ, seen = False, set[str]()
    for array in arrays:
        strings = array.dictionary if pt.is_dictionary(array.type) else pc.unique(_plain(array))
        held: list[str] = strings.drop_null().to_pylist()
        seen.update(held)
        if not pt.is_dictionary(array.type) or len(set(held)) < len(held):
            differ = True
        elif same is None:
            same = held
        differ = differ or same != held
    return sorted(seen) if differ or same is None else same


def _find(strings: Any, known: Any) -> NDArray[np.int64]:
    """Places among the known strings, -1 for those that are not there."""
    found: NDArray[np.int64] = np.asarray(pc.fill_null(pc.index_in(_plain(strings), value_set=known), -1), np.int64)
    return found


def _plain(strings: Any) -> Any:
    return strings.cast(pa.large_string())


def _refuse_unknown(found: NDArray[np.int64], array: Any, known: Any, place: ColumnPlace) -> NDArray[np.int64]:
    if len(missing := np.flatnonzero(found < 0)):
        first = int(missing[0])
        sentence = unknown("string", array[first].as_py(), known.to_pylist())
        raise DataError(f"{place.at(first)}: {sentence} Or pass categories= that have it.")
    return found


def leaves(kind: Any) -> Any:
    """The type of the items of lists, of whatever depth."""
    while pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind
