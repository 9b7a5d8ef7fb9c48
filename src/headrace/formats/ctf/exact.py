"""A block of text line by line: what is wrong on which line, and the rows of the sequences that can be read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...errors import SourceError
from .fast import Parsed, is_utf8, read_block
from .layout import Column, Layout
from .numbers import INTEGER, LONGEST, value_of
from .text import id_of

WORD = re.compile(rb"[^ \t]+")
NAME = re.compile(rb"[^ \t]*")
PAIR = re.compile(rb"([^:]+):([^:]+)")
SHOWN = 40
SKIP = 'or drop such sequences with bad_rows="skip".'
Fields = list[tuple[int, bytes, bytes]]
"""The fields of a line but for comments: where the `|` is, the name, and what follows it."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the line and the byte, both from 0 and from the start of what was read, and a stream."""

    offset: int
    text: str
    advice: str
    stream: str | None = None
    line: int = 0

    def moved(self, lines: int, offset: int) -> "Problem":
        """The same, seen from so many lines and bytes before."""
        return replace(self, line=self.line + lines, offset=self.offset + offset)

    def said(self, path: str) -> str:
        """The first sentence of the error. SequenceLines count from 1, bytes from 0."""
        of = f"stream {self.stream!r} of " if self.stream is not None else ""
        return f"{of}{path}, line {self.line + 1} (byte {self.offset}): {self.text}."

    def error(self, path: str) -> SourceError:
        return SourceError(f"{self.said(path)}\n  {self.advice}")


def shown(token: bytes) -> str:
    """A token of a file as messages show it: short, and without control characters."""
    cut = token[:SHOWN]
    text = cut.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{text}{'...' if len(token) > SHOWN else ''}'"


def fields_met(text: bytes, most: int = 20) -> list[str]:
    """The names of the fields in a text, sorted: some of them, if there are many."""
    found = {match.group(1) for match in re.finditer(rb"\|([^\s|#][^\s|]*)", text[: 1 << 20])}
    return [shown(name)[1:-1] for name in sorted(found)[:most]] + ["..."] * (len(found) > most)


@dataclass
class SequenceLines:
    """The lines of one sequence."""

    id: int
    line: int
    """The first of them, and the byte at which it begins."""
    offset: int
    bad: bool = False
    lines: list[bytes] = field(default_factory=list)
    items: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """By field, the line and the byte of each item."""


def read_exactly(block: bytes, layout: Layout, has_ids: bool, last: int = -1) -> tuple[Parsed, Problem | None]:
    """The sequences of a block that can be read, and the first thing that is wrong, at a line and a byte of it.

    `last` is the id of the sequence before the block.
    """
    sequences, problems = _sequences(block, layout, has_ids)
    seen = [c.name for c in layout.columns if problems or any(c.field in one.items for one in sequences)]
    for one, before in zip(sequences, [last, *(each.id for each in sequences)], strict=False):
        found = list(_row_problems(one, layout, has_ids)) if not one.bad else []
        if has_ids and one.id <= before:
            found.insert(0, _order_problem(one, before))
        problems += found
        one.bad = one.bad or bool(found)
    good = [one for one in sequences if not one.bad]
    parsed = read_block(_joined(good, has_ids), layout, has_ids, one_by_one=True)
    assert parsed is not None, "a line in which nothing is wrong cannot be read"
    ids = (sequences[0].id, sequences[-1].id) if has_ids and sequences else None
    parsed = replace(parsed, lines=block.count(b"\n"), sequences=len(sequences), ids=ids, seen=seen)
    parsed.dropped = len(sequences) - len(good)
    return parsed, min(problems, key=lambda problem: (problem.line, problem.offset), default=None)


def _sequences(block: bytes, layout: Layout, has_ids: bool) -> tuple[list[SequenceLines], list[Problem]]:
    """The sequences of a block, and what is wrong with single lines. Of these, the sequences that hold them are bad.

    A line whose id cannot be read may belong to the sequence before it or to that after it, so that both are.
    """
    sequences, problems = list[SequenceLines](), list[Problem]()
    offset, hidden = 0, False
    for number, line in enumerate(block.split(b"\n")):
        start, offset = offset, offset + len(line) + 1
        line = line.removesuffix(b"\r")
        id, fields = id_of(line), list(_fields(line))
        problem = next(_problems(line, fields, layout, has_ids), None)
        if has_ids and problem is None and id == -1 and fields and not sequences:
            problem = _NOTHING_BEFORE
        if problem is not None:
            problems.append(problem.moved(number, start))
        elif id == -1 and not fields:
            continue
        if has_ids and (id is None or problem is _NOTHING_BEFORE):
            hidden = True
            if sequences:
                sequences[-1].bad = True
            continue
        if not has_ids or (id != -1 and (not sequences or sequences[-1].id != id)):
            sequences.append(SequenceLines(-1 if id is None else id, number, start))
        if not sequences:
            continue
        now = sequences[-1]
        now.bad, hidden = now.bad or hidden or problem is not None, False
        now.lines.append(line)
        for at, name, _ in fields:
            now.items.setdefault(name, []).append((number, start + at))
    return sequences, problems


def _joined(sequences: list[SequenceLines], has_ids: bool) -> bytes:
    """The lines of sequences, with new ids: two that had the same one may have come to lie together."""
    numbered = ((b"%d" % k if has_ids else b"", line) for k, one in enumerate(sequences) for line in one.lines)
    return b"".join(b"%s|%s\n" % (id, line.partition(b"|")[2]) for id, line in numbered)


def _fields(line: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    head, *fields = line.split(b"|")
    at = len(head)
    for content in fields:
        if not content.startswith(b"#"):
            name = NAME.match(content)[0]  # type: ignore[index]
            yield at, name, content[len(name) :]
        at += len(content) + 1


# --- what is wrong ----------------------------------------------------------------------------------------

_NOTHING_BEFORE = Problem(
    0,
    "this line has no id, and there is no sequence before it that it could go on with",
    f"Give every sequence an id, {SKIP}",
)


def _order_problem(one: SequenceLines, before: int) -> Problem:
    """A sequence whose id is not larger than the one before."""
    return Problem(
        one.offset + WORD.search(one.lines[0]).start(),  # type: ignore[union-attr]
        f"sequence {one.id} begins after sequence {before}: expected ids that rise, since the lines of a sequence "
        "lie together",
        "Sort the lines by id, number the sequences anew, or leave the ids out where each line is a sequence; files "
        f"that were joined are better read one by one. {SKIP.capitalize()}",
        line=one.line,
    )


def _row_problems(one: SequenceLines, layout: Layout, has_ids: bool) -> Iterator[Problem]:
    """Streams with one item for each sequence, which this sequence has not, or more than once."""
    which = f"sequence {one.id}" if has_ids else "this line"
    for column in layout.columns:
        items, name = one.items.get(column.field, []), column.field.decode()
        if column.stream.sequence or len(items) == 1:
            continue
        if items:
            line, offset = items[1]
            first = f"{line - items[0][0]} above" if line > items[0][0] else "this one"
            text = f"{which} has {len(items)} items of '{name}', the first on line {first}; expected one"
            advice = f"Declare it with sequence=True if it has items of its own, {SKIP}"
        else:
            line, offset = one.line, one.offset
            met = ", ".join(fields_met(b"\n".join(one.lines))) or "none"
            text = f"{which} has no '{name}', expected one; it has: {met}"
            advice = f"Say fields={{{column.name!r}: ...}} if it is called otherwise in the file, complete the line, "
            advice += SKIP
        yield Problem(offset, text, advice, column.name, line)


def _problems(line: bytes, fields: Fields, layout: Layout, has_ids: bool) -> Iterator[Problem]:
    """Everything wrong on a line, from left to right."""
    head, pipe, _ = line.partition(b"|")
    yield from _head_problems(list(WORD.finditer(head)), has_ids, bool(pipe))
    known = {column.field: column for column in layout.columns}
    seen: set[bytes] = set()
    for at, name, content in fields:
        yield from (problem.moved(0, at + 1) for problem in _name_problems(name, seen))
        if column := known.get(name):
            seen.add(name)
            values = _sparse_problems if column.sparse else _dense_problems
            for problem in values(column, content):
                yield replace(problem, stream=column.name).moved(0, at + 1 + len(name))


def _head_problems(words: list[re.Match[bytes]], has_ids: bool, fields: bool) -> Iterator[Problem]:
    for k, word in enumerate(words):
        found = shown(word[0])
        if k or id_of(word[0] + b"|") is None:
            what = "'|' and a field" if k else "an id, which is a whole number, or '|' and a field"
            yield Problem(word.start(), f"expected {what}, got {found}", f"Correct the line, {SKIP}")
        elif not has_ids:
            yield Problem(
                word.start(),
                f"expected '|' and a field, got {found}: the first line has no id, so that every line is a sequence",
                f"Give every sequence an id, or none, {SKIP}",
            )
        elif not fields:
            yield Problem(
                word.start(),
                f"sequence {found} has no field on this line",
                "Complete the line (is the file cut short?), write '|#' on it if the sequence is empty, " + SKIP,
            )


def _name_problems(name: bytes, seen: set[bytes]) -> Iterator[Problem]:
    if not name:
        yield Problem(-1, "expected the name of a field after '|'", f"Correct the line, {SKIP}")
    elif not is_utf8(name):
        yield Problem(0, f"expected the name of a field in UTF-8, got {shown(name)}", f"Correct the line, {SKIP}")
    elif name in seen:
        yield Problem(
            0, f"field {shown(name)} is there twice on this line", f"Put its second item on a line of its own, {SKIP}"
        )


def _dense_problems(column: Column, content: bytes) -> Iterator[Problem]:
    words = list(WORD.finditer(content))
    for word in words[: column.size]:
        yield from _number_problems(column, word[0], word.start())
    if len(words) != column.size:
        at = words[column.size].start() if len(words) > column.size else -len(column.field)
        yield Problem(
            at,
            f"expected {column.size} values for shape {column.stream.shape}, got {len(words)}",
            f"Declare the shape that {column.name!r} has, {SKIP}",
        )


def _sparse_problems(column: Column, content: bytes) -> Iterator[Problem]:
    seen: set[int] = set()
    for word in WORD.finditer(content):
        pair = PAIR.fullmatch(word[0])
        if not pair or not INTEGER.fullmatch(pair[1]):
            yield Problem(
                word.start(),
                f"expected index:value, got {shown(word[0])}",
                f"Declare {column.name!r} with layout='dense' if it is, {SKIP}",
            )
            return
        index = int(pair[1]) if len(pair[1]) < LONGEST else column.size
        if not 0 <= index < column.size:
            larger = f"Declare a larger shape for {column.name!r}, " if index > 0 else "Correct the line, "
            yield Problem(
                word.start(),
                f"index {shown(pair[1])[1:-1]} is out of range for shape {column.stream.shape}",
                larger + SKIP,
            )
            return
        if index in seen:
            yield Problem(word.start(), f"index {index} is there twice in this item", f"Add its values up, {SKIP}")
        seen.add(index)
        yield from _number_problems(column, pair[2], word.start() + pair.start(2))


def _number_problems(column: Column, word: bytes, at: int) -> Iterator[Problem]:
    if value_of(word, column.stream.dtype) is None:
        yield Problem(
            at,
            f"expected a number for {column.stream.dtype}, got {shown(word)}",
            f"Correct the line, declare another dtype for {column.name!r}, {SKIP}",
        )
