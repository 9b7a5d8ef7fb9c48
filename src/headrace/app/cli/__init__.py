"""The command line: `headrace COMMAND ...`.

Exit status: 0 if all is well, 1 if something was found wrong or could not be done, 2 for a command that makes no sense,
130 after Ctrl-C, and 143 for a training that was asked to end.
"""

import json
import sys
import warnings
from collections.abc import Sequence

from ... import __version__
from ...errors import ConfigError, HeadraceError
from ..parameters import OF_A_RUN
from .commands import Command, actions, commands, one_of, overview
from .options import INTERRUPTED, UsageError, flag_of
from .output import print_line, print_text

_HELP = (["-h"], ["--help"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit status."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"headrace: warning: {message}\n"
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        warnings.formatwarning = before
        for file in (sys.stdout, sys.stderr):
            print_text("", file)


def _run(words: Sequence[str]) -> int:
    command, program = None, "headrace"
    try:
        if not words or words[:1] in _HELP or words[0] == "--version":
            print_line(f"headrace {__version__}" if words[:1] == ["--version"] else overview())
            return 0
        command, rest = one_of("command", words, commands()), words[1:]
        program = f"headrace {command.name}"
        if command.actions and rest[:1] not in _HELP:
            command, rest = one_of("action", rest, actions(command)), rest[1:]
            program = f"headrace {command.name}"
        return command.run(rest)
    except UsageError as error:
        _print_error(words, error, f"{program}: {error} ({program} --help lists what there is.)")
        return 2
    except HeadraceError as error:
        _print_error(words, error, _in_flags(error, command), "headrace: ")
        return 1
    except KeyboardInterrupt:
        print_line("headrace: interrupted", sys.stderr)
        return INTERRUPTED


def _print_error(words: Sequence[str], error: HeadraceError, message: str, before: str = "") -> None:
    document = {"error": message, "kind": type(error).__name__}
    print_line(json.dumps(document) if "--json" in words else before + message, sys.stderr)


def _in_flags(error: HeadraceError, command: Command | None) -> str:
    """The message of an error, in which an argument of Python, `keep= is ...`, is named as the flag of the command."""
    name = error.argument if isinstance(error, ConfigError) else ""
    option = next((option for option, of_run in OF_A_RUN.items() if of_run == name), name)
    if command is None or option not in command.parameters:
        return str(error)
    flag = flag_of(option, command.dash)
    return f" {error}".replace(f" {name}= ", f" {flag} ").replace(f" {name}=", f" {flag}=")[1:]
