"""The settings of a training as plain values: what a resumed run compares, and a person reads."""

import ast
import hashlib
import inspect
import json
import re
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer

from ..arena.own_optimizers import kind_of
from ..length import Length
from ..loss.base import Loss, Sum
from ..workers.synchronous import Synchronous

SETTINGS = (
    *("loss", "batch_size", "microbatch", "clip_norm", "clip_value", "precision", "schedule", "seed", "order"),
    *("inputs", "target", "deterministic", "nonfinite", "strategy", "augment"),
)
"""The arguments of a trainer that a run is resumed with."""
OF_THE_MOMENT = ("comm", "started")
"""What a strategy holds that is no setting."""
_STARTED = "__mp_main__"  # what multiprocessing calls the script in a process that it has started
LONGEST = 64  # elements of a tensor that are written out
LONGEST_TEXT = 120  # characters of what a function holds that are written out
MOST_ITEMS = 10_000  # of a container whose items are compared
CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
Config = dict[str, Any]


def of_settings(given: Mapping[str, Any]) -> Config:
    """The arguments of a trainer that a resumed run has to repeat."""
    strategy = (given["strategy"] or Synchronous()).setting  # one worker or several, it is the same
    return {name: plain(strategy if name == "strategy" else given[name]) for name in SETTINGS}


def of_optimizers(optimizers: Mapping[str, Optimizer], every: Mapping[str, int] | None = None) -> Config:
    """Kind and hyperparameters of every optimizer, as they were given: a schedule may have moved the rate since.

    `every`: at every which step some of them are used.
    """
    found: dict[str, Config] = {}
    for key, optimizer in optimizers.items():
        groups = of_groups({key: optimizer})
        for group, given in zip(groups, optimizer.param_groups, strict=True):
            if "initial_lr" in given:
                group["lr"] = plain(given["initial_lr"])
        found[key] = {"kind": kind_of(optimizer), "groups": groups}
        if every and key in every:
            found[key]["every"] = every[key]
    return found.get("", found)


def of_groups(optimizers: Mapping[str, Optimizer]) -> list[Config]:
    """What all groups of optimizers are set to now."""
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    hidden = ("params", "initial_lr", "last_lr")
    return [{name: plain(value) for name, value in group.items() if name not in hidden} for group in groups]


def of_limits(limits: Sequence[Length]) -> Config:
    return {limit.unit: plain(limit.count) for limit in limits}


def plain(value: Any, depth: int = 4, trained: bool = True) -> Any:
    """A value as JSON can show it.

    An object shows its kind and its public attributes. A function shows its name, and the values that it holds: of the
    variables around it, its defaults, the object of a method. A lambda, which has no name, shows its text. The code of
    other functions, private attributes and global variables are not shown, and so never compared.

    `trained`: whether a tensor that is trained shows its values, or only its kind.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, bytes | complex | range | slice | Decimal | Fraction):
        return repr(value)
    if isinstance(value, Length | torch.dtype | torch.device | Enum):
        return str(value)
    if isinstance(value, Tensor | np.ndarray):
        is_trained = isinstance(value, Tensor) and value.requires_grad
        return type(value).__name__ if is_trained and not trained else _tensor(torch.as_tensor(value).detach().cpu())
    if isinstance(value, FunctionType | MethodType):
        return _by_one_name(_function(value, depth))
    if isinstance(value, type | BuiltinFunctionType):
        return _by_one_name(f"{value.__module__}.{value.__qualname__}")
    if isinstance(value, CONTAINERS) and len(value) > MOST_ITEMS:
        return f"a {type(value).__name__} of {len(value)} items"
    if isinstance(value, (partial, *CONTAINERS)) and not depth:
        return "..."
    inner = depth - (not _is_of_losses(value))
    if isinstance(value, partial):
        return {"kind": "partial", **plain({"of": value.func, "with": [*value.args], **value.keywords}, depth, trained)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, inner, trained) for key, item in value.items()}
    if isinstance(value, CONTAINERS):
        items = [plain(item, inner, trained) for item in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    values = {n: v for n, v in _attributes(value).items() if depth and not n.startswith("_") and n not in OF_THE_MOMENT}
    return {"kind": type(value).__name__, **{name: plain(item, inner, trained) for name, item in values.items()}}


def _is_of_losses(value: Any) -> bool:
    """Whether it is a term, a sum, or what holds these: what they hold is looked at as deeply as if it were alone."""
    if isinstance(value, Loss | Sum):
        return type(value).__module__.startswith("headrace.")
    held = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return any(isinstance(item, Loss | Sum) for item in held)


def differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], at: str = "", between: tuple[str, str] = ("in the run", "now")
) -> list[str]:
    """Every setting that is not what it was, with both values; `between` says whose they are."""
    found = []
    for key in [*saved, *(key for key in now if key not in saved)]:
        name, before, after = f"{at}{key}", saved.get(key), now.get(key)
        if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            before, after = dict(enumerate(before)), dict(enumerate(after))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{name}.", between)
        elif _by_one_name(before) != _by_one_name(after):
            found.append(f"{name}: {before!r} {between[0]}, {after!r} {between[1]}")
    return found


def _by_one_name(value: Any) -> Any:
    """The name of a function or a class, which may have been written under another one.

    The script at hand is imported under another name by the processes that it starts, and a name of headrace counts
    without the module that it happens to be in.
    """
    if not isinstance(value, str):
        return value
    return re.sub(rf"(?<![\w.]){_STARTED}\.", "__main__.", re.sub(r"(?<![\w.])headrace\.(\w+\.)+", "headrace.", value))


def _function(function: Any, depth: int) -> str:
    """The name of a function, the text of a lambda, and the values that it holds."""
    name = f"{function.__module__}.{function.__qualname__}"
    if function.__name__ == "<lambda>":
        name += f" {_shortened(_lambda_text(function.__code__))}"
    values = _values_of(function) if depth else {}
    shown = {key: json.dumps(_shown_value(value, depth - 1), sort_keys=True) for key, value in values.items()}
    return name + (f"({', '.join(f'{key}={_shortened(text)}' for key, text in shown.items())})" if shown else "")


def _shown_value(value: Any, depth: int) -> Any:
    """A value that a function holds; of a trained tensor only the kind, since its values differ when a run resumes."""
    try:
        return plain(value, depth, trained=False)
    except (TypeError, ValueError, RuntimeError):  # an array of objects, a sparse tensor
        return type(value).__name__


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:40]}... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _tensor(value: Tensor) -> Any:
    if value.numel() <= LONGEST:
        return value.tolist()
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {digest}"


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object; of a module, the losses in it, and what is neither its state nor a part of it. All
    parts count where nothing is trained."""
    values = {**getattr(value, "__dict__", {})}
    for kind in type(value).__mro__:
        values |= {name: getattr(value, name) for name in getattr(kind, "__slots__", ()) if hasattr(value, name)}
    if isinstance(value, torch.nn.Module):
        whole = next(value.parameters(), None) is None  # a loss of several, and no model
        losses = [(name, part) for name, part in value.named_children() if whole or isinstance(part, _Loss)]
        buffers = value.named_buffers() if isinstance(value, _Loss) else ()  # class weights
        return {name: item for name, item in [*values.items(), *losses, *buffers] if name != "training"}
    return values


def _lambda_text(code: CodeType) -> str:
    """A lambda as Python would write it; without a source, the names and constants in it.

    Bytecode would differ between versions of Python.
    """
    try:
        nodes = [*ast.walk(ast.parse("".join(inspect.findsource(code)[0])))]
    except (OSError, SyntaxError, ValueError):
        nodes = []
    found = [node for node in nodes if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    if len(found) > 1:  # on one line: the innermost around this code, which begins last
        places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
        found = [node for node in found if places and _spans(node.body, min(places)) and _spans(node.body, max(places))]
    if not found:
        return repr((code.co_varnames, code.co_names, _constants(code)))
    return ast.unparse(max(found, key=lambda node: node.col_offset))


def _values_of(function: FunctionType | MethodType) -> dict[str, Any]:
    """The values that a function holds by name: the variables around it, its defaults, and the object of a method."""
    values: dict[str, Any] = {}
    inner: Any = function
    if isinstance(inner, MethodType):
        values["self"], inner = inner.__self__, inner.__func__
    if not isinstance(inner, FunctionType):
        return values
    code = inner.__code__
    if (inner.__module__ or "").partition(".")[0] != "torch":  # whose functions may get arguments in another version
        arguments, defaults = code.co_varnames[: code.co_argcount], inner.__defaults__ or ()
        values |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
        values |= inner.__kwdefaults__ or {}
    for name, cell in zip(code.co_freevars, inner.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    read = {name for each in _codes(code) for name in each.co_names}
    return {
        name: {key: item for key, item in vars(value).items() if key in read} if type(value) in _ARGUMENTS else value
        for name, value in values.items()
    }


_ARGUMENTS = Namespace, SimpleNamespace
"""What holds the arguments of a script, of which a function reads a few: the others are no settings of its own."""


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _spans(node: ast.expr, place: tuple[int, int]) -> bool:
    return (node.lineno, node.col_offset) <= place < (node.end_lineno or 0, node.end_col_offset or 0)


def _constants(code: CodeType) -> list[Any]:
    """What is written in the code: numbers and strings, also in tuples and sets, and in functions within it."""
    found = [constant for constant in code.co_consts if constant not in (None, ...)]
    return [
        _constants(c) if isinstance(c, CodeType) else sorted(c, key=repr) if isinstance(c, frozenset) else c
        for c in found
    ]
