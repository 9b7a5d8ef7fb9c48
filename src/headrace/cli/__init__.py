"""The command line: `headrace COMMAND ...`.

Exit status: 0 if all is well, 1 if something was found wrong or could not be done, 2 for a command that makes no sense,
130 after Ctrl-C, and 143 for a training that was asked to end.
"""

import json
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields

from ..errors import HeadraceError
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
        _tell(words, error, _as_flags(str(error), parser), "headrace: ")
        return 1
    except KeyboardInterrupt:
        put("headrace: interrupted\n", sys.stderr)
        return INTERRUPTED


def _tell(words: Sequence[str], error: HeadraceError, said: str, before: str = "") -> None:
    document = {"error": said, "kind": type(error).__name__}
    put(f"{json.dumps(document) if '--json' in words else before + said}\n", sys.stderr)


def _as_flags(said: str, parser: Parser) -> str:
    """What is said of arguments of Python, `keep= is ...`, in the words of a command that has them as options."""
    flags = {option.name: f"--{option.name}" for option in fields(Options)} if parser.takes_all else {}
    flags |= {flag[2:].replace("-", "_"): flag for flag in parser.flags()}

    def flag(found: re.Match[str]) -> str:
        name, value, after = found.groups()
        return found[0] if name not in flags else flags[name] + ("=" if after in ("'", '"') and not value else "")

    said = re.sub(r"\b(\w+)=True, (?=--\1\b)", "", said)  # where both are said
    said = re.sub(r": columns= says which are read[^.]*", "", said)  # which no command has
    return re.sub(r"(?<![\w.,:(\[{'\"-])([a-z_]+)=(True\b)?(?=([\s.,'\"]|$))", flag, said)
