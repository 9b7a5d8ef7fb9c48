"""Converts plain values, as a command line or a file has them, to the types that a function takes, and back."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError, unknown
from .parameters import Parameter, check_parameters, parameters_of, spelled

LIST = "'[3, 4]'"
"""How a list is written, as an example."""
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Value(NamedTuple):
    """What is given for a parameter."""

    name: str
    given: Any
    """Text as a person writes it, or a plain value."""
    where: str
    """Who gives it, as errors call it."""


class MisfitError(Exception):
    """A value that is not of the type that is expected; `name` is that of the parameter or of its part."""

    def __init__(self, kind: Any, name: str) -> None:
        super().__init__(name, spelled(kind))
        self.kind, self.name = kind, name


def typed_values(known: Mapping[str, Parameter], values: Sequence[Value]) -> dict[str, Any]:
    """The value of every parameter that is given one or has a default, as its type; later values replace earlier."""
    found = {name: _default(parameter) for name, parameter in known.items() if not parameter.required}
    for name, value in {value.name: value for value in values}.items():
        if name not in known:
            raise ConfigError(unknown("option", name, known))
        try:
            found[name] = as_type(known[name].kind, value.given, name)
        except MisfitError as misfit:
            kind = spelled(misfit.kind)
            example = f", as in --{misfit.name} {LIST}" if kind.startswith("list[") else ""
            part = f" as {misfit.name}" if misfit.name != name else ""
            raise ConfigError(f"{value.where}: expected {kind}{part}{example}, got {value.given!r}.") from None
    return found


def typed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe is called with, from plain values as a file has them."""
    known, what = parameters_of(function), function.__name__
    check_parameters(function)
    for name in arguments:
        if name not in known:
            raise ConfigError(f"{what} has an {unknown('argument', name, known)}")
    if missing := [name for name in known if known[name].required and name not in arguments]:
        raise ConfigError(f"{what} lacks what is required: {', '.join(missing)}.")
    return typed_values(known, [Value(name, given, f'{what}, "{name}"') for name, given in arguments.items()])


def _default(parameter: Parameter) -> Any:
    """The default of a parameter, which has to be a plain value of its type."""
    if parameter.default is not None:
        try:
            as_type(parameter.kind, plain(parameter.default))
        except MisfitError:
            said = f"{parameter.name} is a {parameter.type} with the default {parameter.default!r}"
            raise ConfigError(f"the recipe takes what can be no flag: {said}.") from None
    return parameter.default


def as_type(kind: Any, given: Any, name: str = "") -> Any:
    """A plain value, or text as a person writes it, as a value of a type; raises `MisfitError` where it is none."""
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
            if given in (choice, str(choice)):
                return choice
    elif origin is bool:
        if str(given).lower() in _SWITCHES:
            return _SWITCHES[str(given).lower()]
    elif origin in (int, float):
        if isinstance(given, str | int | origin) and not isinstance(given, bool):
            with suppress(ValueError):
                return int(given, 0) if origin is int and isinstance(given, str) else origin(given)
    elif origin in (Any, object):
        return _parsed(given)
    elif not isinstance(origin, type):
        raise _no_flag(kind, name)
    elif issubclass(origin, Enum):
        if given in origin.__members__:
            return origin[given]
    elif issubclass(origin, str | PurePath):
        if isinstance(given, str):
            return origin(given)
    elif is_dataclass(origin):
        return _dataclass(origin, _parsed(given), name)
    elif issubclass(dict, origin):
        if isinstance(found := _parsed(given), Mapping):
            keys, values = parts or (Any, Any)
            return {as_type(keys, key, name): as_type(values, each, name) for key, each in found.items()}
    elif made := next((each for each in (list, tuple, set) if issubclass(each, origin)), None):
        found = _parsed(given)
        if isinstance(found, list | tuple):
            fixed = made is tuple and parts[-1:] not in ((), (...,))
            kinds = parts if fixed else [*parts[:1], Any][:1] * len(found)
            with suppress(MisfitError, ValueError):
                return made([as_type(part, each, name) for part, each in zip(kinds, found, strict=True)])
    else:
        raise _no_flag(kind, name)
    raise MisfitError(kind, name)


def _no_flag(kind: Any, name: str) -> ConfigError:
    return ConfigError(f"{name} is a {spelled(kind)}, which can be no flag: make it in the function, of plain values.")


def _dataclass(kind: Any, given: Any, name: str) -> Any:
    if not isinstance(given, Mapping):
        raise MisfitError(kind, name)
    types, found = get_type_hints(kind), {}
    for part, value in given.items():
        if part not in types:
            raise ConfigError(unknown(f"option of {name}", part, types))
        found[part] = as_type(types[part], value, f"{name}.{part}")
    try:
        return kind(**found)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}.") from None


def _parsed(given: Any) -> Any:
    """What text stands for in YAML, as [3, 4] and {width: 3}."""
    if not isinstance(given, str):
        return given
    import yaml

    try:
        return yaml.safe_load(given)
    except yaml.YAMLError:
        return given


def plain(value: Any) -> Any:
    """A value as a file may hold it, from which `as_type` makes it again."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    raise ConfigError(f"a default of the recipe is no plain value: {value!r:.60}. Make it in the function.")
