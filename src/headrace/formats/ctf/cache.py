"""Finds, writes and removes the Arrow files that hold the parsed rows of text files."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...store import disk, system
from .text import read_at

VERSION = 1
"""Of the parser: with another one, what was kept is of no use."""
WHOLE_BYTES = 1 << 24
SAMPLE_BYTES, SAMPLES = 1 << 16, 32


@dataclass(frozen=True)
class CtfCache:
    """The Arrow file that caches the rows of one text file, read in one way.

    Its name says of which bytes it was made, how they were read, and what its own bytes are:
    `.train.ctf.<content>-<reading>-<check>.arrow`. The dot keeps it out of what a directory of data holds.
    """

    directory: Path
    stem: str
    content: str
    reading: str

    @classmethod
    def of(cls, path: Path, descriptor: int, mark: str, reading: Any, directory: Path | None) -> "CtfCache":
        """`mark` is the `sample` of the file that is open."""
        stem = f".{path.name if len(os.fsencode(path.name)) < 150 else _digest(path.name)}"
        if directory is not None:  # files of one name may share it
            stem += f".{_digest(str(path.resolve().parent))[:8]}"
        found = os.fstat(descriptor)
        content = _digest([VERSION, found.st_size, found.st_mtime_ns, mark])
        return cls(directory or path.parent, stem, content, _digest(reading))

    def find(self) -> Path | None:
        """The cache, if it is there and as it was written; a damaged one is removed."""
        for content, reading, check, path in self._kept():
            if (content, reading) != (self.content, self.reading):
                continue
            try:
                sound = _check(path) == check
            except OSError:  # another process has removed it, or it is not ours to read
                continue
            if sound:
                return path
            self.discard(path)
        return None

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A new file that nobody takes for a cache; it is removed at the end unless it was published.

        What a process leaves that is killed while it writes stays: a hidden file that ends in `.tmp`.
        """
        path = self.directory / f"{self.stem}.{secrets.token_hex(8)}.tmp"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | system.flags("O_CLOEXEC", "O_BINARY")
            os.close(os.open(path, flags, 0o644))
        except OSError as error:
            raise self.cannot(error) from None
        try:
            yield path
        finally:
            with suppress(FileNotFoundError, PermissionError):  # where open files stay, an error may keep it open
                os.unlink(path)

    def publish(self, written: Path) -> Path:
        """Gives a file that has been written its name, and removes what it replaces."""
        try:
            path = self.directory / f"{self.stem}.{self.content}-{self.reading}-{_check(written)}.arrow"
            disk.publish(written, path)
        except OSError as error:
            raise self.cannot(error) from None
        for content, reading, _, other in list(self._kept()):
            if other != path and (content != self.content or reading == self.reading):
                self.discard(other)
        return path

    def cannot(self, error: OSError) -> ConfigError:
        why = error.strerror or str(error)
        return ConfigError(
            f"the parsed rows of {self.stem[1:]} cannot be kept in {self.directory}: {why}. "
            "Pass cache= with a directory that can be written and has room for them."
        )

    def discard(self, path: Path) -> None:
        """Removes a file that is of no use, if that is allowed."""
        with suppress(OSError):
            disk.perform("unlink", os.unlink, path)  # at once or not at all: it may be open for long

    def _kept(self) -> Iterator[tuple[str, str, str, Path]]:
        """The caches of this file, of whatever content."""
        form = re.compile(re.escape(self.stem) + r"\.([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})\.arrow")
        for name in _names(self.directory):
            if found := form.fullmatch(name):
                yield found[1], found[2], found[3], self.directory / name


def sample(descriptor: int) -> str:
    """A hash of a file: of all of it up to 16 MB, else of its head, its tail and parts between them."""
    size = os.fstat(descriptor).st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=8)
    if size <= WHOLE_BYTES:
        digest.update(read_at(descriptor, 0, size))
    else:
        last = size - SAMPLE_BYTES
        for k in range(SAMPLES + 1):
            digest.update(read_at(descriptor, last * k // SAMPLES, SAMPLE_BYTES))
    return digest.hexdigest()


def _check(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | system.flags("O_CLOEXEC", "O_BINARY"))
    try:
        return sample(descriptor)
    finally:
        os.close(descriptor)


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
