"""Makes strategies from text, as on the command line: "diloco", or "periodic:every=16 steps,weights=equal"."""

from inspect import signature
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import ConfigError, unknown
from .asynchronous import Asynchronous
from .block_momentum import BlockMomentum
from .elastic import Elastic
from .rounds import DiLoCo, Periodic
from .strategy import Strategy
from .synchronous import Synchronous

STRATEGIES: dict[str, type[Strategy]] = {
    "asynchronous": Asynchronous,
    "block-momentum": BlockMomentum,
    "diloco": DiLoCo,
    "elastic": Elastic,
    "periodic": Periodic,
    "synchronous": Synchronous,
}
_WORDS = {"true": True, "false": False}
_MEANT = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}


def parse_strategy(text: str) -> Strategy:
    """The strategy that is called so: its name, and after a colon the options that differ, with commas between."""
    name, _, given = text.partition(":")
    name = name.strip().lower().replace("_", "-")
    if name not in STRATEGIES:
        raise ConfigError(unknown("strategy", name, STRATEGIES))
    kinds = _options(STRATEGIES[name])
    options = {}
    for part in given.split(",") if given.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError(f'{text!r}: options are written as in "periodic:every=16 steps,weights=equal".')
        if key not in kinds:
            raise ConfigError(f"{text!r}: {unknown(f'option of {name}', key, kinds)}")
        if key in options:
            raise ConfigError(f"{text!r}: {key} is given twice.")
        options[key] = _value(f"{text!r}: {key}=", value, kinds[key])
    return STRATEGIES[name](**options)


def _options(kind: type[Strategy]) -> dict[str, set[Any]]:
    """The options of a strategy that text can give, with their possible types."""
    found = {name: _types(option.annotation) for name, option in signature(kind).parameters.items()}
    return {name: types for name, types in found.items() if types & {bool, int, float, str}}


def _types(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Literal:
        return {str}
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return {kind for part in parts for kind in _types(part)} if parts else {annotation}


def _value(what: str, text: str, types: set[Any]) -> Any:
    if NoneType in types and text.lower() == "none":
        return None
    if bool in types and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        if number in types:
            try:
                return number(text)
            except ValueError:
                continue
    if str in types:
        return text
    meant = " or ".join(meaning for kind, meaning in _MEANT.items() if kind in types)
    raise ConfigError(f"{what} is {meant}, got {text!r}.")
