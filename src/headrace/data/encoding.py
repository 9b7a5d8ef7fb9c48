"""How data were read: the columns and their streams, the meaning of codes, and the values for nulls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .batch import Stream

Categories = Mapping[str, Sequence[str]]
"""For each stream that was made of strings, what its codes 0, 1, … stand for."""


@dataclass(frozen=True)
class Encoding:
    """How data were read, so that other data are read in the same way. It goes with a table, a model and a run."""

    streams: tuple[Stream, ...] = ()
    """The streams that were read; their dtypes are those of the columns."""
    categories: Categories = field(default_factory=dict)
    nulls: Mapping[str, Any] = field(default_factory=dict)
    """What stands for the nulls of each stream, as `open_table` takes it; a mean is a number by now."""
    columns: Mapping[str, str | Sequence[str]] | None = None
    """The columns that each stream is made of. If it is `None`, each stream is the column of its name."""
    maps: tuple[str, ...] = ()
    """The names of the functions that have changed the rows since."""

    @property
    def names(self) -> set[str]:
        """The streams whose contents are known."""
        return {stream.name for stream in self.streams} | set(self.categories)

    def beside(self, other: "Encoding") -> "Encoding":
        """The encoding of data that have the streams of both."""
        columns = None
        if self.columns is not None or other.columns is not None:
            columns = {**self._columns(), **other._columns()}
        return Encoding(
            (*self.streams, *other.streams),
            {**self.categories, **other.categories},
            {**self.nulls, **other.nulls},
            columns,
            (*self.maps, *other.maps),
        )

    def _columns(self) -> Mapping[str, str | Sequence[str]]:
        return {stream.name: stream.name for stream in self.streams} if self.columns is None else self.columns
