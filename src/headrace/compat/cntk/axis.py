"""Axes of CNTK's tensors: static ones by number, and the dynamic ones of batch and sequence."""

from itertools import count
from typing import Any

_numbers = count()


class Axis:
    """An axis: a static one has a number, a dynamic one a name."""

    def __init__(self, which: int | str, is_ordered: bool = True) -> None:
        self.which, self.is_ordered = which, is_ordered

    @property
    def name(self) -> str:
        return str(self.which) if isinstance(self.which, str) else f"staticAxis_{self.which}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axis) and self.which == other.which

    def __hash__(self) -> int:
        return hash(self.which)

    def __repr__(self) -> str:
        return f"Axis('{self.name}')"

    @staticmethod
    def all_static_axes() -> "Axis":
        return Axis("__all_static_axes__")

    @staticmethod
    def all_axes() -> "Axis":
        """All axes of a sample, and the dynamic ones."""
        return Axis("__all_axes__")

    @staticmethod
    def default_batch_axis() -> "Axis":
        return BATCH

    @staticmethod
    def end_static_axis() -> "Axis":
        """The place after the last static axis."""
        return Axis("__end_static_axis__")


BATCH = Axis("defaultBatchAxis", is_ordered=False)
SEQUENCE = Axis("defaultDynamicAxis")
UNKNOWN = Axis("__unknown_dynamic_axes__")


def number_of(axis: Any) -> Any:
    """A static axis as a number; others as they are."""
    return axis.which if isinstance(axis, Axis) and isinstance(axis.which, int) else axis
