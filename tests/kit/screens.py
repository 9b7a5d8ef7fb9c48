"""A terminal for tests: the environment of a user, and a screen that knows a few escape sequences."""

import os
import re

import headrace

_UNSET = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI", "COLUMNS", "LINES")
_TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|(.)", re.DOTALL)


def environment() -> dict[str, str]:
    """The environment of a user: no variable forces colours on or off, or sets the width of the terminal."""
    source = os.path.dirname(os.path.dirname(headrace.__file__))
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}


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
