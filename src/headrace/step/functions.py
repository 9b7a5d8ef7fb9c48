"""Reads functions so that two of them can be compared: the text of a lambda, and the values that a function holds."""

import ast
import inspect
from argparse import Namespace
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any


def lambda_text(code: CodeType) -> str:
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


def values_held(function: FunctionType | MethodType) -> dict[str, Any]:
    """The values that a function holds by name: the variables around it, its defaults, and the object of a method."""
    held: dict[str, Any] = {}
    inner: Any = function
    if isinstance(inner, MethodType):
        held["self"], inner = inner.__self__, inner.__func__
    if not isinstance(inner, FunctionType):
        return held
    code = inner.__code__
    if (inner.__module__ or "").partition(".")[0] != "torch":  # whose functions may get arguments in another version
        arguments, defaults = code.co_varnames[: code.co_argcount], inner.__defaults__ or ()
        held |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
        held |= inner.__kwdefaults__ or {}
    for name, cell in zip(code.co_freevars, inner.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    read = {name for each in _codes(code) for name in each.co_names}
    return {
        name: {key: item for key, item in vars(value).items() if key in read} if type(value) in _ARGUMENTS else value
        for name, value in held.items()
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
