"""`headrace completion bash|zsh|fish`: what makes a shell complete commands, their options, recipes and runs.

What may stand at the end of a line is found in a moment, without importing torch. A recipe is read, never run: its
parameters come from the syntax tree of its file.
"""

import ast
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ...errors import ConfigError
from ..parameters import Parameter
from .commands import Command, actions, commands
from .options import flag_of, options_of
from .output import print_text

TEMPLATES = Path(__file__).parent / "templates"
RUN = "run.json"  # a directory that has it is a run
RECIPE_BYTES = 1 << 20


def completion(
    shell: Literal["bash", "zsh", "fish"] | None = None, *, line: str | None = None, breaks: str = ""
) -> int:
    """Prints the script for a shell.

    Args:
        shell: the shell that is to do it
    """
    # The scripts ask for `line`, what is typed up to the cursor, and say with `breaks` where the shell parts words.
    if line is not None:
        print_text("".join(f"{word}\n" for word in candidates(line, breaks)))
    elif shell is None:
        raise ConfigError('say which shell, as in eval "$(headrace completion bash)". There are bash, zsh and fish.')
    else:
        print_text((TEMPLATES / f"completion.{shell}").read_text())
    return 0


def candidates(line: str, breaks: str = "") -> list[str]:
    """Completions of the last word of a line; of a word that the shell splits at `breaks`, of its last part."""
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
    """All words that may follow these."""
    known = commands()
    if not words:
        yield from ("--help", "--version") if current.startswith("-") else known
    elif words[0] in known:
        command, words = known[words[0]], words[1:]
        if command.actions and words:
            command, words = actions(command).get(words[0], command), words[1:]
        if command.actions:
            yield from ["--help"] if current.startswith("-") else [] if words else actions(command)
        else:
            yield from _after(command, words, current)


def _after(command: Command, words: Sequence[str], current: str) -> Iterator[str]:
    """What a command takes after these words."""
    known = _of_a_recipe(command.name, words) if command.takes_words else command.parameters
    flags = {flag_of(each.name, command.dash): each for each in known.values() if not each.place}
    places = [each for each in known.values() if each.place]
    waiting: Parameter | None = None  # an option that has no value yet
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            option = flags.get(word)
            waiting = None if option is None or option.switch else option
        elif places and not places[0].repeated:
            places = places[1:]
    flag, equals, value = current.partition("=")
    if waiting is not None:
        yield from _values(waiting, current)
    elif equals and flag in flags:
        yield from (f"{flag}={each}" for each in _values(flags[flag], value))
    elif current.startswith("-") or not places:
        yield from (flag for flag in ["--help", *flags] if flag not in ("--line", "--breaks"))
    else:
        yield from _values(places[0], current)


def _values(parameter: Parameter, current: str) -> Iterator[str]:
    """The values that an option or a place takes; none where it is any text or any file, which the shell completes."""
    if parameter.choices:
        yield from parameter.choices
    elif parameter.name in ("run", "runs"):
        there = ((name, path) for name, path in _entries(current) if path.is_dir())
        yield from (name if (path / RUN).is_file() else f"{name}/" for name, path in there)
    elif parameter.name == "recipe":
        yield from _recipes(current)


def _entries(current: str) -> Iterator[tuple[str, Path]]:
    """Files and directories that may complete a path; hidden ones if a dot is typed."""
    head = current[: current.rfind("/") + 1]
    with suppress(OSError):
        for entry in os.scandir(os.path.expanduser(head) or "."):
            if not entry.name.startswith(".") or current[len(head) :].startswith("."):
                yield head + entry.name, Path(entry.path)


def _recipes(current: str) -> Iterator[str]:
    """Files with recipes, the recipes of a file once its name is there, and directories on the way."""
    name, colon, _ = current.partition(":")
    if colon:
        yield from (f"{name}:{function.name}" for function in recipes_in(Path(name)))
        return
    for name, path in _entries(current):
        if path.is_dir():
            yield f"{name}/"
        elif path.suffix == ".py" and recipes_in(path):
            yield name


def recipes_in(path: Path) -> list[ast.FunctionDef]:
    """The functions of a file that say they return a Recipe."""
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size < RECIPE_BYTES else ""
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


def _of_a_recipe(command: str, words: Sequence[str]) -> Mapping[str, Parameter]:
    """What a command takes that names a recipe, or a run of one."""
    recipe = _recipe_of(command, words)
    arguments = [] if recipe is None else [*recipe.args.args, *recipe.args.kwonlyargs]
    of_recipe = {each.arg: Parameter(each.arg, _kind(each.annotation)) for each in arguments}
    place = Parameter("recipe" if command == "fit" else "run", place=True)
    return {"": place} | options_of(command, of_recipe)


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
        for line in Path(run, "recipe.yaml").read_text(encoding="utf-8").splitlines():
            if line.startswith("recipe:"):
                return line.partition(":")[2].strip().strip("'\"")
    return ""


def _kind(annotation: ast.expr | None) -> object:
    """The type of a parameter as far as completion needs it: whether it is a switch, and its choices."""
    text = "" if annotation is None else ast.unparse(annotation)
    literals = ",".join(re.findall(r"Literal\[([^\]]*)\]", text))
    return bool if text == "bool" else Literal[ast.literal_eval(f"({literals},)")] if literals else str
