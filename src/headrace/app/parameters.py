"""What a function takes: its parameters with their types and defaults, and what its docstring says of each."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError

_LOOSE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a recipe or of a command."""

    name: str
    kind: Any = None
    """Its type; `None` if it has none."""
    default: Any = None
    """`None` where there is none."""
    required: bool = False
    place: bool = False
    """Whether a command takes it by its place, without a flag."""
    line: int = 1
    """Where it stands in its file."""

    @property
    def type(self) -> str:
        """Its type as help says it: "float", "a|b", "int or all"."""
        return "" if self.kind is None else spelled(self.kind)

    @property
    def switch(self) -> bool:
        """Whether it is true or false."""
        return self.kind is bool

    @property
    def repeated(self) -> bool:
        """Whether a command takes several."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> list[str]:
        """The words that it may be, if its type lists some."""
        parts = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        return [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]


def parameters_of(function: Callable[..., Any], *, places: bool = False) -> dict[str, Parameter]:
    """The parameters of a function by name; all are options, unless those have `places` that are not keywords."""
    lines, types = _lines(function), _types(function)
    return {
        name: Parameter(
            name,
            types.get(name),
            None if given.default is given.empty else given.default,
            given.default is given.empty,
            places and given.kind is not given.KEYWORD_ONLY,
            lines.get(name, 1),
        )
        for name, given in inspect.signature(function).parameters.items()
    }


def spelled(kind: Any) -> str:
    """A type in words: "float", "a|b" for literals, "int or all" for a choice; that it may be `None` is left out."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        return f"{spelled(get_args(kind)[0])}, one or more"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(spelled(each) for each in get_args(kind) if each is not NoneType)
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else inspect.formatannotation(kind)


def described(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function says of its parameters, by name."""
    from docstring_parser import parse

    return {each.arg_name: each.description for each in parse(function.__doc__ or "").params if each.description}


def check_parameters(function: Callable[..., Any]) -> None:
    """Raises unless every parameter of a recipe has a type, and the docstring says what it is."""
    said, file = described(function), function.__code__.co_filename
    if loose := [each for each in inspect.signature(function).parameters.values() if each.kind in _LOOSE]:
        raise ConfigError(f"{file}: {function.__name__} takes {loose[0]}, which can be no flag. Name each parameter.")
    for name, parameter in parameters_of(function).items():
        where = f"{file}, line {parameter.line}: the parameter {name!r} of {function.__name__}"
        if not parameter.type:
            raise ConfigError(f"{where} has no type, and becomes a flag. Write {_with_type(parameter)}.")
        if name not in said:
            raise ConfigError(
                f'{where} has no word in the docstring, and becomes a flag. Write under "Args:" there '
                f'"{name}: what it is."'
            )


def _with_type(parameter: Parameter) -> str:
    """A parameter as it may be written, by its default."""
    if parameter.default is None:
        return f"{parameter.name}: float, or whatever it is"
    return f"{parameter.name}: {type(parameter.default).__name__} = {parameter.default!r}"


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of parameters by name, as text where they cannot be looked up."""
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return dict(inspect.get_annotations(function))


def _lines(function: Callable[..., Any]) -> dict[str, int]:
    """On which line of its file each parameter of a function stands, where the source can be read."""
    with suppress(OSError, TypeError, SyntaxError, IndexError):
        source, first = inspect.getsourcelines(function)
        made = ast.parse(textwrap.dedent("".join(source))).body[0]
        if isinstance(made, ast.FunctionDef):
            taken = made.args
            return {a.arg: first + a.lineno - 1 for a in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}
    return {}
