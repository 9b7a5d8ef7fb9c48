"""Finds out whether a pass can be replayed: whether everything that its Python code reads is on a short list."""

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
from .allowed import functions_in, where
from .state import PassState, UnclearError

_CHANGES = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME", "DELETE_SUBSCR"),
    *("IMPORT_NAME", "LOAD_BUILD_CLASS", "MATCH_CLASS", "CHECK_EXC_MATCH", "CHECK_EG_MATCH"),
}
_DOES = {
    "IMPORT_NAME": "imports",
    "LOAD_BUILD_CLASS": "makes a class",
    "MATCH_CLASS": "matches a class",
    "CHECK_EXC_MATCH": "catches an error",  # of which a recording knows nothing
    "CHECK_EG_MATCH": "catches an error",
}
_LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}


@dataclass
class Reads:
    """What the code of a function does beyond computing with its arguments, each with its line."""

    globals: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    """Global variables, each with the attributes that are read of it directly, as in `torch.nn.functional`."""
    attributes: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, int]] = field(default_factory=list)
    """What the code changes or imports, as text for the note."""


Code = tuple[types.CodeType, dict[str, Any]]
"""A function's code, and the global variables that it reads."""


class Proof:
    """Notes which functions run in a pass, and analyses them; `problem` says why the pass cannot be replayed.

    What the user's code reads is added to the `state`, or is a problem if it is not on the list. The functions of torch
    that run, and the functions they call, are added too, so that a replaced one is noticed.
    """

    def __init__(self, state: PassState) -> None:
        self.problem = state.problem
        self._state, self._collects = state, False
        self._ran: list[str] = []  # problems without a line of the user's
        self._users: dict[tuple[int, int], Code] = {}  # by id, since codes of two functions may be equal
        self._torchs: list[Code] = []
        self._known: set[tuple[int, int]] = set()  # trusted codes that have run

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
        codes = [code for code, _ in self._users.values()]
        nested = {id(each) for code in codes for each in code.co_consts if isinstance(each, types.CodeType)}
        for code, space in self._users.values():
            self._check_globals(code, space)
        for code, _ in self._users.values():  # once all classes are known
            self._check_attributes(code)
        for code, space in self._torchs:
            self._try(code, code.co_firstlineno, "", lambda c=code, s=space: self._keep_code(c, s))
        known = nested | {id(function.__code__) for function in self._state.functions}
        for code in codes:
            if id(code) not in known:
                self._find(code)
        for function in self._state.functions:
            if read := self._state.names & vars(function).keys():
                self._note(f"the attribute {min(read)!r} of a function, {where(function.__code__)}, may be read")
        for problem in self._ran:
            self._note(problem)

    def _see(self, frame: types.FrameType, event: str, function: Any) -> None:
        code, space = frame.f_code, frame.f_globals
        if event == "call":
            place = id(code), id(space)
            if place in self._known:
                return
            name = space.get("__name__", "")
            if not allowed.is_trusted(name):
                if _takes_turns(frame):
                    return
                self._users[place] = code, space
                if allowed.is_torch(name):
                    self._ran.append(f"code of {name} is run")
                return
            self._known.add(place)
            if allowed.is_torch(name) and not name.startswith("torch.utils._py"):  # which only records
                self._torchs.append((code, space))
            if name == "torch._tensor" and code.co_name in allowed.READS_MEMORY:
                self._read(code.co_name, frame.f_back or frame)
        elif event == "c_call" and (called := getattr(function, "__name__", "")) in allowed.READS_MEMORY:
            of_tensor = isinstance(getattr(function, "__self__", None), Tensor)
            ours = space.get("__name__", "").startswith("headrace.")
            if not ours and (of_tensor or called in allowed.READS_LENGTHS):
                self._read(called, frame)

    def _read(self, called: str, frame: types.FrameType) -> None:
        self._note(f"{called}() is called by {where(frame.f_code, frame.f_lineno)}")

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _find(self, code: types.CodeType) -> None:
        """Finds a function that ran though nothing that was read leads to it, as a callback of torch or headrace."""
        functions = [each for each in gc.get_referrers(code) if isinstance(each, types.FunctionType)]
        if not functions:
            self._note(f"{where(code)} is a function that cannot be found")
        for function in functions:
            self._try(code, code.co_firstlineno, "", lambda f=function: self._state.stays(f))

    def _check_globals(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Checks what a function of the user's reads and changes: all of it has to be on the list."""
        reads = reads_of(code)
        for what, line in reads.changes:
            self._note(f"{where(code, line)} {what}")
        for kind in self._state.kinds:
            for name, value in kind.__dict__.items():
                if any(each.__code__ is code for each in functions_in(value)):
                    self._try(code, code.co_firstlineno, "", lambda k=kind, n=name: self._state.of_class(k, n))
        for path, line in reads.globals:
            self._try(code, line, ".".join(path), lambda p=path: self._global(space, p))

    def _check_attributes(self, code: types.CodeType) -> None:
        """All attributes that a function of the user's reads have to be on the list."""
        reads = reads_of(code)
        for path, line in reads.globals:
            for name in path[1:]:
                if name in self._state.names:
                    self._try(code, line, ".".join(path), lambda n=name: self._state.attribute(n))
        for name, line in reads.attributes.items():
            self._try(code, line, f".{name}", lambda n=name: self._state.attribute(n))

    def _try(self, code: types.CodeType, line: int, what: str, look: Any) -> None:
        try:
            look()
        except UnclearError as kind:
            self._note(f"{where(code, line)} reads {f'{what}: ' if what else ''}{kind}")

    def _global(self, space: dict[str, Any], path: tuple[str, ...]) -> None:
        """Checks a global variable; it, and the modules through which it is reached, are compared from now on."""
        names: Mapping[str, Any] = space
        if path[0] not in space:
            if path[0] not in allowed.BUILTINS:
                raise UnclearError("it is not on the list of built-in functions")
            self._state.lacks(space, path[0])
            names = vars(builtins)
        for k, name in enumerate(path):
            if name not in names:
                raise UnclearError(f"{name!r} is not to be found")
            value = names[name]
            if not isinstance(value, types.ModuleType):
                if names is vars(builtins):
                    self._state.keeps(names, name)
                else:
                    self._state.value(names, name)
                for attribute in path[k + 1 :]:
                    self._state.attribute(attribute)
                return
            self._state.keeps(names, name)
            names = vars(value)
        raise UnclearError("a module as a value")

    def _keep_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Compares a function of torch, and the functions that it calls, from now on."""
        name = code.co_name
        for kind in [*self._state.kinds, Tensor]:
            if any(each.__code__ is code for each in functions_in(kind.__dict__.get(name))):
                self._state.of_class(kind, name)
        for function in functions_in(space.get(name)):
            if function.__code__ is code:
                self._state.keeps(space, name)
                self._state.stays(function)
        reads = reads_of(code)
        for path, _ in reads.globals:
            names: Mapping[str, Any] = space
            for name in path:
                if name not in names:
                    self._state.lacks(names, name)
                    break
                self._state.keeps(names, name)
                if isinstance(names[name], types.FunctionType):
                    self._state.stays(names[name])
                if not isinstance(names[name], types.ModuleType):
                    break
                names = vars(names[name])
        for name, line in reads.attributes.items():
            self._try(code, line, f".{name}", lambda n=name: self._state.attribute_of_torch(n))


def _takes_turns(frame: types.FrameType | None) -> bool:
    """Whether a function is called by an engine, while the library itself waits for other workers."""
    is_within = False
    while frame is not None and not (name := frame.f_globals.get("__name__", "")).startswith("headrace.step."):
        is_within = is_within or name.startswith("headrace.engines.")
        if is_within and not allowed.is_trusted(name):
            return False  # code of the user's waits for them
        frame = frame.f_back
    return is_within


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
            found.changes.append((" ".join([_DOES.get(name, "changes"), *([repr(what)] if what else [])]), line))
        elif name == "POP_TOP" and k and instructions[k - 1].opname == "PUSH_EXC_INFO":  # by `except:` alone
            found.changes.append(("catches an error", line))
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
