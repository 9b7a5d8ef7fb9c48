"""One block of text, whole sequences of it, as fields; what cannot be read is found, named and left out."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.fields import Field
from ...data.ragged import Ragged
from .explain import Problem, explain_line, explain_order, explain_rows, id_at
from .items import Words, dense, ids, sparse
from .layout import Layout
from .lines import BLANK, FIRST, NEWLINE, PAD, PIPE, LineError, Lines, padded, structure, zones
from .numbers import Bytes, Places


@dataclass
class Parsed:
    """What a block came to. With a problem and without skipping, there are no fields."""

    fields: dict[str, Field]
    lines: int
    """Newlines in the block."""
    sequences: int = 0
    dropped: int = 0
    problem: Problem | None = None
    """The first one, at a line and a byte of this block."""
    ids: tuple[int, int] | None = None
    """Of the first and the last sequence, where sequences have ids."""
    id_at: int = 0
    """The byte at which the first of them stands."""
    keeps_first: bool = True
    """Whether the first row is the first sequence."""
    seen: list[str] = field(default_factory=list)
    """The streams that have a field."""

    @property
    def rows(self) -> int:
        return self.sequences - self.dropped


@dataclass
class Sequences:
    """Which sequence each line belongs to, -1 for none, and the first line of each."""

    of_line: Places
    firsts: Places
    ids: NDArray[np.uint64] | None = None
    """Of each sequence, where they have ids."""
    with_id: Places | None = None
    """The lines that have one."""

    @property
    def count(self) -> int:
        return len(self.firsts)


@dataclass
class Content:
    """A block whose lines can all be read, but for those that were blanked."""

    lines: Lines
    sequences: Sequences
    items: list[Any]
    """Of each column."""
    owners: list[Places]
    """Of each column, the sequence of each item."""
    fields: list[Places]
    """Of each column, which of the fields it is."""


def parse_block(block: bytes, layout: Layout, has_ids: bool, *, skip: bool) -> Parsed:
    """Reads a block. `skip` drops sequences that are bad; otherwise the first problem is all that is told."""
    text = padded(block)
    damaged = np.zeros(int(np.count_nonzero(text == ord("\n"))), bool)
    lost = damaged.copy()
    while True:
        try:
            content = _read(text, layout, has_ids, damaged)
            break
        except LineError as trouble:
            if lost[trouble.lines].any():
                raise AssertionError("a line that was blanked is at fault once more") from trouble
            if not skip:  # whatever comes after the first fault is not told
                trouble.lines = trouble.lines[:1]
                text, damaged, lost = _until(text, int(trouble.lines[0]), damaged, lost)
            _blank(text, trouble, damaged, lost)
    found = content.sequences
    bad, problem = _judge(block, content, layout, has_ids, damaged, lost)
    seen = [column.name for column, fields in zip(layout.columns, content.fields, strict=True) if len(fields)]
    if damaged.any():  # what is on those lines is not known
        seen = [column.name for column in layout.columns]
    parsed = Parsed({}, block.count(b"\n"), found.count, int(bad.sum()), problem, seen=seen)
    if found.ids is not None and found.count:
        parsed.ids, parsed.id_at = (int(found.ids[0]), int(found.ids[-1])), id_at(block)
    if problem is not None:
        parsed.keeps_first = bool(found.count) and not bad[0]
        if not skip:
            return parsed
        content = _without(text, layout, found, bad)
    parsed.fields = _fields(content, layout)
    return parsed


def _read(text: Bytes, layout: Layout, has_ids: bool, damaged: Any, given: Sequences | None = None) -> Content:
    """Everything on the lines; raises LineError at the first kind of fault, with all lines that have it."""
    lines = structure(text, layout)
    dense_columns = sum(not column.sparse for column in layout.columns)
    words = Words(lines, zones(lines, layout), FIRST + dense_columns)
    sequences = given or _sequences(lines, has_ids, damaged)
    content = Content(lines, sequences, [], [], [])
    bad: list[Places] = []
    for k, column in enumerate(layout.columns, FIRST):
        fields = np.flatnonzero(lines.code == k)
        at = lines.line[fields]
        owner = sequences.of_line[at]
        if len(owner) and owner[0] < 0:
            raise LineError(at[owner < 0], lost=True)
        try:
            if len(twice := at[1:][at[1:] == at[:-1]]):
                raise LineError(twice)
            content.items.append((sparse if column.sparse else dense)(column, lines, fields, words, k))
        except LineError as error:
            bad.append(error.lines)
        content.owners.append(owner)
        content.fields.append(fields)
    if bad:
        raise LineError(np.concatenate(bad))
    return content


def _sequences(lines: Lines, has_ids: bool, damaged: Any) -> Sequences:
    """A sequence is the lines of one id, and those without an id that follow; or a line, in a file without ids.

    A line without fields is part of none, and one whose fields were blanked is what it was before.
    """
    count = len(lines.starts)
    at, found = ids(lines)
    if not has_ids:
        if len(at):
            raise LineError(at, lost=True)
        of_line = damaged.copy()
        of_line[lines.line[~lines.comment]] = True
        firsts = np.flatnonzero(of_line)
        places = np.full(count, -1)
        places[firsts] = np.arange(len(firsts))
        return Sequences(places, firsts)
    if len(bare := at[(lines.heads[at] == lines.newlines[at]) & ~damaged[at]]):
        raise LineError(bare)
    begins = np.ones(len(at), bool)
    begins[1:] = found[1:] != found[:-1]
    firsts = at[begins]
    marks = np.zeros(count, np.int64)
    marks[firsts] = 1
    return Sequences(np.cumsum(marks) - 1, firsts, found[begins], at)


def _until(text: Bytes, line: int, damaged: Any, lost: Any) -> tuple[Bytes, Any, Any]:
    """A block up to the end of a line, and what is known of its lines."""
    stop = int(np.flatnonzero(text == NEWLINE)[line]) + 1
    return np.append(text[:stop], np.full(PAD, BLANK, np.uint8)), damaged[: line + 1].copy(), lost[: line + 1].copy()


def _blank(text: Bytes, trouble: LineError, damaged: Any, lost: Any) -> None:
    """Takes lines out of the text so that the others can be read: their fields, or, where they are lost, all."""
    newlines = np.flatnonzero(text == NEWLINE)
    starts = np.append(1, newlines[:-1] + 1)[trouble.lines]
    stops = newlines[trouble.lines]
    if not trouble.lost:
        pipes = np.append(np.flatnonzero(text == PIPE), len(text))
        starts = np.minimum(pipes[np.searchsorted(pipes, starts)], stops)
    turns = np.zeros(len(text), np.int8)
    turns[starts] += 1
    turns[stops] -= 1
    text[np.cumsum(turns, dtype=np.int8) > 0] = BLANK
    damaged[trouble.lines] = True
    lost[trouble.lines] |= trouble.lost


def _judge(
    block: bytes, content: Content, layout: Layout, has_ids: bool, damaged: Any, lost: Any
) -> tuple[NDArray[np.bool_], Problem | None]:
    """Which sequences are bad, and the first problem."""
    found, lines = content.sequences, content.lines
    bad, problems = np.zeros(found.count, bool), []
    if damaged.any():
        bad[_touched(content, damaged, lost)] = True
        problems.append(_first_line(block, lines, layout, has_ids, int(np.argmax(damaged))))
    whole = ~bad
    if found.ids is not None:
        falls = np.flatnonzero(found.ids[1:] <= found.ids[:-1]) + 1
        if len(falls):
            bad[falls] = True
            problems.append(explain_order(block, lines, found.firsts, found.ids, int(falls[0])))
    for column, owner, fields in zip(layout.columns, content.owners, content.fields, strict=True):
        if column.stream.sequence or (len(owner) == found.count and bool((owner[1:] > owner[:-1]).all())):
            continue
        counts = np.bincount(owner, minlength=found.count)
        bad |= counts != 1
        if len(wrong := np.flatnonzero((counts != 1) & whole)):
            worst = int(wrong[0])
            problems.append(explain_rows(block, lines, column, found, fields[owner == worst], worst))
    return bad, min(problems, key=lambda problem: (problem.line, problem.offset), default=None)


def _touched(content: Content, damaged: Any, lost: Any) -> Places:
    """The sequences that may have lost a line: of one that has no id that can be read, that before and that after."""
    of_line = content.sequences.of_line
    touched = [of_line[np.flatnonzero(damaged)]]
    if lost.any() and content.sequences.with_id is not None:
        held = damaged & ~lost
        held[content.lines.line[~content.lines.comment]] = True
        held[content.sequences.with_id] = True
        following = np.append(np.flatnonzero(held), len(of_line))
        after = following[np.searchsorted(following, np.flatnonzero(lost))]
        touched.append(of_line[after[after < len(of_line)]])
    found = np.concatenate(touched)
    return found[found >= 0]


def _first_line(block: bytes, lines: Lines, layout: Layout, has_ids: bool, line: int) -> Problem:
    start = int(lines.starts[line]) - 1
    content = block[start : int(lines.newlines[line]) - 1]
    return explain_line(content, layout, has_ids).moved(line, start)


def _without(text: Bytes, layout: Layout, found: Sequences, bad: NDArray[np.bool_]) -> Content:
    """The block without the sequences that are bad."""
    drop = (found.of_line < 0) | bad[found.of_line] if len(bad) else np.ones(len(found.of_line), bool)
    _blank(text, LineError(np.flatnonzero(drop), lost=True), drop.copy(), drop.copy())
    places = np.cumsum(~bad) - 1
    kept = np.flatnonzero(~bad)
    of_line = np.full(len(found.of_line), -1)
    of_line[~drop] = places[found.of_line[~drop]]
    given = Sequences(of_line, found.firsts[kept])
    return _read(text, layout, given.ids is not None, drop, given)


def _fields(content: Content, layout: Layout) -> dict[str, Field]:
    """The rows of every stream."""
    fields: dict[str, Field] = {}
    for column, items, owner in zip(layout.columns, content.items, content.owners, strict=True):
        if column.stream.sequence:
            bounds = np.zeros(content.sequences.count + 1, np.int64)
            np.cumsum(np.bincount(owner, minlength=content.sequences.count), out=bounds[1:])
            items = Ragged(items, torch.from_numpy(bounds))
        fields[column.name] = items
    return fields
