"""Defaults of layers, for the length of a `with` block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .variables import Record

_stack: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


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


def get_default_override(function_scope: Any, **named: Any) -> Any:
    """The value of one argument: what was given, what a block around says, or the default."""
    ((name, value),) = named.items()
    if not isinstance(value, DefaultOverride):
        return value
    for scopes, options in reversed(_stack):
        if name in options and (not scopes or function_scope in scopes):
            return options[name]
    return value.value


@contextmanager
def default_options(**options: Any) -> Iterator[Record]:
    """Other defaults of all layers made in this block."""
    _stack.append(((), options))
    try:
        yield Record(**options)
    finally:
        _stack.pop()


@contextmanager
def default_options_for(scope: Any, **options: Any) -> Iterator[Record]:
    """Other defaults of some layers made in this block."""
    _stack.append((tuple(scope) if isinstance(scope, list | tuple) else (scope,), options))
    try:
        yield Record(**options)
    finally:
        _stack.pop()
