"""Finds out whether a pass does the same again: whether Python reads nothing in it that may change unnoticed."""

import builtins
import dis
import functools
import gc
import math
import operator
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from .state import PassState, UnclearError, is_plain

_TRUSTED = {
    *("torch", "headrace", "contextlib", "functools", "typing", "enum", "abc", "types", "collections", "weakref"),
    "importlib",
}
_NOT_TRUSTED = {"torch.random", "torch.cuda.random", "torch.jit"}
_PURE = {math, operator, sys.modules["_operator"]}
_OPEN = {
    *("eval", "exec", "open", "input", "print", "globals", "locals", "vars", "setattr", "delattr", "__import__", "id"),
}
_LEAVES = {
    *("item", "tolist", "numpy", "__array__", "data_ptr", "storage", "untyped_storage", "__dlpack__", "__reduce_ex__"),
    *("backward", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad"),
    *("set_", "resize_", "share_memory_", "record_stream", "manual_seed", "seed", "initial_seed"),
    *("set_state", "get_state", "set_rng_state", "get_rng_state"),
}
"""What a tensor, or torch, does that is no operation on tensors."""
_OF_THE_BATCH = {"cursor", "ends_epoch", "total", "samples", "share", "whole"}
_STORES = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "DELETE_SUBSCR"}
_LOOKS_UP = {
    *("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"),
    *("LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"),  # from Python 3.12 on
}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}


class Proof:
    """Watches which functions run while it is entered; `problem` then says what makes a pass differ from the next.

    Code of torch and of this library is known. Any other code may compute with what it is given and read what can be
    compared before every replay, which is added to the `state`; it may change nothing.
    """

    def __init__(self, state: PassState) -> None:
        self.problem = ""
        self._state, self._collects = state, False
        self._spaces: dict[types.CodeType, dict[str, Any]] = {}
        self._calls: set[Any] = set()  # functions that are not written in Python, as they have been looked at
        self._names = {"fn"}  # which a term of ours reads

    def __enter__(self) -> "Proof":
        if sys.getprofile() is not None:
            self.problem = "a profiler looks on"
        else:
            self._collects = gc.isenabled()
            gc.disable()  # what it calls belongs to no pass
            sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
        if self._collects:
            gc.enable()

    def conclude(self) -> None:
        """Looks at what has run."""
        if self.problem:
            return
        try:
            for code, space in self._spaces.items():
                self._check_code(code, space)
            for name in self._names & self._state.unclear.keys() if "getattr" not in self._names else ():
                raise UnclearError(f"reads the attribute {name!r}, a {self._state.unclear[name]}")
            if "getattr" in self._names and self._state.unclear:
                raise UnclearError(f"may read the attribute {next(iter(self._state.unclear))!r}")
        except UnclearError as problem:
            self.problem = str(problem)

    def _see(self, frame: types.FrameType, event: str, function: Any) -> None:
        code = frame.f_code
        if event == "call":
            if code.co_name in _LEAVES and not self.problem and frame.f_globals.get("__name__") == "torch._tensor":
                self.problem = f"{code.co_name}() of a tensor is called"
            if code not in self._spaces and not _is_trusted(code, frame.f_globals):
                self._spaces[code] = frame.f_globals
        elif event == "c_call" and code in self._spaces and not self.problem:
            kind = function.__name__, type(getattr(function, "__self__", None))
            if kind not in self._calls:
                self._calls.add(kind)
                try:
                    _check_built_in(function, code)
                except UnclearError as problem:
                    self.problem = str(problem)

    def _check_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Raises if what a function does, or reads, is not clear."""
        instructions = list(dis.get_instructions(code))
        functions = self._functions_of(code)
        for function in functions:
            try:
                if not is_plain(function.__defaults__) or function.__kwdefaults__:
                    self._state.add(functools.partial(_defaults, function))
            except UnclearError as kind:
                raise UnclearError(f"{_where(code)} has an argument whose default is a {kind}") from None
        cells = [dict(zip(code.co_freevars, f.__closure__ or (), strict=False)) for f in functions]
        line = code.co_firstlineno
        for k, step in enumerate(instructions):
            line = step.positions.lineno or line if step.positions else line
            name = step.opname
            if name in _STORES and not (name == "STORE_ATTR" and code.co_name in ("__init__", "__post_init__")):
                raise UnclearError(f"{_where(code, line)} changes {step.argval!r}")
            if name == "STORE_DEREF" and step.argval in code.co_freevars:
                raise UnclearError(f"{_where(code, line)} changes {step.argval!r}")
            if name == "IMPORT_NAME" and step.argval.partition(".")[0] not in ("torch", "math", "headrace"):
                raise UnclearError(f"{_where(code, line)} imports {step.argval!r}")
            if name in _ATTRIBUTES:
                if step.argval in _OF_THE_BATCH:
                    raise UnclearError(f"{_where(code, line)} reads {step.argval!r}, which may be the batch's")
                self._names.add(step.argval)
            if name in _LOOKS_UP:
                path = [step.argval, *_path(instructions[k + 1 :])]
                if step.argval in code.co_freevars:
                    for space_of_one in cells:
                        self._check_value(code, line, path, space_of_one)
                elif step.argval not in code.co_cellvars:
                    self._check_value(code, line, path, space)

    def _check_value(self, code: types.CodeType, line: int, path: list[str], space: Mapping[str, Any]) -> None:
        """A variable from outside of a function, and what is read of it where it is a module or a class."""
        here = space if path[0] in space else vars(builtins)
        if path[0] == "getattr":
            self._names.add("getattr")
        if here is not space and path[0] in _OPEN:
            raise UnclearError(f"{_where(code, line)} calls {path[0]}()")
        if path[0] not in here:
            raise UnclearError(f"{_where(code, line)} reads {path[0]!r}, which is not to be found")
        value = _content(here[path[0]])
        for k, name in enumerate(path[1:]):
            if not isinstance(value, types.ModuleType | type):
                path = path[: k + 1]
                break
            value = getattr(value, name, None)
        what = ".".join(path)
        if isinstance(value, types.ModuleType) and not _is_of_torch(value.__name__) and value not in _PURE:
            raise UnclearError(f"{_where(code, line)} uses the module {what}")
        if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
            if isinstance(value, types.BuiltinFunctionType):
                _check_built_in(value, code)
            if here is space:
                self._state.keeps(here, path[0])
            if not isinstance(here[path[0]], types.CellType) or isinstance(value, type):
                return
        elif callable(value) and _is_of_torch(type(value).__module__) and not isinstance(value, nn.Module):
            return
        try:
            self._state.add(functools.partial(_read, here, path))
        except UnclearError as kind:
            raise UnclearError(f"{_where(code, line)} reads {what}, a {kind}") from None

    def _functions_of(self, code: types.CodeType) -> list[types.FunctionType]:
        """The functions that have this code: one, or all those that were made in a function."""
        space = self._spaces[code]
        kinds = [each for each in space.values() if isinstance(each, type)]
        kinds += [
            kind for module in self._state.modules for kind in type(module).__mro__ if not _is_of_torch(kind.__module__)
        ]
        for held in () if code.co_freevars else (space, *map(vars, kinds)):
            found = held.get(code.co_name)
            if isinstance(found, types.FunctionType) and found.__code__ is code:
                return [found]
        return [each for each in gc.get_referrers(code) if isinstance(each, types.FunctionType)]


def _is_trusted(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether this is torch's code, or ours, or of what they are made with."""
    home = space.get("__name__", "")
    return home.partition(".")[0] in _TRUSTED and home not in _NOT_TRUSTED


def _is_of_torch(name: str | None) -> bool:
    return (name or "").partition(".")[0] == "torch"


def _check_built_in(function: Any, code: types.CodeType) -> None:
    """Raises on a function that is not written in Python, unless it is known to give the same again."""
    name, owner = getattr(function, "__name__", str(function)), getattr(function, "__self__", None)
    if owner is builtins or (isinstance(function, types.BuiltinFunctionType) and function.__module__ == "builtins"):
        if name in _OPEN:
            raise UnclearError(f"{_where(code)} calls {name}()")
        return
    homes = [function, type(function), owner, type(owner)]
    of_torch = any(_is_of_torch(getattr(each, "__module__", None)) for each in homes)
    if isinstance(owner, types.ModuleType):
        of_torch, known = _is_of_torch(owner.__name__), owner in _PURE
    else:
        known = isinstance(owner, list | dict | tuple | str | set | int | float | bytes | range | slice | super)
    if name in _LEAVES or not (known or of_torch or function in (range, zip)):
        raise UnclearError(f"{_where(code)} calls {name}()")


def _path(instructions: list[dis.Instruction]) -> Iterator[str]:
    """The attributes that are read of what was looked up just before."""
    for step in instructions:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield step.argval


def _defaults(function: types.FunctionType) -> Any:
    return function.__defaults__, function.__kwdefaults__


def _content(value: Any) -> Any:
    """A value, or what is in it if it is a cell of a closure."""
    try:
        return value.cell_contents if isinstance(value, types.CellType) else value
    except ValueError:
        return None


def _read(space: Mapping[str, Any], path: list[str]) -> Any:
    value = _content(space[path[0]])
    for name in path[1:]:
        value = getattr(value, name)
    return value


def _where(code: types.CodeType, line: int = 0) -> str:
    """A function, and where it is."""
    name = getattr(code, "co_qualname", code.co_name)
    return f"{name} ({os.path.basename(code.co_filename)}:{line or code.co_firstlineno})"
