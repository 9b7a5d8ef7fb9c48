"""Where options get their values if they are not given: the files that `--config` names, and the environment."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cyclopts import UNSET, App, Argument, ArgumentCollection, Token

from ...errors import ConfigError, unknown
from .options import LIMITS, UsageError

PREFIX = "HEADRACE_"
_OF_ENGINES = "TIMEOUT_S"  # after the prefix: no option
_NEAR = 0.8  # how alike a variable and an option are for one to be a slip of the other
_NOT_IN_FILES = ("config", "print_config", "recipe", "trust")


def of_files(first: Sequence[str], of_recipe: Mapping[str, Any] | None) -> Callable[..., None]:
    """Gives options that have no value those of the files: `first`, which are of a run, and those of `--config`.

    `of_recipe`: the parameters of the recipe, if one is named. A limit that is given takes the place of all limits that
    a run began with.
    """

    def give(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
        known = _known(arguments)
        asked = [
            token.value for argument in arguments if argument.field_info.name == "config" for token in argument.tokens
        ]
        if of_recipe is None:
            if asked:
                raise UsageError(
                    f"RECIPE comes first, as in headrace fit RECIPE --config {asked[0]}: a file gives values and names "
                    "no code, since it may come from anybody."
                )
            return
        began_with = {*LIMITS} - of_recipe.keys() if first else set[str]()
        skipped = began_with if any(known[name].tokens for name in LIMITS if name in known) else set[str]()
        try:
            for file in reversed([*first, *asked]):
                for name, key, value in _values(file, known):
                    if name not in skipped:
                        _give(known[name], f"{file}: {key}", value)
        except ConfigError as error:
            raise UsageError(str(error)) from None

    return give


def of_environment(app: App, commands: Sequence[str], arguments: ArgumentCollection) -> None:
    """Gives options that have no value those of `HEADRACE_LR` and the like; other variables may be another recipe's."""
    known = {name.upper(): argument for name, argument in _known(arguments).items()}
    for variable, text in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name == _OF_ENGINES:
            continue
        if name in known:
            _give(known[name], variable, text)
        elif near := get_close_matches(name, known, n=1, cutoff=_NEAR):
            raise UsageError(f"{variable} is in the environment. Did you mean {PREFIX}{near[0]}?")


def _known(arguments: ArgumentCollection) -> dict[str, Argument]:
    """The options that files and the environment may give, by name."""
    options = (each for each in arguments if each.field_info.is_keyword)
    return {each.field_info.name: each for each in options if each.field_info.name not in _NOT_IN_FILES}


def _give(argument: Argument, source: str, value: Any) -> None:
    if not argument.tokens:
        text = value if isinstance(value, str) else ""
        argument.append(
            Token(keyword=source, value=text, source=source, implicit_value=UNSET if value is text else value)
        )


def _values(file: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The values of a file of options: the name, the key as it is there, and text or what only a file can have."""
    from ..find import PARTS, read_file

    config = read_file(file)
    flat = {key: value for key, value in config.items() if key not in (*PARTS, "recipe")}
    for part in PARTS:
        flat |= config.get(part) or {}
    for key, value in flat.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(f"{file}: {unknown('key', str(key), known)}")
        plain = value is None or isinstance(value, str | list | dict)
        yield name, str(key), value if plain else json.dumps(value, default=str)
