"""Whole numbers, as dialects take them."""

from numbers import Integral
from typing import Any


def as_count(value: Any, least: int = 1) -> int | None:
    """A whole number that is no less than this; `None` of anything else."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole and int(value) >= least else None
