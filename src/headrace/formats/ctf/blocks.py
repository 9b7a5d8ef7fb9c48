"""Cuts a text into blocks that begin and end between sequences, so that each can be read without the others."""

import re
from collections.abc import Iterator
from typing import IO

NO_HEAD = re.compile(rb"[ \t]*")
HEAD = re.compile(rb"[ \t]*([0-9]+)[ \t]*")
MORE_BYTES = 1 << 16  # read at once where the end of a sequence is looked for


def blocks(file: IO[bytes], has_ids: bool, size: int) -> Iterator[bytes]:
    """The rest of a file in blocks of at least `size` bytes, but for the last; each ends with a newline."""
    held = b""
    while more := file.read(max(MORE_BYTES, size - len(held), len(held) - size)):
        held += more
        while stop := next(boundaries(held, size, has_ids), 0):
            yield held[:stop]
            held = held[stop:]
    if held:
        yield held if held.endswith(b"\n") else held + b"\n"


def middle_of(piece: bytes, has_ids: bool) -> int:
    """Where to cut a piece of text in two between sequences; 0 if it cannot be."""
    half = len(piece) // 2
    return next(boundaries(piece, half, has_ids), 0) or max(boundaries(piece, 0, has_ids), default=0)


def boundaries(text: bytes, at: int, has_ids: bool) -> Iterator[int]:
    """The places from `at` on, but for the ends of the text, where a sequence is certain to begin.

    With ids that is a line whose id differs from that of the lines before it. A line that cannot be read hides to
    which sequence it belongs, so that there is no such place until the id has changed after it.
    """
    before = None
    place = text.find(b"\n", at - 1) + 1 if at else 0
    while (place or not at) and place < len(text) and (stop := text.find(b"\n", place)) >= 0:
        found = id_of(text[place:stop]) if has_ids else None
        if place and (not has_ids or (found is not None and found >= 0 and before is not None and found != before)):
            yield place
        before = before if found == -1 else found
        place = stop + 1


def has_ids(lines: Iterator[bytes]) -> bool:
    """Whether sequences have ids: whether the first line with a field has one."""
    for line in lines:
        found = id_of(line.rstrip(b"\n"))
        if found is not None and found >= 0:
            return True
        if found is not None and re.search(rb"\|(?!#)", line):
            return False
    return False


def id_of(line: bytes) -> int | None:
    """The id of a line, -1 if it has none, None if what stands there cannot be one."""
    head, pipe, _ = line.partition(b"|")
    if not pipe:
        head = head.removesuffix(b"\r")
    if NO_HEAD.fullmatch(head):
        return -1
    found = HEAD.fullmatch(head)
    value = int(found[1]) if found and len(found[1]) < 4000 else 2**64
    return value if value < 2**64 else None
