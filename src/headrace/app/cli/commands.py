"""The commands: a typed function for each, whose parameters are its places and options, and whose docstring its help.

Only the module of the command that is asked for is imported.
"""

import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...errors import ConfigError, unknown
from ..parameters import LIST, Parameter, Value, described, parameters_of, typed_values
from .options import UsageError, flag_of, no_option_error, options_of, parse_words
from .output import print_line

_SAID = {
    "run": "the directory of the run",
    "which": "best, last or a step (best if anything told good from bad, else last)",
    "recipe": "file.py or file.py:function, which makes the model",
    "trust": "instead of --recipe: execute the copy of the recipe in the run, which is code",
    "batch_size": "rows that the model sees at once",
    "json": "print JSON, for a program to read",
}
"""What help says of parameters that several commands have."""


_CALLED = {"to": "FORMAT"}
"""What errors call the value of an option, where it is not its name."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command; `place` is the module of its function in this package, which imports nothing heavy, and its name."""

    name: str
    help: str
    place: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    """Values of parameters that are no options."""
    actions: tuple["Command", ...] = ()

    @property
    def function(self) -> Callable[..., int]:
        """What runs it: takes its values and returns the exit status, or takes all words as they are."""
        module, _, name = self.place.partition(":")
        found: Callable[..., int] = getattr(import_module(f".{module}", __package__), name)
        return found

    @property
    def parameters(self) -> dict[str, Parameter]:
        """What it takes, by name; without what depends on a recipe."""
        known = options_of(self.name, {}) if self.takes_words else parameters_of(self.function, places=True)
        return {name: each for name, each in known.items() if name not in self.given}

    @property
    def dash(self) -> str:
        """What joins the words of its options: `_` where they may be parameters of a recipe."""
        return "_" if self.takes_words else "-"

    @property
    def takes_words(self) -> bool:
        """Whether it reads its words itself, as its options depend on a recipe."""
        return self.name in ("fit", "sweep", "resume")

    def run(self, words: Sequence[str]) -> int:
        """Runs it; its exit status."""
        if self.takes_words:
            return self.function(*words)
        if self.actions or "-h" in words or "--help" in words:
            print_line(self.help_text())
            return 0
        return self.function(**self.given, **self.read(words))

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """The values of its parameters."""
        known = self.parameters
        options = {name: each for name, each in known.items() if not each.place}
        try:
            values = list(parse_words(words, options, [*options, "help"], dash="-"))
            given = [*_placed(values, known), *_of_options(values, options)]
            there = {value.name for value in given}
            if missing := [_shown(each) for each in known.values() if each.required and each.name not in there]:
                raise ConfigError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
            for value in given:
                choices = known[value.name].choices
                if choices and value.given not in choices:
                    raise ConfigError(unknown(_CALLED.get(value.name, value.name.upper()), value.given, choices))
            return typed_values(known, given)
        except ConfigError as error:
            raise UsageError(str(error)) from None

    def help_text(self) -> str:
        """What it takes, for people."""
        about = f"{self.help[0].upper()}{self.help[1:]}."
        if self.actions:
            listed = {"actions": [(word, action.help) for word, action in actions(self).items()]}
            return page(f"headrace {self.name} ACTION ...", about, listed)
        known = self.parameters
        said = _SAID | described(self.function)
        places = [each for each in known.values() if each.place]
        options = [each for each in known.values() if not each.place]
        usage = " ".join([f"headrace {self.name}", *map(_in_usage, places), "[--option value ...]"])
        groups = {"": rows(places, said, "-"), "options": rows(options, said, "-")}
        return page(usage, about, groups)


def _placed(values: Sequence[Value], known: Mapping[str, Parameter]) -> list[Value]:
    """Words without a name as the values of the places; one that takes several leaves as many as come after it."""
    left, found = [value for value in values if not value.name], []
    places = [each for each in known.values() if each.place]
    for k, place in enumerate(places):
        count = len(left) - (len(places) - k - 1) if place.repeated else 1
        taken, left = left[: max(count, 1)], left[max(count, 1) :]
        if taken:
            given = [value.given for value in taken] if place.repeated else taken[0].given
            found.append(Value(place.name, given, _shown(place)))
    if left:
        raise no_option_error(left[0], known)
    return found


def _of_options(values: Sequence[Value], options: Mapping[str, Parameter]) -> list[Value]:
    """Values with a name; of an option that may be given several times, all of them in one."""
    found = {value.name: value for value in values if value.name}
    for name in [name for name in found if options[name].repeated]:
        given = [value.given for value in values if value.name == name]
        found[name] = Value(name, given, found[name].where)
    return list(found.values())


def _shown(parameter: Parameter) -> str:
    return parameter.name.upper() if parameter.place else flag_of(parameter.name, "-")


def _in_usage(place: Parameter) -> str:
    name = place.name.upper() + ("..." if place.repeated else "")
    return name if place.required else f"[{name}]"


def rows(parameters: Iterable[Parameter], said: Mapping[str, str], dash: str = "_") -> list[tuple[str, str]]:
    """The lines of help on parameters: how each is given, its type, its description and its default."""
    found = []
    for each in parameters:
        name = each.name.upper() if each.place else flag_of(each.name, dash)
        kind = "" if each.place or each.switch else f" {each.type}"
        if each.name in said:
            found.append((name + kind, said[each.name].rstrip(".") + _default(each)))
    return found


def _default(option: Parameter) -> str:
    """The default of an option, for help."""
    if option.switch:
        return f" (on, unless --no_{option.name})" if option.default else ""
    if option.type.startswith("list["):
        return f" (a list is written as {LIST}{'' if option.default is None else f'; {option.default}'})"
    return "" if option.default in (None, ()) else f" ({option.default})"


def page(usage: str, description: str, groups: Mapping[str, Sequence[tuple[str, str]]], epilog: str = "") -> str:
    """A page of help: in each group, what there is and what is said of it."""
    width = min(110, shutil.get_terminal_size().columns - 2)
    groups = {title: rows for title, rows in groups.items() if rows}
    column = min(24, max(len(name) for rows in groups.values() for name, _ in rows) + 4)
    lines = [f"usage: {usage}", "", *textwrap.wrap(description, width)]
    for title, rows in groups.items():
        lines += ["", *([f"{title}:"] if title else [])]
        for name, said in rows:
            fits = len(name) + 4 <= column
            lines += [] if fits else [f"  {name}"]
            first = f"  {name}".ljust(column) if fits else " " * column
            lines += textwrap.wrap(said, width, initial_indent=first, subsequent_indent=" " * column) or [first]
    return "\n".join([*lines, *(["", *textwrap.wrap(epilog, width)] if epilog else [])])


COMMANDS: Mapping[str, Sequence[Command]] = {
    "train": (
        Command("fit", "trains a recipe, with one worker or several", "fit:fit"),
        Command("sweep", "trains a recipe with each combination of some values", "sweep:sweep"),
        Command("resume", "goes on with a run from where it stands", "fit:resume"),
        Command("rehearse", "a recipe on virtual workers, by one strategy after the other", "rehearse:rehearse"),
        Command("new", "starts a recipe that works, with a test", "prepare:new"),
    ),
    "use what was trained": (
        Command(
            "validate", "scores of a run's weights on the validation data, or on a file", "use:score", {"name": "val"}
        ),
        Command("test", "scores of a run's weights on the test data, or on a file", "use:score", {"name": "test"}),
        Command("predict", "what the model says of every row of a file", "use:predict"),
        Command(
            "checkpoint",
            "what a run has saved: list, verify, export",
            actions=(
                Command("checkpoint list", "the checkpoints of a run", "use:list_checkpoints"),
                Command("checkpoint verify", "whether every byte of them is as it was written", "use:verify"),
                Command("checkpoint export", "the weights of one, for other programs", "use:export"),
            ),
        ),
    ),
    "look": (
        Command("runs", "the runs in a directory", "look:runs"),
        Command("report", "a run as one page, report.html, and pictures", "look:report"),
        Command("doctor", "versions, devices and space, and what is missing", "doctor:doctor"),
    ),
}
"""By what they are for."""


def commands() -> dict[str, Command]:
    """Every command by its name."""
    return {command.name: command for group in COMMANDS.values() for command in group}


def actions(command: Command) -> dict[str, Command]:
    """The actions of a command by name."""
    return {action.name.split()[1]: action for action in command.actions}


def one_of(what: str, words: Sequence[str], known: Mapping[str, Command]) -> Command:
    """The command or action that the first word names."""
    if words and words[0].startswith("-") and what == "command":
        raise UsageError(unknown("option", words[0], ["--help", "--version"]))
    if not words or words[0].startswith("-"):
        raise UsageError(f"{what} is missing: {', '.join(known)}.")
    if words[0] not in known:
        raise UsageError(unknown(what, words[0], known))
    return known[words[0]]


def overview() -> str:
    """The help of `headrace` itself: all commands."""
    listed = {group: [(each.name, each.help) for each in each_of] for group, each_of in COMMANDS.items()}
    return page(
        "headrace COMMAND ...", "Trains PyTorch models.", listed, "headrace COMMAND --help says what a command takes."
    )
