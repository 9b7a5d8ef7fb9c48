"""The command line: `headrace COMMAND ...`.

Exit status: 0 if all is well, 1 if something was found wrong or could not be done, 2 for a command that makes no sense,
130 after Ctrl-C, and 143 for a training that was asked to end.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields

from ...errors import ConfigError, HeadraceError
from .options import Options
from .parser import Parser, UsageError, find, overview
from .say import put

INTERRUPTED, PREEMPTED = 130, 143
"""The exit status after Ctrl-C, and after a signal that asks for the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit status."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"headrace: warning: {message}\n"
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    finally:
        warnings.formatwarning = before
        for file in (sys.stdout, sys.stderr):
            put("", file)


def _run(words: Sequence[str]) -> int:
    parser = overview()
    try:
        if not words or words[0].startswith("-"):
            parser.parse_args(words)
            parser.print_help()
            return 0
        parser, run = find(words[0])
        return run(parser.parse_args(words[1:]))
    except UsageError as error:
        _tell(words, error, str(error))
        return 2
    except HeadraceError as error:
        _tell(words, error, _in_flags(error, parser), "headrace: ")
        return 1
    except KeyboardInterrupt:
        put("headrace: interrupted\n", sys.stderr)
        return INTERRUPTED


def _tell(words: Sequence[str], error: HeadraceError, said: str, before: str = "") -> None:
    document = {"error": said, "kind": type(error).__name__}
    put(f"{json.dumps(document) if '--json' in words else before + said}\n", sys.stderr)


def _in_flags(error: HeadraceError, parser: Parser) -> str:
    """What is said of an argument of Python, `keep= is ...`, with the flag that a command has for it."""
    flags = {option.name: f"--{option.name}" for option in fields(Options)} if parser.takes_all else {}
    flags |= {flag[2:].replace("-", "_"): flag for flag in parser.flags()}
    name = error.argument if isinstance(error, ConfigError) else ""
    if name not in flags:
        return str(error)
    return f" {error}".replace(f" {name}= ", f" {flags[name]} ").replace(f" {name}=", f" {flags[name]}=")[1:]
