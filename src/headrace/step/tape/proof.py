"""Finds out whether a pass does the same again: whether all that its Python code reads is on a short list."""

import builtins
import dis
import gc
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

from . import allowed
from .state import PassState, UnclearError, where

_CHANGES = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME", "DELETE_SUBSCR"),
    *("IMPORT_NAME", "LOAD_BUILD_CLASS", "MATCH_CLASS"),
}
_LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}


@dataclass
class Reads:
    """What the code of a function does beyond computing with its arguments, each with its line."""

    globals: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    """Global variables, with the attributes that are read of each at once."""
    attributes: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, int]] = field(default_factory=list)
    """What it changes or imports."""


class Proof:
    """Watches which functions run while it is entered; `problem` then says what makes a pass differ from the next.

    What code of the user's reads is added to the `state`, or is a problem if it is not on the list. Of torch's
    code, the functions that run and what they call are added, so that a replaced one is noticed.
    """

    def __init__(self, state: PassState) -> None:
        self.problem = state.problem
        self._state, self._collects = state, False
        self._users: dict[types.CodeType, dict[str, Any]] = {}
        self._torchs: dict[types.CodeType, dict[str, Any]] = {}

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
        inner = {each for code in self._users for each in code.co_consts if isinstance(each, types.CodeType)}
        for code, space in self._users.items():
            self._check_code(code, space, code in inner)
        for code, space in self._torchs.items():
            self._keep_code(code, space)

    def _see(self, frame: types.FrameType, event: str, function: Any) -> None:
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if event == "call":
            if code in self._users or code in self._torchs:
                return
            if not allowed.is_trusted(name):
                self._users[code] = frame.f_globals
            elif allowed.is_torch(name):
                self._torchs[code] = frame.f_globals
            if allowed.is_torch(name) and not allowed.is_trusted(name):
                self._note(f"code of {name} is run")
        elif event == "c_call":
            called = getattr(function, "__name__", "")
            if called in allowed.READS_LENGTHS:
                self._note(f"{called}() makes sizes of numbers in a tensor")
            ours = name.startswith("headrace.")
            if not ours and called in allowed.READS_MEMORY and isinstance(getattr(function, "__self__", None), Tensor):
                self._note(f"{called}() of a tensor is called")

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _check_code(self, code: types.CodeType, space: dict[str, Any], nested: bool) -> None:
        """A function of the user's: all that it reads has to be on the list."""
        reads = reads_of(code)
        for what, line in reads.changes:
            self._note(f"{where(code, line)} {what}")
        functions = self._functions_of(code)
        if not functions and not nested:
            self._note(f"{where(code)} is a function that cannot be found")
        for function in functions:
            self._try(code, code.co_firstlineno, "a closure or a default", lambda f=function: self._state.stays(f))
        for path, line in reads.globals:
            self._try(code, line, ".".join(path), lambda p=path: self._global(space, p))
        for name, line in reads.attributes.items():
            self._try(code, line, f".{name}", lambda n=name: self._state.attribute(n))

    def _try(self, code: types.CodeType, line: int, what: str, look: Any) -> None:
        try:
            look()
        except UnclearError as kind:
            self._note(f"{where(code, line)} reads {what}: {kind}")

    def _global(self, space: dict[str, Any], path: tuple[str, ...]) -> None:
        """A global variable stays what it is, and so do the modules through which a function is reached."""
        held: Mapping[str, Any] = space
        if path[0] not in space:
            if path[0] not in allowed.BUILTINS:
                raise UnclearError("it is not on the list of built-in functions")
            held = vars(builtins)
        for k, name in enumerate(path):
            if name not in held:
                raise UnclearError(f"{name!r} is not to be found")
            value = held[name]
            if not isinstance(value, types.ModuleType):
                if held is vars(builtins):
                    self._state.keeps(held, name)
                else:
                    self._state.value(held, name)
                for attribute in path[k + 1 :]:
                    self._state.attribute(attribute)
                return
            self._state.keeps(held, name)
            held = vars(value)
        raise UnclearError("a module as a value")

    def _keep_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """A function of torch's stays the one that it is, with what it calls."""
        for kind in [*self._state.kinds, Tensor]:
            if _code(kind.__dict__.get(code.co_name)) is code:
                self._state.of_class(kind, code.co_name)
        if _code(space.get(code.co_name)) is code:
            self._state.keeps(space, code.co_name)
            self._state.stays(space[code.co_name])
        reads = reads_of(code)
        for path, _ in reads.globals:
            held: Mapping[str, Any] = space
            for name in path:
                if name not in held:
                    break
                self._state.keeps(held, name)
                if isinstance(held[name], types.FunctionType):
                    self._state.stays(held[name])
                if not isinstance(held[name], types.ModuleType):
                    break
                held = vars(held[name])
        for name, line in reads.attributes.items():
            self._try(code, line, f".{name}", lambda n=name: self._state.attribute_of_torch(n))

    def _functions_of(self, code: types.CodeType) -> list[types.FunctionType]:
        """The functions that have this code: one, or all those that were made in a function."""
        for held in () if code.co_freevars else (self._users[code], *map(vars, self._state.kinds)):
            found = held.get(code.co_name)
            if isinstance(found, types.FunctionType) and found.__code__ is code:
                return [found]
        return [each for each in gc.get_referrers(code) if isinstance(each, types.FunctionType)]


@lru_cache(2048)
def reads_of(code: types.CodeType) -> Reads:
    """What the code of a function reads and changes."""
    found = Reads()
    line = code.co_firstlineno
    instructions = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    consumed = 0
    for k, step in enumerate(instructions):
        line = (step.positions.lineno if step.positions else None) or line
        name, what = step.opname, step.argval
        if name in _CHANGES:
            does = {"IMPORT_NAME": "imports", "LOAD_BUILD_CLASS": "makes a class", "MATCH_CLASS": "matches a class"}
            found.changes.append(
                (f"{does.get(name, 'changes')} {what if what is not None else ''!r}".strip(" '"), line)
            )
        elif name == "STORE_DEREF" and what in code.co_freevars:
            found.changes.append((f"changes {what!r}", line))
        elif name in _LOOKS_UP:
            path = (what, *_attributes(instructions[k + 1 :]))
            found.globals.append((path, line))
            consumed = k + len(path)
        elif name in _ATTRIBUTES and k >= consumed:
            found.attributes.setdefault(what, line)
    return found


def _attributes(instructions: list[dis.Instruction]) -> Iterator[str]:
    """The attributes that are read of what was looked up just before."""
    for step in instructions:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield step.argval


def _code(value: Any) -> types.CodeType | None:
    return value.__code__ if isinstance(value, types.FunctionType) else None
