"""The log of a run, and what callbacks that write files have in common."""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store import disk
from ..store.document import COUNTERS
from .callback import Callback
from .rows import numbers

if TYPE_CHECKING:
    from .info import Info

LOG = "log.txt"


class OutputPath:
    """The path that a callback writes to: the one that it was given, or a name in the directory of the run."""

    def __init__(self, owner: Callback, path: str | Path | None, name: str) -> None:
        self._kind, self._name, self._path = type(owner).__name__, name, path
        if path is not None and (not isinstance(path, str | Path) or not str(path)):
            raise ConfigError(f"{self._kind} takes the path that it is to write to, got {path!r}.")

    def find(self, info: Info) -> Path:
        """The path; its directory is made if need be."""
        if self._path is None and info.run is None:
            raise ConfigError(
                f"{self._kind}() writes into the run, and this training has none. Say where: "
                f"{self._kind}({self._name!r}), or name a run: fit(run='runs/name')."
            )
        path = Path(self._path) if self._path is not None else Path(str(info.run)) / self._name
        path = path.absolute()
        if self._path is None:
            disk.refuse_link(path)
        with self.usable(path):
            if not path.parent.is_dir():
                disk.make_dirs(path.parent)
        return path

    def folder(self, info: Info) -> Path:
        """The path as a directory, made if need be, that may be written to."""
        path = self.find(info)
        with self.usable(path):
            disk.make_dirs(path)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path

    @contextmanager
    def usable(self, path: Path) -> Iterator[None]:
        """Turns a failure to open a path into an error with a remedy."""
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(
                f"{self._kind} cannot write to {path}: {why}. Move what is there away, or name another path."
            ) from error


class LogFile(Callback):
    """Appends a line with the time for every report and every warning.

    Without a `path` the file is the log of the run, into which the run itself writes when it begins and ends.
    """

    everywhere = False
    _looks_on = True

    def __init__(self, path: str | Path | None = None) -> None:
        self._place = OutputPath(self, path, LOG)
        self._apart = path is not None
        self._file: disk.File | None = None
        self._listener: _WarningListener | None = None
        self._note = ""

    def forget(self) -> None:
        self._close()

    def on_fit_start(self, info: Info) -> None:
        path = self._place.find(info)
        with self._place.usable(path):
            self._file = disk.File(path, new=False)
        self._listener = _WarningListener(lambda message: self._write(f"warning: {message}"))
        self._note = ""
        if self._apart:
            self._write(f"going on from step {info.step}" if info.resumed else "started")

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        if self._note != info.trainer.tape_note:
            self._note = info.trainer.tape_note
            self._write(self._note)
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
        """Writes a line, control characters escaped. One that cannot be written does not stop the training."""
        plain = text.isprintable()
        line = text if plain else "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
        with suppress(OSError):
            if self._file is not None:
                self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.remove()
        if self._file is not None:
            self._file.close()
        self._listener = self._file = None


class _WarningListener:
    """Takes the place of `warnings.showwarning`: calls `heard` with each warning, then the function that was there."""

    def __init__(self, heard: Callable[[Warning | str], None]) -> None:
        self._heard: Callable[[Warning | str], None] | None = heard
        self._next = warnings.showwarning
        warnings.showwarning = self

    def __call__(self, message: Warning | str, *arguments: Any, **options: Any) -> None:
        if self._heard is not None:
            self._heard(message)
        self._next(message, *arguments, **options)

    def remove(self) -> None:
        """Puts back what was there before, once all listeners that were installed later are removed."""
        self._heard = None
        while isinstance(first := warnings.showwarning, _WarningListener) and first._heard is None:
            warnings.showwarning = first._next
