"""A text file cut into blocks that begin and end between sequences, so that each can be read without the others."""

import gzip
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from ...errors import DataError, SourceError
from ...store import system

WINDOW = 1 << 16
NO_HEAD = re.compile(rb"[ \t]*")
HEAD = re.compile(rb"[ \t]*([0-9]+)[ \t]*")
_CHUNK = 1 << 20
Stamp = tuple[int, int]
"""The size and the time of a file."""


class Text(ABC):
    """A text that is read once from front to back."""

    @abstractmethod
    def peek(self, start: int, length: int) -> bytes:
        """The bytes from `start`, fewer than `length` only where the text ends."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Where the text ends, once `peek` has come to it."""

    def forget(self, before: int) -> None:
        """Frees the bytes before this place, which will not be read again."""


class BlockText(Text):
    """Text in memory."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    def peek(self, start: int, length: int) -> bytes:
        return self._block[start : start + length]

    @property
    def end(self) -> int:
        return len(self._block)


class FileText(Text):
    """A file, as it was when it was opened or when a stamp was taken."""

    def __init__(self, path: Path, stamp: Stamp | None = None) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
            self.stamp = stamp or _stamp(os.fstat(self._file.fileno()))
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}.") from None

    def peek(self, start: int, length: int) -> bytes:
        try:
            return read_at(self.descriptor, start, min(length, self.end - start))
        except OSError as error:
            raise SourceError(f"cannot read {self.path} at byte {start}: {error.strerror}.") from None

    @property
    def end(self) -> int:
        return self.stamp[0]

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "FileText":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_unchanged(self) -> None:
        """Raises if the file is no longer the same."""
        try:
            there = _stamp(os.stat(self.path)) == self.stamp == _stamp(os.fstat(self.descriptor))
        except OSError:
            there = False
        if not there:
            raise SourceError(
                f"{self.path} changed while it was read. Wait until it is complete, and open it again: a file is best "
                "written under another name and renamed."
            )


class GzipText(FileText):
    """A packed file. Places are those in the text that is packed."""

    def __init__(self, path: Path, stamp: Stamp | None = None) -> None:
        super().__init__(path, stamp)
        self._packed = gzip.GzipFile(fileobj=self._file)
        self._held, self._base, self._ended = bytearray(), 0, False

    def peek(self, start: int, length: int) -> bytes:
        while not self._ended and self._base + len(self._held) < start + length:
            try:
                chunk = self._packed.read(_CHUNK)
            except (EOFError, zlib.error, OSError) as error:
                end = self._base + len(self._held)
                raise SourceError(
                    f"{self.path} is cut short or damaged after byte {end} of the text in it ({error}). "
                    "Make or copy the file again."
                ) from None
            self._held += chunk
            self._ended = not chunk
        at = start - self._base
        return bytes(memoryview(self._held)[at : at + length])

    @property
    def end(self) -> int:
        return self._base + len(self._held)

    def forget(self, before: int) -> None:
        del self._held[: before - self._base]
        self._base = before


def open_text(path: Path, stamp: Stamp | None = None) -> FileText:
    return (GzipText if path.suffix.lower() == ".gz" else FileText)(path, stamp)


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """Bytes of a file, all that there are."""
    parts, left = [], length
    while left > 0 and (part := system.read_at(descriptor, left, start)):
        parts.append(part)
        start, left = start + len(part), left - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def begin(text: FileText) -> int:
    """Where the text begins: after the mark that some editors put before UTF-8."""
    head = text.peek(0, 3)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SourceError(f"{text.path} is in UTF-16. Convert it to UTF-8: iconv -f UTF-16 -t UTF-8.")
    return 3 if head == b"\xef\xbb\xbf" else 0


def has_ids(text: Text, start: int) -> bool:
    """Whether sequences have ids: whether the first line with a field has one."""
    for _, line in lines_from(text, start):
        found = id_of(line)
        if found is not None and found >= 0:
            return True
        if found is not None and re.search(rb"\|(?!#)", line):
            return False
    return False


def blocks(text: Text, start: int, ids: bool, size: int) -> Iterator[tuple[int, bytes]]:
    """The text from `start` in blocks of about `size` bytes, each with where it begins; the same however it is read."""
    while text.peek(start, 1):
        stop = cut(text, start + size, ids)
        block = text.peek(start, stop - start)
        text.forget(stop)
        yield start, block
        start = stop


def cut(text: Text, at: int, ids: bool) -> int:
    """The first place from `at` on where a sequence is certain to begin, or the end.

    With ids that is a line whose id differs from that of the lines before it. A line that cannot be read hides to
    which sequence it belongs, so that there is no cut until the id has changed after it.
    """
    lines = lines_from(text, at - 1)
    next(lines, None)  # what is left of the line before
    before = None
    for place, line in lines:
        if not ids:
            return place
        found = id_of(line)
        if found is None:
            before = None
        elif found >= 0:
            if before is not None and found != before:
                return place
            before = found
    return text.end


def lines_from(text: Text, place: int) -> Iterator[tuple[int, bytes]]:
    """Where lines begin, from the one that begins at `place` on, and what they are without the newline."""
    window = WINDOW
    while data := text.peek(place, window):
        stop = len(data) if len(data) < window else data.rfind(b"\n") + 1
        if not stop:
            window *= 2
            continue
        lines = data[:stop].split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            yield place, line
            place += len(line) + 1
        window = WINDOW


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


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_size, found.st_mtime_ns
