"""Where options get their values if they are not given: the files that `--config` names, and the environment."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from ...errors import ConfigError, unknown
from ..parameters import LIMITS, plain, value_of
from .options import UsageError

PREFIX = "HEADRACE_"
_OF_ENGINES = "TIMEOUT_S"  # after the prefix: no option
_NEAR = 0.8  # how alike a variable and an option are for one to be a slip of the other
NamedValue = tuple[str, tuple[str, Any]]
"""The name of an option; the place where its value was found, and the value as it is there."""


def given_elsewhere(
    recipe: Mapping[str, Parameter],
    training: Mapping[str, Parameter],
    given: Mapping[str, Any],
    of_run: Sequence[str],
    asked: Sequence[str],
) -> dict[str, Any]:
    """Plain values of the options that are not `given`: from the files `asked` for, a run, or the environment.

    Of two files the later one counts. A limit that is given takes the place of all limits that a run began with.
    """
    options = {**recipe, **training}
    try:
        begun, named = dict(_of_files(of_run, options)), dict(_of_files(asked, options))
        if not {*LIMITS}.isdisjoint({*given, *named}):
            begun = {name: found for name, found in begun.items() if name not in LIMITS or name in recipe}
        found = dict(_of_environment(options)) | begun | named
        return {
            name: plain(_checked(options[name], value, where))
            for name, (where, value) in found.items()
            if name not in given and not (value is None and name in training)
        }
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _checked(option: Parameter, value: Any, where: str) -> Any:
    """A value as the option's type, which cyclopts would take on the command line."""
    made = value_of(option, value, where)
    for each in getattr(option.annotation, "__metadata__", ()):
        for check in each.validator:
            try:
                check(option.annotation, made)
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{where}: {error}") from None
    return made


def _of_environment(options: Mapping[str, Parameter]) -> Iterator[NamedValue]:
    """Those of `HEADRACE_LR` and the like; other variables may be another recipe's."""
    names = {name.upper(): name for name in options}
    for variable, text in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name == _OF_ENGINES:
            continue
        if name in names:
            yield names[name], (variable, text)
        elif near := get_close_matches(name, names, n=1, cutoff=_NEAR):
            raise ConfigError(f"{variable} is in the environment. Did you mean {PREFIX}{near[0]}?")


def _of_files(files: Sequence[str], options: Mapping[str, Parameter]) -> Iterator[NamedValue]:
    from ..find import PARTS, read_file

    for file in files:
        config = read_file(file)
        flat = {key: value for key, value in config.items() if key not in (*PARTS, "recipe")}
        for part in PARTS:
            flat |= config.get(part) or {}
        for key, value in flat.items():
            name = str(key).replace("-", "_")
            if name not in options:
                raise ConfigError(f"{file}: {unknown('key', str(key), options)}")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            yield name, (f"{file}: {key}", json.dumps(value) if is_number else value)
