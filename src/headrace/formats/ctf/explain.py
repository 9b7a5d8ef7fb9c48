"""What is wrong with a line, and where: the slow way, for a line that is known to be bad."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import SourceError
from .layout import Column, Layout
from .lines import Lines, readable
from .numbers import INTEGER, Places, value_of

if TYPE_CHECKING:
    from .block import Sequences

WORD = re.compile(rb"[^ \t]+")
PAIR = re.compile(rb"([^:]+):([^:]+)")
LONGEST = 40
SKIP = 'or drop such sequences with bad_rows="skip".'


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
        """The first sentence of the error. Lines count from 1, bytes from 0."""
        of = f"stream {self.stream!r} of " if self.stream is not None else ""
        return f"{of}{path}, line {self.line + 1} (byte {self.offset}): {self.text}."

    def error(self, path: str) -> SourceError:
        return SourceError(f"{self.said(path)}\n  {self.advice}")


def shown(token: bytes) -> str:
    """What stands in a file, for a message: short, and nothing in it that a terminal obeys."""
    cut = token[:LONGEST]
    text = cut.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{text}{'...' if len(token) > LONGEST else ''}'"


def explain_line(content: bytes, layout: Layout, has_ids: bool) -> Problem:
    """The first thing that is wrong on a line (without its newline) that cannot be read."""
    for problem in _problems(content.removesuffix(b"\r"), layout, has_ids):
        return problem
    return Problem(
        0,
        "this line has no id, and there is no sequence before it that it could go on with",
        f"Give every sequence an id, {SKIP}",
    )


def explain_order(block: bytes, lines: Lines, firsts: Places, ids: Any, worst: int) -> Problem:
    """A sequence whose id is not larger than the one before."""
    line = int(firsts[worst])
    start = int(lines.starts[line]) - 1
    return order_problem(int(ids[worst]), int(ids[worst - 1])).moved(line, start + id_at(block[start:]))


def order_problem(found: int, before: int) -> Problem:
    return Problem(
        0,
        f"sequence {found} begins after sequence {before}: expected ids that rise, since the lines of a sequence "
        "lie together",
        "Sort the lines by id, number the sequences anew, or leave the ids out where each line is a sequence; files "
        f"that were joined are better read one by one. {SKIP.capitalize()}",
    )


def id_at(line: bytes) -> int:
    """Where the id begins in a line that has one."""
    found = WORD.search(line)
    return found.start() if found else 0


def explain_rows(
    block: bytes, lines: Lines, column: Column, sequences: "Sequences", fields: Places, worst: int
) -> Problem:
    """A stream with one item for each sequence, which this sequence has not, or more than once."""
    name, first = column.field.decode(), int(sequences.firsts[worst])
    which = "this line" if sequences.ids is None else f"sequence {int(sequences.ids[worst])}"
    if len(fields):
        line, offset = int(lines.line[fields[1]]), int(lines.pipes[fields[1]]) - 1
        text = f"{which} has {len(fields)} items of '{name}', the first on line {{}}; expected one"
        before = line - int(lines.line[fields[0]])
        text = text.format(f"{before} above" if before else "this one")
        advice = f"Declare it with sequence=True if it has items of its own, {SKIP}"
        return Problem(offset, text, advice, column.name, line)
    start = int(lines.starts[first]) - 1
    stop = len(block) if worst + 1 == sequences.count else int(lines.starts[sequences.firsts[worst + 1]]) - 1
    met = ", ".join(fields_met(block[start:stop])) or "none"
    text = f"{which} has no '{name}', expected one; it has: {met}"
    advice = f"Say fields={{{column.name!r}: ...}} if it is called otherwise in the file, complete the line, {SKIP}"
    return Problem(start, text, advice, column.name, first)


def fields_met(text: bytes, most: int = 20) -> list[str]:
    """The names of the fields in a text, sorted: some of them, if there are many."""
    found = {match.group(1) for match in re.finditer(rb"\|([^\s|#][^\s|]*)", text[: 1 << 20])}
    return [shown(name)[1:-1] for name in sorted(found)[:most]] + ["..."] * (len(found) > most)


def _problems(line: bytes, layout: Layout, has_ids: bool) -> Iterator[Problem]:
    """Everything wrong on a line, from left to right."""
    head, *fields = line.split(b"|")
    words = list(WORD.finditer(head))
    yield from _head_problems(words, has_ids, bool(fields))
    known = {column.field: column for column in layout.columns}
    seen: set[bytes] = set()
    at = len(head) + 1
    for content in fields:
        if not content.startswith(b"#"):
            name = re.match(rb"[^ \t]*", content)[0]  # type: ignore[index]
            yield from (problem.moved(0, at) for problem in _name_problems(name, seen))
            seen.add(name)
            if name in known:
                column = known[name]
                values = _sparse_problems if column.sparse else _dense_problems
                for problem in values(column, content[len(name) :]):
                    yield replace(problem, stream=column.name).moved(0, at + len(name))
            else:
                seen.discard(name)
        at += len(content) + 1


def _head_problems(words: list[re.Match[bytes]], has_ids: bool, fields: bool) -> Iterator[Problem]:
    for k, word in enumerate(words):
        found = shown(word[0])
        if k or value_of(word[0], "id") is None:
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
    elif not readable(name):
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
        index = int(pair[1]) if len(pair[1]) < 4000 else column.size
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
