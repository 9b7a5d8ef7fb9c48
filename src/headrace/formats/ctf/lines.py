"""The structure of a block of text: its lines, the fields on them, and which bytes are whose values."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import Layout
from .numbers import Bytes, Places

BLANK, TAB, NEWLINE, RETURN, PIPE, HASH, COLON = b" \t\n\r|#:"
FIRST = 1
"""How the bytes of the first column are marked."""
PAD = 16


class LineError(Exception):
    """Lines that cannot be read, by number; of `lost` ones not even the id."""

    def __init__(self, lines: Places, lost: bool = False) -> None:
        super().__init__(lines)
        self.lines = np.unique(lines)
        self.lost = lost


@dataclass
class Lines:
    """A block with one blank before it, a newline at its end, and blanks after that, as bytes and as positions."""

    text: Bytes
    starts: Places
    newlines: Places
    heads: Places
    """Where the first field of each line begins, or the line ends."""
    pipes: Places
    """Where each field begins, comments among them."""
    stops: Places
    line: Places
    """The line of each field."""
    code: Bytes
    """Of each field: 0 for one that is not read, else its column + FIRST."""
    comment: NDArray[np.bool_]

    def at(self, places: Any) -> Places:
        """The lines of these bytes."""
        found: Places = np.searchsorted(self.newlines, places)
        return found


def padded(block: bytes) -> Bytes:
    """A block as an array that can be written, in which every byte above a blank belongs to a word."""
    ends = block.endswith(b"\n")
    text = np.full(1 + len(block) + (not ends) + PAD, BLANK, np.uint8)
    text[1 : 1 + len(block)] = np.frombuffer(block, np.uint8)
    if not ends:
        text[1 + len(block)] = NEWLINE
    low = np.count_nonzero(text < BLANK)
    if low != np.count_nonzero(text == NEWLINE):
        returns = np.flatnonzero(text == RETURN)
        text[returns[text[returns + 1] == NEWLINE]] = BLANK
        text[text == TAB] = BLANK
        text[(text < BLANK) & (text != NEWLINE)] = 127  # it belongs to a word, and no number has it
    return text


def structure(text: Bytes, layout: Layout) -> Lines:
    """Finds lines and fields; raises LineError on fields without a name that can be read."""
    marks = np.flatnonzero((text == PIPE) | (text == NEWLINE))
    is_pipe = text[marks] == PIPE
    ends = np.flatnonzero(~is_pipe)  # which of the marks end a line
    newlines = marks[ends]
    starts = np.empty_like(newlines)
    starts[0], starts[1:] = 1, newlines[:-1] + 1
    first = np.zeros_like(ends)
    first[1:] = ends[:-1] + 1
    which = np.flatnonzero(is_pipe)
    pipes, stops = marks[which], marks[which + 1]
    line = np.cumsum(~is_pipe)[which]
    code, comment = _names(text, pipes, layout)
    lines = Lines(text, starts, newlines, marks[first], pipes, stops, line, code, comment)
    _check_names(lines)
    return lines


def zones(lines: Lines, layout: Layout) -> Bytes:
    """For every byte, whose value it is part of: a column + FIRST, or 0 for a name, an id and what is not read."""
    count = len(lines.pipes)
    names = np.array([0] * FIRST + [1 + len(column.field) for column in layout.columns])
    begins = lines.pipes + names[lines.code]
    lengths = np.empty(2 * count + 1, np.int64)
    lengths[0:-1:2] = begins
    lengths[2:-1:2] -= lines.stops[:-1]
    lengths[1::2] = lines.stops - begins
    lengths[-1] = len(lines.text) - (lines.stops[-1] if count else 0)
    codes = np.zeros(2 * count + 1, np.uint8)
    codes[1::2] = lines.code
    return np.repeat(codes, lengths)


def spans_of(inside: NDArray[np.bool_]) -> Places:
    """Starts and stops, of shape (n, 2), of the runs of bytes that are inside. The first and last byte never are."""
    return (np.flatnonzero(inside[1:] != inside[:-1]) + 1).reshape(-1, 2)


def _names(text: Bytes, pipes: Places, layout: Layout) -> tuple[Bytes, NDArray[np.bool_]]:
    """The code of each field by its name, eight bytes of which are compared at once."""
    words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))[pipes + 1]
    code = np.zeros(len(pipes), np.uint8)
    for k, column in enumerate(layout.columns, FIRST):
        size = len(column.field)
        if size < 8:
            wanted, mask = int.from_bytes(column.field, "little"), (1 << 8 * size) - 1
            after = (words >> np.uint64(8 * size)).astype(np.uint8)
            same = (words & np.uint64(mask)) == np.uint64(wanted)
            code[same & ((after <= BLANK) | (after == PIPE))] = k
            continue
        found = np.flatnonzero(words == np.uint64(int.from_bytes(column.field[:8], "little")))
        for i in range(8, size):
            found = found[text[pipes[found] + 1 + i] == column.field[i]]
        after = text[pipes[found] + 1 + size]
        code[found[(after <= BLANK) | (after == PIPE)]] = k
    return code, words.astype(np.uint8) == HASH


def _check_names(lines: Lines) -> None:
    """Fields that are not read have a name all the same."""
    others = np.flatnonzero((lines.code == 0) & ~lines.comment)
    after = lines.text[lines.pipes[others] + 1]
    bad = [lines.line[others[(after <= BLANK) | (after == PIPE)]]]
    if lines.text.max() > 127 and len(others):
        high = np.flatnonzero(lines.text > 127)
        places = np.searchsorted(lines.pipes, high, side="right") - 1
        for field in np.intersect1d(places, others).tolist():
            content = lines.text[lines.pipes[field] + 1 : lines.stops[field]].tobytes()
            if not readable(content.split(b" ", 1)[0]):
                bad.append(lines.line[field : field + 1])
    if len(found := np.concatenate(bad)):
        raise LineError(found)


def readable(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
