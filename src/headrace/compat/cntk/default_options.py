"""Defaults of layers, for the length of a `with` block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .variables import Record

_stack: list[dict[str, Any]] = []


class DefaultOverride:
    """A default that a `with default_options(...)` block may replace."""

    def __init__(self, value: Any) -> None:
        self.value = value


def default_override_or(value: Any) -> DefaultOverride:
    """A default that may be replaced."""
    return value if isinstance(value, DefaultOverride) else DefaultOverride(value)


def is_default_override(value: Any) -> bool:
    """Whether a value is a default that nothing was given for."""
    return isinstance(value, DefaultOverride)


def get_default_override(**named: Any) -> Any:
    """The value of one argument: what was given, what a block around says, or the default."""
    ((name, value),) = named.items()
    if not isinstance(value, DefaultOverride):
        return value
    return next((options[name] for options in reversed(_stack) if name in options), value.value)


@contextmanager
def default_options(**options: Any) -> Iterator[Record]:
    """Other defaults of all layers made in this block."""
    _stack.append(options)
    try:
        yield Record(**options)
    finally:
        _stack.pop()
