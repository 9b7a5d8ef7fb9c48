"""What commands print: JSON for programs, lines and tables for people."""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

from ...store.document import encoded


def print_result(as_json: bool, document: Any, text: str) -> None:
    """The result of a command: the document for a program, the text for people."""
    print_line(json.dumps(encoded(document), allow_nan=False) if as_json else text)


def print_line(line: str, file: TextIO | None = None) -> None:
    """A line, at once."""
    print_text(f"{line}\n", file)


def print_text(text: str, file: TextIO | None = None) -> None:
    """Writes text at once; if the reader, such as `head`, has ended, the command goes on."""
    file = file or sys.stdout
    try:
        file.write(text)
        file.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines, columns aligned: the first to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:{'<' if k == 0 else '>'}{widths[k]}}" for k, cell in enumerate(line)).rstrip()
        for line in lines
    )


def numbers(row: Mapping[str, Any]) -> list[str]:
    """A line for every number of a report, by its key. The term of a loss that has only one is not repeated."""
    terms = Counter(key.rpartition("/")[0] for key in row)
    shown = {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float)
        and (not key.rpartition("/")[0].endswith("/loss") or terms[key.rpartition("/")[0]] > 1)
    }
    width = max(map(len, shown), default=0)
    return [f"{key:{width}}  {value if isinstance(value, int) else f'{value:.4g}'}" for key, value in shown.items()]


def iso_time(seconds: float) -> str:
    """A time since the epoch in ISO 8601, where this machine is, with what that is ahead of UTC."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def short_time(iso: str) -> str:
    """A time, for people who are there: date, hour and minute."""
    return iso[:16].replace("T", " ")
