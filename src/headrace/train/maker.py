"""Tells a function of the progress from one that makes a scheduler of torch's, and calls the latter."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..errors import ConfigError

Made = LRScheduler | ReduceLROnPlateau
Maker = Callable[[Optimizer, int | None], Made] | Callable[[Optimizer], Made]

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_TAKEN = (
    "A function of (optimizer, total_steps), or of the optimizer alone, returns a torch scheduler; a function of the "
    "progress, from 0 to 1, returns a factor."
)


def check_maker(function: Any) -> None:
    """Raises on one of torch's classes that needs more than the optimizer."""
    kind, parameters = _class_of(function), _parameters(function)
    if kind is None or parameters is None or len(needed := _required(parameters)) < 2:
        return
    rest = ", ".join(f"{name}=..." for name in needed[1:])
    raise ConfigError(f"{kind.__name__} needs {', '.join(needed[1:])}. Use functools.partial({kind.__name__}, {rest}).")


def is_factor(function: Any) -> bool:
    """Whether a function takes the progress: it has one argument, and gives a number for 0."""
    parameters = _parameters(function)
    if parameters is None or _class_of(function) is not None or len(_required(parameters)) > 1:
        return False
    return isinstance(_at_0(function), Real | Tensor)  # if it fails, it may still make a scheduler of an optimizer


def _at_0(function: Any) -> Any:
    """What a function gives for the progress 0, or the error that it raises."""
    try:
        return function(0.0)
    except Exception as error:
        return error


def scheduler_of(make: Any, optimizer: Optimizer, total: int | None) -> Made:
    """The scheduler that a function makes of the optimizer and, where it takes that, of the total of steps."""
    by_place, by_name = _takes_total(make)
    try:
        made = make(optimizer, *[total][:by_place], **({"total_steps": total} if by_name else {}))
    except Exception as error:
        told = f"schedule= made no scheduler for {total} steps: {type(error).__name__}: {error}"
        if isinstance(first := _at_0(make), Exception):
            told = f"{told.rstrip('.')}. For the progress 0 it raised {type(first).__name__}: {first}"
        raise ConfigError(f"{told.rstrip('.')}. {_TAKEN}") from error
    if not isinstance(made, LRScheduler):
        raise ConfigError(f"schedule= made a {type(made).__name__}. {_TAKEN}")
    return made


def _takes_total(make: Any) -> tuple[bool, bool]:
    """Whether a function takes the total of steps: as its second argument, or by name, where it is `None` so far."""
    parameters = _parameters(make)
    if parameters is None or len(_required(parameters)) > 1:
        return True, False
    waiting = [p for p in parameters[1:] if p.default is None]
    if any(p.name == "total_steps" for p in waiting):
        return False, True
    return waiting[:1] == parameters[1:2] and bool(waiting) and waiting[0].kind in _BY_PLACE, False


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    """The parameters of a function; `None` where Python cannot tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _required(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """The names of the arguments that have to be given by position."""
    return [p.name for p in parameters if p.kind in _BY_PLACE and p.default is p.empty]


def _class_of(function: Any) -> type | None:
    """The class of torch's schedulers that this is, or of which it is a `partial`."""
    found = function.func if isinstance(function, partial) else function
    return found if isinstance(found, type) and issubclass(found, LRScheduler) else None
