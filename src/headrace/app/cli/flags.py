"""The words of `headrace fit` as a recipe, its arguments and the options of its training.

A value is the last of these that there is: the default, the environment (`HEADRACE_LR`), the files that `--config`
names in their order, the flags.
"""

import os
import re
import shutil
import sys
import warnings
from argparse import ArgumentError, HelpFormatter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ...errors import ConfigError, unknown
from ..find import find_recipe, located
from ..of_run import read_file
from ..parameters import Parameter, check_parameters, parameters_of, parser_of
from ..recipe import LIMITS
from .options import OF_A_NEW_RUN, OWN, Options
from .parser import UsageError
from .say import put
from .values import LIST, PREFIX, Known, Value, of_environment, of_file, of_flags, taken

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_TAKES = {
    "fit": "RECIPE: file.py or file.py:function, which returns a Recipe. What the function takes are options, too.",
    "resume": "RUN: the directory of a run. Options are as the run has them, unless others are given; limits may grow.",
}
_ORDER = """
A value is the last of these that there is: the default, the environment (HEADRACE_LR=0.1), the files that
--config names in their order, the flags. Of two options with one name, the recipe's counts.
"""
_RECIPE = re.compile(r"[^-].*\.py(:\w+)?")


class Asked(NamedTuple):
    """What a command line asks for."""

    recipe: str
    arguments: dict[str, Any]
    """Of the recipe, as plain values."""
    options: Options

    @property
    def document(self) -> dict[str, Any]:
        """All of it as `--config` takes it."""
        return {"recipe": self.recipe, "arguments": self.arguments, "fit": self.options.said()}


class Words:
    """The words of a command line, told apart."""

    def __init__(self, words: Sequence[str]) -> None:
        self.configs = [file] if (file := os.environ.get(PREFIX + "CONFIG")) else []
        self.help = self.prints = False
        self.flags: list[str] = []
        left = list(words)
        while left:
            if (file := taken(left, "--config", "a file")) is not None:
                self.configs.append(file)
                continue
            word = left.pop(0)
            if word in ("-h", "--help"):
                self.help = True
            elif word in ("--print_config", "--print-config"):
                self.prints = True
            else:
                self.flags.append(word)
        self.recipe = self._recipe()

    def _recipe(self) -> str | None:
        """The first word, or the first that looks like a recipe and is not what an option may be given."""
        if self.flags and not self.flags[0].startswith("-"):
            return self.flags.pop(0)
        like = [k for k, word in enumerate(self.flags) if _RECIPE.fullmatch(word)]
        free = [k for k in like if not self.flags[k - 1].startswith("--") or "=" in self.flags[k - 1]]
        return self.flags.pop(free[0]) if free else None

    def after_a_switch(self) -> str | None:
        """The recipe where it stands after an option, which is a switch then; which one has to be clear."""
        known = parameters_of(Options)
        names = [flag[2:].replace("-", "_") for flag in ("", *self.flags)]
        like = [
            k
            for k, word in enumerate(self.flags)
            if _RECIPE.fullmatch(word) and (names[k] not in known or known[names[k]].switch)
        ]
        if len(like) > 1:
            said = " or ".join(" ".join(self.flags[k - 1 : k + 1]) for k in like)
            raise ConfigError(f"which is the recipe is not clear of {said}. Put RECIPE first.")
        return self.flags.pop(like[0]) if like else None


def read(command: str, words: Sequence[str]) -> Asked:
    """What the words of a command ask for; ends the program if they make no sense, or ask for no more than a word."""
    with refused(command):
        said = Words(words)
        files = [(file, read_file(file)) for file in said.configs]
        recipe = _named(said, files)
    if recipe is None:
        _help(command, None)
    function = find_recipe(recipe)
    check_parameters(function)
    if said.help:
        _help(command, function)
    with refused(command):
        asked = _asked(command, recipe, function, files, said.flags)
    return _print(asked) if said.prints else asked


@contextmanager
def refused(command: str) -> Iterator[None]:
    """What makes no sense ends the program."""
    try:
        yield
    except ConfigError as error:
        fail(command, str(error))


def _named(said: Words, files: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    """The recipe that the words name, or else the last file that does; files say nothing else of it any more.

    `None` if nothing does, and help is wanted.
    """
    named = [str(config.pop("recipe")) for _, config in files if "recipe" in config]
    recipe = said.recipe or (named[-1] if named else said.after_a_switch())
    if recipe is None and not said.help:
        raise ConfigError("RECIPE is missing: file.py or file.py:function, which returns a Recipe.")
    return recipe


def _asked(
    command: str,
    recipe: str,
    function: Callable[..., Any],
    files: Sequence[tuple[str, dict[str, Any]]],
    flags: Sequence[str],
) -> Asked:
    known, taken = _known(function), parameters_of(function)
    values = [*of_environment(known)]
    for file, config in files:
        values += of_file(file, config, known)
    flagged = list(of_flags(flags, known, _listed(command, known)))
    if command == "resume" and any(value.name in LIMITS for value in flagged):  # instead of those that it began with
        values = [value for value in values if value.name not in LIMITS or value.name in taken]
    values += flagged
    found = _parse(_parser(function), values, known)
    options = Options(**{name: found[name] for name in known if name not in taken})
    options.check()
    return Asked(located(recipe), {name: found[name] for name in taken}, options)


def fail(command: str, message: str) -> NoReturn:
    """The end of a command that makes no sense."""
    raise UsageError(f"headrace {command}", message)


def _listed(command: str, known: Known) -> list[str]:
    """What a command takes, by name."""
    names = [name for name in known if command == "fit" or name not in OF_A_NEW_RUN]
    return [*names, "config", "print_config", "help", *(["recipe"] if command == "resume" else [])]


def _known(function: Callable[..., Any] | None) -> Known:
    """Every option by its name: the training's, and the recipe's."""
    taken = {} if function is None else parameters_of(function)
    if reserved := next((name for name in OWN if name in taken), None):
        raise ConfigError(f"the recipe has a parameter {reserved!r}, which the command line has itself. Rename it.")
    return parameters_of(Options) | taken


def _parser(function: Callable[..., Any], skip: Collection[str] = (), **options: Any) -> "ArgumentParser":
    parser = parser_of(function, **options)
    parser.add_class_arguments(Options, skip={*parameters_of(function), *skip})
    return parser


def _parse(parser: "ArgumentParser", values: Sequence[Value], known: Known) -> Mapping[str, Any]:
    """The values of all options, as plain ones."""
    import yaml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # of a default that no file can hold
            found = parser.parse_args([f"--{value.name}={value.text}" for value in values], env=False)
            plain: Mapping[str, Any] = yaml.safe_load(parser.dump(found, skip_unset=False))
            return plain
    except ArgumentError as error:
        raise ConfigError(_complaint(str(error), values, known, parser)) from None
    except UserWarning as warning:
        said = " ".join(str(warning).split())
        raise ConfigError(f"a default of the recipe is no plain value: {said}. Make it in the function.") from None


def _complaint(said: str, values: Sequence[Value], known: Known, parser: "ArgumentParser") -> str:
    """What is wrong, in a sentence that names who said it."""
    if missing := re.search(r"arguments are required: (.*)", said):
        return f"{' and '.join(f'--{name}' for name in missing[1].split(', '))} is missing: the recipe has no default."
    if strange := re.match(r"unrecognized arguments: --([\w.]+)", said):  # within a parameter of several parts
        return unknown("option", strange[1], [action.dest for action in parser._actions])
    key = re.match(r'Parser key "([^"]+)"', said)
    wrong = next((value for value in reversed(values) if key and value.name == key[1]), None)
    if wrong is None:
        return f"{' '.join(said.split())}."
    kind = re.search(r"<class '([\w.]+)'>", said)
    known_kind = known[wrong.name].type if wrong.name in known else kind[1] if kind else "something else"
    example = f", as in --{wrong.name} {LIST}" if known_kind.startswith("list[") else ""
    return f"{wrong.where}: expected {known_kind}{example}, got {wrong.text!r}."


def _help(command: str, function: Callable[..., Any] | None) -> NoReturn:
    """Prints what there is, with types and defaults, and ends."""

    def nothing() -> None: ...

    takes = _TAKES[command]
    usage = f"headrace {command} {takes.partition(':')[0]} [--option value ...]"
    shown = {"usage": usage, "description": takes, "epilog": _ORDER}
    known = _known(function)
    skip = {name for name in known if name not in _listed(command, known)}
    parser = _parser(function or nothing, skip, formatter_class=_Formatter, **shown)
    for action in parser._actions:
        if (option := known.get(action.dest)) is not None:
            action.help = (action.help or "").rstrip(".") + _default(option)
            action.metavar, action.nargs = option.type, 0 if option.switch else None
    group = parser.add_argument_group("Both together")
    group.add_argument("--config", metavar="FILE", help="options from a YAML file; may be given several times")
    if command == "resume":
        group.add_argument(
            "--recipe", metavar="RECIPE", help="file.py or file.py:function, if the run does not know it"
        )
    group.add_argument("--print_config", action="store_true", help="print all of it as --config takes it, and end")
    put(parser.format_help())
    sys.exit(0)


def _default(option: Parameter) -> str:
    """What help says of the default of an option."""
    if option.switch:
        return f" (on, unless --no_{option.name})" if option.default else ""
    if option.type.startswith("list["):
        return f" (a list is written as {LIST}{'' if option.default is None else f'; {option.default}'})"
    return "" if option.default is None else f" ({option.default})"


class _Formatter(HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        width = min(110, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, **(options | {"max_help_position": 24, "width": width}))


def _print(asked: Asked) -> NoReturn:
    import yaml

    put(yaml.safe_dump(asked.document, sort_keys=False))
    sys.exit(0)
