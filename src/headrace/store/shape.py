"""What saved documents have to look like: checked as they are read, before anything uses what is in them.

A shape is a `Kind` of value; a list of one shape, for a list or a tuple of such values; a dict of shapes, for a dict
that has at least these keys; or what `maybe` and `each` make of other shapes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import CorruptError

Shape = Any
_LARGEST = 1 << 63  # no count comes that far
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Kind:
    """Values of one kind, and how a message calls one of them."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class maybe:  # noqa: N801 - it is written as a function
    """The shape of a value that may be `None`, or of a key that may be missing."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class each:  # noqa: N801
    """A dict whose values all have this shape, under any names."""

    shape: Shape


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


ANY = Kind("anything", lambda value: True)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind("a whole number of 0 or more", lambda value: _is_whole(value) and value >= 0)
ROWS = Kind('a number of rows or "auto"', lambda value: value == "auto" or (COUNT.holds(value) and value > 0))
NUMBER = Kind("a number", lambda value: isinstance(value, float) or _is_whole(value))
AMOUNT = Kind("a number of 0 or more", lambda value: NUMBER.holds(value) and 0 <= value < _LARGEST)
SCALAR = Kind("a number", lambda value: NUMBER.holds(value) or (isinstance(value, Tensor) and value.numel() == 1))
TEXT = Kind("text", lambda value: isinstance(value, str))
DICT = Kind("a dict", lambda value: isinstance(value, Mapping))
TENSOR = Kind("a tensor", lambda value: isinstance(value, Tensor))


def like(example: Any) -> Shape:
    """The shape of a value that is of the same kind as an example; of `None` nothing is known."""
    if isinstance(example, Mapping):
        return DICT
    if isinstance(example, list | tuple):
        return [like(example[0])] if example else [ANY]
    return maybe(next((kind for kind in (FLAG, SCALAR, TEXT) if kind.holds(example)), ANY))


def check(value: Any, shape: Shape, at: str) -> Any:
    """The value, if it has this shape; else an error that names the place, which begins with `at`."""
    if isinstance(shape, maybe):
        return value if value is None else check(value, shape.shape, at)
    if isinstance(shape, Kind):
        _expect(shape.holds(value), shape.name, value, at)
    elif isinstance(shape, list):
        _expect(isinstance(value, list | tuple), "a list", value, at)
        for number, item in enumerate(value):
            check(item, shape[0], f"{at}/{number}")
    else:
        _expect(isinstance(value, Mapping) and all(isinstance(key, str) for key in value), "a dict", value, at)
        inside = dict.fromkeys(value, shape.shape) if isinstance(shape, each) else shape
        for key, wanted in inside.items():
            if key in value:
                check(value[key], wanted, f"{at}/{_shown(key)}")
            elif not isinstance(wanted, maybe):
                raise CorruptError(f"{at} has no {key!r}.")
    return value


def _expect(holds: bool, what: str, value: Any, at: str) -> None:
    if not holds:
        plain = value is None or isinstance(value, str | bool | int | float)
        raise CorruptError(f"{at} is not {what}: {_shown(repr(value)) if plain else f'a {type(value).__name__}'}.")


def _shown(text: str) -> str:
    """A name or a value as messages show it, short and on one line."""
    return (text if text.isprintable() else ascii(text))[:_SHOWN]
