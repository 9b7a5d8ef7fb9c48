"""How data were read: what the numbers of streams of strings stand for, and what stands for nulls."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

Categories = Mapping[str, Sequence[str]]
"""For each stream that holds strings, what its codes 0, 1, … stand for."""
UNNAMED: Categories = MappingProxyType({})


class ReadBy(dict[str, Sequence[str]]):
    """The categories that data were read by, and what stands for the nulls of each stream, as in `open_table`."""

    def __init__(self, categories: Categories = UNNAMED, nulls: Mapping[str, Any] = UNNAMED) -> None:
        super().__init__(categories)
        self.nulls = dict(nulls)

    def __bool__(self) -> bool:
        return bool(len(self) or self.nulls)


def nulls_of(categories: Categories | None) -> Mapping[str, Any]:
    """What stands for the nulls of data that were read by these categories."""
    return categories.nulls if isinstance(categories, ReadBy) else {}


def read_by_of(*parts: Categories) -> Categories:
    """How data were read that are made of parts, each read by these categories."""
    joined = {name: strings for part in parts for name, strings in part.items()}
    nulls = {name: value for part in parts for name, value in nulls_of(part).items()}
    return ReadBy(joined, nulls) if nulls else joined
