"""Where the values of options come from: the environment, files, flags; each knows who said it."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from ...errors import ConfigError, unknown
from ..of_run import PARTS
from ..parameters import Parameter

PREFIX = "HEADRACE_"
LIST = "'[3, 4]'"
"""How a list is written, as an example."""
_NOT_OPTIONS = {"CONFIG", "TIMEOUT_S"}
_NEAR = 0.8  # how alike a variable and an option are for one to be a slip of the other

Known = Mapping[str, Parameter]


class Value(NamedTuple):
    """What was said of an option."""

    name: str
    text: str
    where: str
    """Who said it, as errors call it."""


def of_environment(known: Known) -> Iterator[Value]:
    """`HEADRACE_LR=0.1` and the like; a variable that is not near to any option may be another recipe's."""
    names = {name.upper(): name for name in known}
    for variable, text in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name in _NOT_OPTIONS:
            continue
        if name in names:
            yield Value(names[name], text, variable)
        elif near := get_close_matches(name, names, n=1, cutoff=_NEAR):
            raise ConfigError(f"{variable} is in the environment. Did you mean {PREFIX}{near[0]}?")


def of_file(file: str, config: Mapping[str, Any], known: Known) -> Iterator[Value]:
    """The keys of a file of options."""
    flat = {key: value for key, value in config.items() if key not in PARTS}
    for part in PARTS:
        flat |= config.get(part) or {}
    for key, value in flat.items():
        name = str(key).replace("-", "_")
        if name.partition(".")[0] not in known:
            raise ConfigError(f"{file}: {unknown('key', str(key), known)}")
        yield Value(name, value if isinstance(value, str) else json.dumps(value, default=str), f"{file}: {key}")


def of_flags(words: Sequence[str], known: Known, listed: Sequence[str]) -> Iterator[Value]:
    """Flags with their values; a switch may stand alone, and `--no_` before one turns it off.

    `listed`: what the command takes, for the message about an option that it does not.
    """
    left, before = list(words), ""
    while left:
        flag, equals, text = left.pop(0).partition("=")
        if not flag.startswith("--"):
            of_list = before in known and known[before].type.startswith("list[")
            hint = f" A list is written as in --{before} {LIST}." if of_list else ""
            raise ConfigError(f"{flag + equals + text!r} belongs to no option.{hint}")
        name = flag[2:].replace("-", "_")
        root = name.partition(".")[0]
        before, off = root, root.removeprefix("no_")
        if root not in known and off in known and known[off].switch and not equals:
            name, text = off, "false"
        elif root not in known:
            raise ConfigError(unknown("option", f"--{name}", [f"--{each}" for each in listed]))
        elif not equals:
            alone = not left or left[0].startswith("--")
            if known[root].switch and (alone or left[0] not in ("true", "false")):
                text = "true"
            elif alone:
                raise ConfigError(f"{flag}: expected {known[root].type}, got nothing.")
            else:
                text = left.pop(0)
        yield Value(name, text, flag)


def taken(words: list[str], flag: str, what: str) -> str | None:
    """The value of the first word if that is this flag; both are taken out of the words."""
    name, equals, value = words[0].partition("=") if words else ("", "", "")
    if name != flag:
        return None
    del words[0]
    if not equals and words and not words[0].startswith("--"):
        value = words.pop(0)
    if not value:
        raise ConfigError(f"{flag}: expected {what}, got nothing.")
    return value
