"""What a recipe takes: its parameters with their types, and values for them as a command line or a file has them."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_LOOSE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a recipe."""

    name: str
    type: str
    """As help says it: "float", "a|b", "int or all"."""
    switch: bool
    """Whether it is true or false."""
    default: Any
    """`None` where there is none."""
    line: int
    """Where it stands in its file."""


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a recipe by name."""
    lines, types = _lines(function), _types(function)
    return {
        name: Parameter(
            name,
            spelled(types[name]) if name in types else "",
            types.get(name) is bool,
            None if given.default is given.empty else given.default,
            lines.get(name, 1),
        )
        for name, given in inspect.signature(function).parameters.items()
    }


def required(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    given = inspect.signature(function).parameters.values()
    return [each.name for each in given if each.default is each.empty]


def spelled(kind: Any) -> str:
    """A type in words: "float", "a|b" for literals, "int or all" for a choice; that it may be `None` is left out."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(spelled(each) for each in get_args(kind) if each is not NoneType)
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else inspect.formatannotation(kind)


def check_parameters(function: Callable[..., Any]) -> None:
    """Raises unless every parameter has a type, and the docstring says what it is."""
    from docstring_parser import parse

    described = {each.arg_name for each in parse(function.__doc__ or "").params if each.description}
    file = function.__code__.co_filename
    if loose := [each for each in inspect.signature(function).parameters.values() if each.kind in _LOOSE]:
        raise ConfigError(f"{file}: {function.__name__} takes {loose[0]}, which can be no flag. Name each parameter.")
    for name, parameter in parameters_of(function).items():
        where = f"{file}, line {parameter.line}: the parameter {name!r} of {function.__name__}"
        if not parameter.type:
            raise ConfigError(f"{where} has no type, and becomes a flag. Write {_with_type(parameter)}.")
        if name not in described:
            raise ConfigError(
                f'{where} has no word in the docstring, and becomes a flag. Write under "Args:" there '
                f'"{name}: what it is."'
            )


def _with_type(parameter: Parameter) -> str:
    """A parameter as it may be written, by its default."""
    if parameter.default is None:
        return f"{parameter.name}: float, or whatever it is"
    return f"{parameter.name}: {type(parameter.default).__name__} = {parameter.default!r}"


def parser_of(function: Callable[..., Any], **options: Any) -> "ArgumentParser":
    """A parser that takes what a function takes; it raises `argparse.ArgumentError` on what makes no sense."""
    from jsonargparse import ArgumentParser

    options = {"exit_on_error": False, "print_config": None, "add_help": False, "allow_abbrev": False} | options
    parser = ArgumentParser(**options)
    try:
        parser.add_function_arguments(function, fail_untyped="all")
    except ValueError as error:
        raise ConfigError(f"{function.__name__} takes what can be no flag: {error}") from None
    return parser


def typed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, as a file has them, as the values that a function takes."""
    from argparse import ArgumentError

    known = parameters_of(function)
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{function.__name__} has an {unknown('argument', name, known)}")
    check_parameters(function)
    parser = parser_of(function)
    try:
        found = parser.instantiate(parser.parse_object(dict(arguments)))
    except ArgumentError as error:
        raise ConfigError(f"the arguments of {function.__name__}: {error}") from None
    return {name: found[name] for name in known}


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
