"""A terminal for tests: a user's environment, a pseudo-terminal, and a screen that knows a few escape sequences."""

import os
import re
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace
from kit import forked

LIMIT_S = 200.0
_UNSET = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI", "COLUMNS", "LINES")
_TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|(.)", re.DOTALL)


def environment() -> dict[str, str]:
    """The environment of a user: no variable forces colours on or off, or sets the width of the terminal."""
    source = os.path.dirname(os.path.dirname(headrace.__file__))
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}


@contextmanager
def terminal(function: Callable[..., None], at: Path, *arguments: Any, columns: int) -> Iterator[Any]:
    """Calls a function in a process of its own that has a terminal; yields the terminal as pexpect sees it.

    The function gets the terminal's name before its other arguments and calls `sit_down(name)` first. What it prints
    elsewhere is written into the directory `at`.
    """
    from pexpect.fdpexpect import fdspawn

    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (24, columns))
    with fdspawn(ours, encoding="utf-8", timeout=LIMIT_S) as seen:
        try:
            with forked.start(function, at, os.ttyname(theirs), *arguments) as child:
                child.until("seated")
                os.close(theirs)
                seen.process = child
                yield seen
        except BaseException:
            print(child.output)
            raise


def sit_down(name: str) -> None:
    """Gives this process the environment of a user, and the terminal as its input and its output."""
    for variable in _UNSET:
        os.environ.pop(variable, None)
    os.environ["TERM"] = "xterm-256color"
    opened = os.open(name, os.O_RDWR)  # which a process that leads a session has from then on
    for number in range(3):
        os.dup2(opened, number)
    os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False, encoding="utf-8") for number in (1, 2))
    forked.tell("seated")


def screen(sent: str, columns: int) -> list[str]:
    """The lines as they stand in the end, without trailing blanks."""
    lines, row, column = [[" "] * columns], 0, 0
    for token in _TOKEN.finditer(sent):
        number, letter, character = token.groups()
        count = int(number) if number and number.isdigit() else 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0  # as a terminal is sent it: \r\n
        elif letter == "A":
            row = max(0, row - count)
        elif letter == "B":
            row += count
        elif letter == "K":
            start, stop = {"2": (0, columns), "1": (0, column + 1)}.get(number, (column, columns))
            lines[row][start:stop] = [" "] * (stop - start)
        elif letter in ("m", "h", "l") or character is None:
            continue  # colours and modes
        elif letter:
            raise NotImplementedError(f"the sequence {token[0]!r}")
        else:
            if column == columns:  # only now: the last column may be written without going on
                row, column = row + 1, 0
            lines += [[" "] * columns for _ in range(row + 1 - len(lines))]
            lines[row][column] = character
            column += 1
        lines += [[" "] * columns for _ in range(row + 1 - len(lines))]
    return ["".join(line).rstrip() for line in lines]
