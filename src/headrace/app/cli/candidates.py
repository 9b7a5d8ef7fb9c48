"""What may stand at the end of a command line that somebody is typing: found in a moment, without importing torch.

A recipe is read, never run: its parameters come from the syntax tree of its file.
"""

import argparse
import ast
import os
import re
import shlex
import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from ...errors import HeadraceError
from .options import OF_A_NEW_RUN, Options
from .parser import Parser, commands, find

RUN = "run.json"  # a directory that has it is a run
RECIPE_BYTES = 1 << 20


def candidates(line: str, breaks: str = "") -> list[str]:
    """What the last word of a line may become; of a word that the shell parts at `breaks`, its last part."""
    *words, current = _words(line)
    found = sorted({word for word in _all(words[1:], current) if word.startswith(current)})
    cut = max((current.rfind(character) + 1 for character in breaks if character in ":="), default=0)
    return [word[cut:] for word in found]


def _words(line: str) -> list[str]:
    """The words of a line; the last is the one being typed, empty after a blank."""
    for end in ("", '"', "'"):  # a quote may be open still
        with suppress(ValueError):
            words = shlex.split(line + end)
            return [*words, ""] if not words or (line[-1].isspace() and not end) else words
    return [line]


def _all(words: Sequence[str], current: str) -> Iterator[str]:
    """All that may come after these words, whatever has been typed of it."""
    if not words:
        yield from ("--help", "--version") if current.startswith("-") else commands()
    elif words[0] in commands():
        with suppress(HeadraceError, ImportError):
            parser, _ = find(words[0])
            if parser.takes_all:
                _as_told(parser, words)
            yield from _after(parser, words[1:], current)


def _after(parser: argparse.ArgumentParser, words: Sequence[str], current: str) -> Iterator[str]:
    """What a parser takes after these words."""
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    places = [action for action in parser._actions if not action.option_strings]
    waiting: argparse.Action | None = None  # an option that has no value yet
    for k, word in enumerate(words):
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            action = flags.get(word)
            waiting = action if action is not None and action.nargs != 0 else None
        elif places and isinstance(places[0], argparse._SubParsersAction):
            if word in places[0].choices:
                yield from _after(places[0].choices[word], words[k + 1 :], current)
            return
        elif places and places[0].nargs not in ("+", "*"):
            places = places[1:]
    flag, equals, value = current.partition("=")
    if waiting is not None:
        yield from _values(waiting, current)
    elif equals and flag in flags:
        yield from (f"{flag}={each}" for each in _values(flags[flag], value))
    elif current.startswith("-") or not places:
        yield from (flag for flag, action in flags.items() if flag[:2] == "--" and action.help != argparse.SUPPRESS)
    else:
        yield from _values(places[0], current)


def _values(action: argparse.Action, current: str) -> Iterator[str]:
    """What an option or a place takes; nothing where it is any text, or any file, which the shell knows."""
    if action.choices is not None:
        yield from map(str, action.choices)
    elif action.dest in ("run", "runs"):
        yield from _directories(current, lambda path: "" if (path / RUN).is_file() else "/")
    elif action.dest == "recipe":
        yield from _recipes(current)


def _directories(current: str, ending: Any) -> Iterator[str]:
    """The directories where somebody is typing, those without a name first; `ending` says what follows each."""
    head = current[: current.rfind("/") + 1]
    with suppress(OSError):
        for entry in os.scandir(os.path.expanduser(head) or "."):
            if entry.is_dir() and (not entry.name.startswith(".") or current[len(head) :].startswith(".")):
                yield head + entry.name + ending(Path(entry.path))


def _recipes(current: str) -> Iterator[str]:
    """Files with recipes, the recipes of a file once its name is there, and directories on the way."""
    path, colon, _ = current.partition(":")
    if colon:
        yield from (f"{path}:{function.name}" for function in recipes_in(Path(path)))
        return
    yield from _directories(current, lambda path: "/")
    head = current[: current.rfind("/") + 1]
    with suppress(OSError):
        for entry in os.scandir(os.path.expanduser(head) or "."):
            if entry.name.endswith(".py") and recipes_in(Path(entry.path)):
                yield head + entry.name


def recipes_in(path: Path) -> list[ast.FunctionDef]:
    """The functions of a file that say they return a Recipe."""
    try:
        text = path.read_text() if path.stat().st_size < RECIPE_BYTES else ""
        tree = ast.parse(text) if "Recipe" in text else ast.Module([], [])
    except (OSError, ValueError, SyntaxError):
        return []
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and re.fullmatch(r"['\"]?(\w+\.)*Recipe['\"]?", ast.unparse(node.returns))
    ]


# --- fit and resume, whose options depend on the recipe ----------------------------------------------------


def _as_told(parser: Parser, words: Sequence[str]) -> None:
    """Gives a command that reads its words itself the options that they mean, by the recipe or the run they name."""
    command, *rest = words
    recipe = _recipe_of(command, rest)
    parser.add_argument("recipe" if command == "fit" else "run")
    for argument in [*recipe.args.args, *recipe.args.kwonlyargs] if recipe is not None else []:
        _add(parser, argument.arg, *_of_annotation(argument.annotation))
    for option in fields(Options):
        if command == "fit" or option.name not in OF_A_NEW_RUN:
            _add(parser, option.name, *_of_type(option.type))
    if command == "resume":
        _add(parser, "recipe", False, [])
    _add(parser, "config", False, [])
    _add(parser, "print_config", True, [])


def _add(parser: Parser, name: str, switch: bool, choices: Sequence[str]) -> None:
    if f"--{name}" in parser.flags():
        return
    if switch:
        parser.add_argument(f"--{name}", action="store_true")
    else:
        parser.add_argument(f"--{name}", choices=choices or None)


def _recipe_of(command: str, words: Sequence[str]) -> ast.FunctionDef | None:
    """The function that the words are about: the first of them that names one, or a run of one."""
    for word in words if command == "fit" else filter(None, map(_recipe_of_run, words)):
        path, _, wanted = word.partition(":")
        if found := recipes_in(Path(path)):
            found = [each for each in found if not wanted or each.name == wanted]
            return found[0] if len(found) == 1 else None
    return None


def _recipe_of_run(run: str) -> str:
    with suppress(OSError, ValueError):
        for line in Path(run, "recipe.yaml").read_text().splitlines():
            if line.startswith("recipe:"):
                return line.partition(":")[2].strip().strip("'\"")
    return ""


def _of_annotation(annotation: ast.expr | None) -> tuple[bool, list[str]]:
    """Whether a parameter is a switch, and its choices, as far as its annotation says so."""
    text = "" if annotation is None else ast.unparse(annotation)
    literals = re.findall(r"Literal\[([^\]]*)\]", text)
    return text == "bool", [str(value) for literal in literals for value in ast.literal_eval(f"({literal},)")]


def _of_type(kind: Any) -> tuple[bool, list[str]]:
    parts = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    literals = [part for part in parts if typing.get_origin(part) is Literal]
    return kind is bool, [str(value) for literal in literals for value in typing.get_args(literal)]
