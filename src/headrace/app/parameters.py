"""The parameters of a function: their types, defaults and descriptions, and values converted to their types."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import Parameter
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, unknown
from ..store.document import DEPTH

_LOOSE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY)

LIMITS = ("epochs", "steps", "samples", "minutes")
OF_A_RUN = {"resume": "resume", "checkpoint_every": "every", "keep": "keep", "override": "override", "parent": "parent"}
"""Options of the command line that are about the run, by the argument of `Run` that they are."""


def flag_of(name: str) -> str:
    """A parameter as an option: `--batch-size`. A command also takes `--batch_size`."""
    return f"--{name.replace('_', '-')}"


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function by name; their types are text where they cannot be looked up."""
    try:
        types = get_type_hints(function)
    except (NameError, TypeError):
        types = {}
    known = inspect.signature(function).parameters
    return {name: each.replace(annotation=types.get(name, each.annotation)) for name, each in known.items()}


def value_of(parameter: Parameter, given: Any, where: str) -> Any:
    """What is given for a parameter, text as a person writes it or a plain value, as its type."""
    try:
        return converted(parameter.annotation, given, parameter.name)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def spelled(kind: Any) -> str:
    """A type in words: "float", "a|b" for literals, "int or all" for a choice; that it may be `None` is left out."""
    if get_origin(kind) is Annotated:
        return spelled(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(spelled(each) for each in get_args(kind) if each is not NoneType)
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else inspect.formatannotation(kind)


def described(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function says of its parameters, by name."""
    from docstring_parser import parse

    params = parse(function.__doc__ or "").params
    return {each.arg_name: " ".join(each.description.split()) for each in params if each.description}


def check_parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a recipe; raises unless each can be an option.

    It needs a type and a description in the docstring. `typed` says whether its default has this type.
    """
    descriptions, file, line = described(function), function.__code__.co_filename, function.__code__.co_firstlineno
    known = parameters_of(function)
    if loose := [each for each in known.values() if each.kind in _LOOSE]:
        raise ConfigError(
            f"{file}: {function.__name__} takes {loose[0]}, which cannot be options of the command line. Name "
            "each parameter."
        )
    for name, each in known.items():
        where = f"{file}, line {line}: the parameter {name!r} of {function.__name__}"
        has_default = each.default is not None and each.default is not each.empty
        if each.annotation is each.empty:
            kind = f"{type(each.default).__name__} = {each.default!r}" if has_default else "float, or whatever it is"
            raise ConfigError(
                f"{where} has no type, and each parameter is an option of the command line. Write {name}: {kind}."
            )
        if name not in descriptions:
            raise ConfigError(
                f"{where} is not described in the docstring, which is the help of its option. Write "
                f'there, under "Args:", "{name}: what it is."'
            )
    return known


YAML_LENGTH = 1 << 18
"""Characters of YAML that are read."""
LIST = "'[3, 4]'"
"""How a list is written, as an example."""
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class MisfitError(ValueError):
    """A value that is not of the type that is expected."""


def converted(kind: Any, given: Any, name: str = "") -> Any:
    """A plain value, or text as a person writes it, as a value of a type; raises ValueError where it is none."""
    try:
        return as_type(kind, given, name)
    except MisfitError:
        expected = spelled(kind)
        example = f", as in {flag_of(name)} {LIST}" if expected.startswith("list[") else ""
        raise ValueError(f"expected {expected}{example}, got {given!r}.") from None


def typed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe is called with, from plain values as a file has them."""
    known, what = check_parameters(function), function.__name__
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{what} has an {unknown('argument', name, known)}")
    if missing := [name for name, each in known.items() if each.default is each.empty and name not in arguments]:
        raise ConfigError(f"{what} lacks what is required: {', '.join(missing)}. Give it, or a default.")
    return {name: value_of(known[name], given, f'{what}, "{name}"') for name, given in arguments.items()}


def as_type(kind: Any, given: Any, name: str = "") -> Any:
    """A plain value, or text as a person writes it, as a value of a type; raises `MisfitError` where it is none."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        if NoneType in parts and given in (None, "null"):
            return None
        for part in parts:
            with suppress(MisfitError):
                if part is not NoneType:
                    return as_type(part, given, name)
    elif origin is Literal:
        for choice in parts:
            if given in (choice, str(choice)) and (type(given) is not bool or type(choice) is bool):
                return choice
    elif origin is bool:
        if str(given).lower() in _SWITCHES:
            return _SWITCHES[str(given).lower()]
    elif origin in (int, float):
        if isinstance(given, str | int | origin) and not isinstance(given, bool):
            with suppress(ValueError):
                return int(given, 0) if origin is int and isinstance(given, str) else origin(given)
    elif not isinstance(origin, type):
        raise _no_flag(kind, name)
    elif issubclass(origin, str | PurePath):
        if isinstance(given, str):
            return origin(given)
    elif origin in (list, tuple):
        found = _parsed(given)
        if isinstance(found, list | tuple):
            fixed = origin is tuple and parts[-1:] != (...,)
            kinds = parts if fixed else parts[:1] * len(found)
            with suppress(ValueError):
                return origin([as_type(part, each, name) for part, each in zip(kinds, found, strict=True)])
    else:
        raise _no_flag(kind, name)
    raise MisfitError


def _no_flag(kind: Any, name: str) -> ConfigError:
    return ConfigError(
        f"{name} is a {spelled(kind)}, which cannot be an option of the command line: make it in the function, of "
        "plain values."
    )


def _parsed(given: Any) -> Any:
    """What text stands for in YAML, as [3, 4]."""
    if not isinstance(given, str):
        return given
    try:
        return from_yaml(given)
    except ValueError:
        return given


def from_yaml(text: str) -> Any:
    """The values that YAML stands for; raises ValueError if it is not YAML, too long or too deep, or has aliases.

    With aliases, a short text can stand for more values than fit into memory.
    """
    import yaml

    if len(text) > YAML_LENGTH:
        raise ValueError(f"it is longer than {YAML_LENGTH:,} characters")
    depth = 0
    try:
        for event in yaml.parse(text):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"*{event.anchor} is an alias: write the value in its place")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ValueError(f"it has more than {DEPTH} lists and dicts inside each other")
        return yaml.safe_load(text)
    except Exception as error:  # PyYAML raises a KeyError for "!!bool x", and more
        raise ValueError(str(error)) from None


def plain(value: Any) -> Any:
    """A value as a file may hold it, from which `as_type` makes it again."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    raise ConfigError(f"a default of the recipe is no plain value: {value!r:.60}. Make it in the function.")
