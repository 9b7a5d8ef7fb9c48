"""The commands that there are, and the parser of each; only the module of the one asked for is imported."""

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ... import __version__
from ...errors import ConfigError, unknown

Run = Callable[[argparse.Namespace], int]


class UsageError(ConfigError):
    """A command line that makes no sense; the message says of which command."""

    def __init__(self, program: str, said: str) -> None:
        super().__init__(f"{program}: {said} ({program} --help lists what there is.)")


class Command(NamedTuple):
    """A command: its module of this package has `add(parser)`, which imports nothing heavy, and `run(options)`."""

    help: str
    module: str


COMMANDS: Mapping[str, Mapping[str, Command]] = {
    "train": {
        "fit": Command("trains a recipe, with one worker or several", "fit"),
        "resume": Command("goes on with a run from where it stands", "resume"),
        "rehearse": Command("a recipe on virtual workers, by one strategy after the other", "rehearse"),
        "new": Command("starts a recipe that works, with a test", "new"),
    },
    "use what was trained": {
        "validate": Command("scores of a run's weights on the validation data, or on a file", "score"),
        "test": Command("scores of a run's weights on the test data, or on a file", "score"),
        "predict": Command("what the model says of every row of a file", "predict"),
        "checkpoint": Command("what a run has saved: list, verify, export", "checkpoint"),
    },
    "look": {
        "runs": Command("the runs in a directory", "runs"),
        "report": Command("a run as one page, report.html, and pictures", "report"),
        "board": Command("runs in TensorBoard", "board"),
        "doctor": Command("versions, devices, threads, disk, and what is slow", "doctor"),
    },
    "prepare": {
        "convert": Command("data files into a file of another kind", "convert"),
        "completion": Command("what makes a shell complete these commands", "completion"),
    },
}
"""By what they are for."""


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, `--a-b` for `--a_b` and the other way round, and names the nearest of what there is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.takes_all = False
        """Whether the command reads its words itself: they are `options.words`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.takes_all:
            return argparse.Namespace(words=list(args or ())), []
        return super().parse_known_args([self._spelled(word) for word in args], namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            flags = [word.partition("=")[0] for word in rest if word.startswith("-")]
            self.error(unknown("option", flags[0], self.flags()) if flags else f"{' '.join(rest)!r} is too much.")
        return found

    def flags(self) -> list[str]:
        """Every option, as it is written in the help; those of actions, too."""
        parts = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        inside = [flag for choices in parts for parser in choices.values() for flag in parser.flags()]
        own = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        return list(dict.fromkeys(own + inside))

    def _spelled(self, word: str) -> str:
        flag, equals, value = word.partition("=")
        same = {known.replace("_", "-"): known for known in self.flags()}
        return same.get(flag.replace("_", "-"), flag) + equals + value if flag.startswith("--") else word

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, unknown(str(action.metavar or action.dest), value, action.choices))

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message.removeprefix("argument "))


def overview() -> Parser:
    """The parser of `headrace` itself, whose help lists the commands."""
    lines = [
        line
        for group, commands in COMMANDS.items()
        for line in (f"\n{group}:", *(f"  {name:<12}{command.help}" for name, command in commands.items()))
    ]
    more = "\n\nheadrace COMMAND --help says what a command takes."
    parser = Parser(
        prog="headrace",
        usage="headrace COMMAND ...",
        description="Trains PyTorch models.\n" + "\n".join(lines) + more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    return parser


def commands() -> dict[str, Command]:
    """Every command by its name."""
    return {name: command for group in COMMANDS.values() for name, command in group.items()}


def find(name: str) -> tuple[Parser, Run]:
    """The parser of a command, and what runs it with the options that were parsed."""
    known = commands()
    if name not in known:
        overview().error(unknown("command", name, known))
    module = import_module(f".{known[name].module}", __package__)
    said = known[name].help
    parser = Parser(prog=f"headrace {name}", description=f"{said[0].upper()}{said[1:]}.")
    module.add(parser)
    parser.set_defaults(command=name)
    run: Run = module.run
    return parser, run


def count(text: str) -> int:
    """The value of an option: a whole number greater than 0."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number greater than 0, got {text!r}.")
    return int(text)


def file_of(*endings: str) -> Callable[[str], Path]:
    """The value of an option: a file of one of these kinds."""

    def path(text: str) -> Path:
        if (ending := Path(text).suffix.lower()) not in endings:
            raise argparse.ArgumentTypeError(f"{text}: {unknown('ending', ending, endings)}")
        return Path(text)

    return path


def add_json(parser: argparse.ArgumentParser) -> None:
    """For what a program may read."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")
