"""What a training says for itself, line by line in a file: its reports, its warnings, and how it ended."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..store.disk import File
from ..store.rows import COUNTERS
from .callback import Callback
from .tracker import Place, numbers

if TYPE_CHECKING:
    from .info import Info

LOG = "log.txt"


class LogFile(Callback):
    """A line for every report and every warning, with the time, added to what is in the file.

    Without a `path` the file is the log of the run, which tells of the beginning and the end by itself.
    """

    everywhere = False

    def __init__(self, path: str | Path | None = None) -> None:
        self._place = Place(self, path, LOG)
        self._apart = path is not None
        self._file: File | None = None
        self._ear: _Ear | None = None

    def forget(self) -> None:
        self._close()

    def on_fit_start(self, info: Info) -> None:
        path = self._place.find(info)
        with self._place.usable(path):
            self._file = File(path, new=False)
        self._ear = _Ear(lambda message: self._write(f"warning: {message}"))
        if self._apart:
            self._write(f"going on from step {info.step}" if info.resumed else "started")

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        counted = [f"{key} {row[key]}" for key in COUNTERS if key in row]
        measured = [f"{key} {value:.6g}" for key, value in numbers(row).items()]
        self._write("  ".join(counted + measured))

    def on_error(self, info: Info, error: BaseException) -> None:
        if self._apart:
            self._write(f"ended by {type(error).__name__}: {error}")
        self._close()

    def on_fit_end(self, info: Info) -> None:
        if self._apart:
            self._write(f"ended: {info.stopping}")
        self._close()

    def _write(self, text: str) -> None:
        """A line, with what is no letter spelled out. One that cannot be written is no reason to stop."""
        plain = text.isprintable()
        line = text if plain else "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
        with suppress(OSError):
            if self._file is not None:
                self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def _close(self) -> None:
        if self._ear is not None:
            self._ear.remove()
        if self._file is not None:
            self._file.close()
        self._ear = self._file = None


class _Ear:
    """Stands before `warnings.showwarning`, hears what it is given, and gives it on."""

    def __init__(self, hear: Callable[[Warning | str], None]) -> None:
        self._hear: Callable[[Warning | str], None] | None = hear
        self._next = warnings.showwarning
        warnings.showwarning = self

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if self._hear is not None:
            self._hear(message)
        self._next(message, category, filename, lineno, file, line)

    def remove(self) -> None:
        """All is as it was before; whoever has come to stand before this one stays there."""
        self._hear = None
        if warnings.showwarning is self:
            warnings.showwarning = self._next
        first = warnings.showwarning
        while isinstance(first, _Ear):
            if first._next is self:
                first._next = self._next
            first = first._next
