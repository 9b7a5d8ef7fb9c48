"""Names the line of a text that cannot be read, and why."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .blocks import id_of
from .columns import Column
from .numbers import INTEGER, LONGEST, value_of
from .parse import is_utf8

WORD = re.compile(rb"[^ \t]+")
NAME = re.compile(rb"[^ \t]*")
PAIR = re.compile(rb"([^:]+):([^:]+)")
SHOWN = 40
Fault = tuple[int, str]
"""The number of a line, from 0, and what is wrong with it."""


def fault_of(piece: bytes, columns: Sequence[Column], has_ids: bool, last: int) -> tuple[int, Fault | None]:
    """The last id in a piece of text, and the first thing that is wrong, if anything is.

    The piece is a sequence, or several of which it is not known where they begin. `last` is the id before it.
    """
    faults, begins, items = list[Fault](), list[tuple[int, int]](), dict[bytes, list[int]]()
    for number, line in enumerate(piece.removesuffix(b"\n").split(b"\n")):
        line = line.removesuffix(b"\r")
        id, fields = id_of(line), list(_fields(line))
        wrong = next(_line_faults(line, fields, columns, has_ids), "")
        if not wrong and has_ids and id == -1 and fields and not begins:
            wrong = "this line has no id, and there is no sequence before it that it could go on with"
        if wrong:
            faults.append((number, wrong))
        new = id is not None and id >= 0 and (not begins or begins[-1][0] != id)
        if new if has_ids else wrong or fields:
            begins.append((-1 if id is None else id, number))
        for name, _ in fields:
            items.setdefault(name, []).append(number)
    if not faults and begins:
        faults += _missing(begins[0], items, columns, has_ids)
    for (before, _), (id, number) in pairwise([(last, 0), *begins]) if has_ids else ():
        if id <= before:
            faults.append((number, f"sequence {id} begins after sequence {before}: expected ids that rise"))
    return begins[-1][0] if begins else last, min(faults, key=lambda fault: fault[0], default=None)


def shown(token: bytes) -> str:
    """A token of a file as messages show it: short, and without control characters."""
    cut = token[:SHOWN]
    text = cut.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"'{text}{'...' if len(token) > SHOWN else ''}'"


def names_in(text: bytes, most: int = 20) -> str:
    """The names of the fields in a text, sorted: some of them, if there are many."""
    found = {match.group(1) for match in re.finditer(rb"\|([^\s|#][^\s|]*)", text[: 1 << 20])}
    return ", ".join([shown(name)[1:-1] for name in sorted(found)[:most]] + ["..."] * (len(found) > most)) or "none"


def _fields(line: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The fields of a line but for comments: the name of each, and what follows it."""
    for content in line.split(b"|")[1:]:
        if not content.startswith(b"#"):
            name = NAME.match(content)[0]  # type: ignore[index]
            yield name, content[len(name) :]


def _missing(
    first: tuple[int, int], items: dict[bytes, list[int]], columns: Sequence[Column], has_ids: bool
) -> Iterator[Fault]:
    """Streams with one item for each sequence, which this sequence has not, or more than once."""
    which = f"sequence {first[0]}" if has_ids else "this line"
    for column in columns:
        lines, name = items.get(column.field, []), column.field.decode()
        if not lines and not column.stream.sequence:
            met = ", ".join(shown(each)[1:-1] for each in sorted(items)) or "none"
            yield first[1], f"{which} has no '{name}', expected one; it has: {met}"
        elif len(lines) > 1 and not column.stream.sequence:
            yield lines[1], f"{which} has {len(lines)} items of '{name}', expected one, or sequence=True"


def _line_faults(
    line: bytes, fields: list[tuple[bytes, bytes]], columns: Sequence[Column], has_ids: bool
) -> Iterator[str]:
    """Everything wrong on a line, from left to right."""
    head, pipe, _ = line.partition(b"|")
    for k, word in enumerate(WORD.findall(head)):
        if k or id_of(word + b"|") is None:
            what = "'|' and a field" if k else "an id, which is a whole number, or '|' and a field"
            yield f"expected {what}, got {shown(word)}"
        elif not has_ids:
            yield f"expected '|' and a field, got {shown(word)}: the first line has no id"
        elif not pipe:
            yield f"sequence {shown(word)} has no field on this line; write '|#' if it is empty"
    known, seen = {column.field: column for column in columns}, set[bytes]()
    for name, content in fields:
        if not name:
            yield "expected the name of a field after '|'"
        elif not is_utf8(name):
            yield f"expected the name of a field in UTF-8, got {shown(name)}"
        elif name in seen:
            yield f"field {shown(name)} is there twice on this line"
        if column := known.get(name):
            seen.add(name)
            faults = (_sparse_faults if column.sparse else _dense_faults)(column, WORD.findall(content))
            yield from (f"stream {column.name!r}: {wrong}" for wrong in faults)


def _dense_faults(column: Column, words: list[bytes]) -> Iterator[str]:
    for word in words[: column.size]:
        yield from _number_faults(column, word)
    if len(words) != column.size:
        yield f"expected {column.size} values for shape {column.stream.shape}, got {len(words)}"


def _sparse_faults(column: Column, words: list[bytes]) -> Iterator[str]:
    seen: set[int] = set()
    for word in words:
        pair = PAIR.fullmatch(word)
        if not pair or not INTEGER.fullmatch(pair[1]):
            yield f"expected index:value, got {shown(word)}"
            return
        index = int(pair[1]) if len(pair[1]) < LONGEST else column.size
        if not 0 <= index < column.size:
            yield f"index {shown(pair[1])[1:-1]} is out of range for shape {column.stream.shape}"
            return
        if index in seen:
            yield f"index {index} is there twice in this item"
        seen.add(index)
        yield from _number_faults(column, pair[2])


def _number_faults(column: Column, word: bytes) -> Iterator[str]:
    if value_of(word, column.stream.dtype) is None:
        yield f"expected a number for {column.stream.dtype}, got {shown(word)}"
