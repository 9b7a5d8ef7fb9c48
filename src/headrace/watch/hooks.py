"""A callback of functions, for what is said in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, unknown
from .callback import HOOKS, Callback


class Lambda(Callback):
    """Calls functions at hooks: `Lambda(on_epoch_end=lambda info, row: print(row["train/loss"]))`."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        for hook, function in functions.items():
            if hook not in HOOKS:
                raise ConfigError(unknown("hook", hook, HOOKS))
            if not callable(function):
                raise ConfigError(f"Lambda: {hook}= is a function, got a {type(function).__name__}.")
            setattr(self, hook, function)
