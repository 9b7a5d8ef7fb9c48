"""What may be set on a loss, also between two updates: it is checked then, and in effect from the next update on."""

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError

Check = Callable[[str, Any], Any]
"""From the name of a setting and a value to the value as it is kept; raises on one that cannot work."""


class _Setting:
    """Checks what an attribute is set to. It is read from the instance as any other: there is no `__get__`."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, loss: Any, value: Any) -> None:
        loss.__dict__[self._name] = self._check(self._name, value)


def setting(check: Check) -> Any:
    """An attribute that is checked by this whenever it is set."""
    return _Setting(check)


def one_of(*choices: str) -> Check:
    """One of these words."""
    listed = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"

    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise ConfigError(f"{name}= is {listed}, got {value!r}.")
        return value

    return check


def number(wanted: str, fits: Callable[[float], bool] = math.isfinite) -> Check:
    """A number that `fits`, which errors call `wanted`."""

    def check(name: str, value: Any) -> Any:
        try:
            good = fits(float(value))
        except (TypeError, ValueError, RuntimeError):
            good = False
        if not good:
            raise ConfigError(f"{name}= is {wanted}, got {value!r}.")
        return value

    return check


def label(name: str, value: Any) -> Any:
    """A label, or none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
        raise ConfigError(f"{name}= is a whole number or None, got {value!r}.")
    return value


def class_weights(name: str, weights: Sequence[float] | Tensor | None) -> Tensor | None:
    """A number for each class, or none."""
    if weights is None:
        return None
    tensor = torch.as_tensor(weights)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    if tensor.dim() != 1 or not bool(((tensor >= 0) & tensor.isfinite()).all()):
        raise ConfigError(f"{name}= are non-negative numbers, one per class, got {weights!r}.")
    if not bool(tensor.any()):
        raise ConfigError(f"{name}= are all 0, so that no row counts. Give a number above 0 to what is to be learnt.")
    return tensor


def positive_weights(name: str, weights: Sequence[float] | Tensor | None) -> Tensor | None:
    """Non-negative numbers of any shape, or none."""
    if weights is None:
        return None
    tensor = torch.as_tensor(weights)
    if not bool(((tensor >= 0) & tensor.isfinite()).all()):
        raise ConfigError(f"{name}= are non-negative numbers, got {weights!r}.")
    return tensor
