"""The command line: `headrace COMMAND ...`.

Exit status: 0 if all is well, 1 if something was found wrong or could not be done, 2 for a command that makes no sense,
130 after Ctrl-C, and 143 for a training that was asked to end.
"""

import json
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from ...errors import ConfigError, HeadraceError
from ..parameters import OF_A_RUN, flag_of
from .commands import make_app
from .options import INTERRUPTED, PREEMPTED, UsageError
from .output import print_line, print_text


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


def _run(words: list[str]) -> int:
    app = None
    try:
        app = make_app(words)
        return int(app(words) or 0)
    except (CycloptsError, UsageError) as error:
        program = " ".join(["headrace", *(app.parse_commands(words)[0] if app else words[:1])])
        message = " ".join(str(error).split())
        _print_error(words, error, f"{program}: {message} ({program} --help lists what there is.)")
        return 2
    except HeadraceError as error:
        _print_error(words, error, _in_flags(error, words, app), "headrace: ")
        return 1
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != PREEMPTED:
            raise
        print_line("headrace: interrupted", sys.stderr)  # where the training is saved has been printed
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else PREEMPTED


def _print_error(words: Sequence[str], error: Exception, message: str, before: str = "") -> None:
    document = {"error": message, "kind": type(error).__name__}
    print_line(json.dumps(document) if "--json" in words else before + message, sys.stderr)


def _in_flags(error: HeadraceError, words: list[str], app: App | None) -> str:
    """The message of an error, with an argument of Python, `keep= is ...`, named as the option of the command."""
    name = error.argument if isinstance(error, ConfigError) else ""
    option = next((option for option, of_run in OF_A_RUN.items() if of_run == name), name)
    command = app.parse_commands(words)[1][-1] if app and name else None
    if command is None or option not in {each.field_info.name for each in command.assemble_argument_collection()}:
        return str(error)
    flag = flag_of(option)
    return f" {error}".replace(f" {name}= ", f" {flag} ").replace(f" {name}=", f" {flag}=")[1:]
