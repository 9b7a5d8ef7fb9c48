"""The operations on files that a run is made of, each of which has a name.

Whoever wants to know what happens when one of them fails, or is the last that happens, replaces `perform`.
"""

import errno
import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ..errors import RunError
from . import system

Result = TypeVar("Result")
Bytes = bytes | memoryview
BLOCK_BYTES = 16 << 20  # a disk is busy with one block at a time: small ones leave it waiting


class NotRegularError(OSError):
    """What was to be opened is there, and is a directory, a pipe or a device."""


def perform(operation: str, call: Callable[..., Result], *arguments: Any) -> Result:
    """Every change of a file or a directory comes through here; the first arguments say which."""
    return call(*arguments)


class File:
    """A file that grows; nothing of it is certain to be on the disk before `sync`."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self._fd = perform("create" if new else "open", _open, path, new)

    def write(self, data: Bytes) -> None:
        perform("write", _write, self.path, self._fd, data)

    def truncate(self, size: int) -> None:
        perform("truncate", _truncate, self.path, self._fd, size)

    def sync(self) -> None:
        perform("fsync", _sync, self.path, self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_dir(path: Path) -> None:
    perform("make_dir", os.mkdir, path)


def sync_dir(path: Path) -> None:
    """Makes certain that the names in a directory are on the disk."""
    perform("sync_dir", _sync_dir, path)


def replace(source: Path, target: Path) -> None:
    """Gives a file another name, in place of what has that name, or a directory a name that is free."""
    perform("replace", system.patient(os.replace), source, target)


def link(source: Path, target: Path) -> None:
    """A second name for a file."""
    perform("link", os.link, source, target)


def unlink(path: Path) -> None:
    perform("unlink", system.patient(os.unlink), path)


def remove_dir(path: Path) -> None:
    perform("remove_dir", system.patient(os.rmdir), path)


def write_file(path: Path, data: Bytes) -> None:
    """A small file as a whole: it is there with all its bytes, or as it was before."""
    beside = path.with_name(f".{path.name}.new")
    if os.path.lexists(beside):
        unlink(beside)
    with File(beside, new=True) as file:
        file.write(data)
        file.sync()
    replace(beside, path)
    sync_dir(path.parent)


def blocks(pieces: Iterable[Bytes]) -> Iterator[memoryview]:
    """The same bytes in blocks of a fixed length, each of which is valid until the next one is asked for.

    They begin where a page of memory does. Such blocks are written past the system's cache of files, where it can do
    that: it takes a twentieth of the processor's time, which a training that goes on meanwhile has for itself.
    """
    import numpy as np  # the command line shows its help without it

    room, filled = memoryview(mmap.mmap(-1, BLOCK_BYTES)), 0
    array = np.frombuffer(room, np.uint8)
    for piece in filter(len, pieces):
        source = np.frombuffer(piece, np.uint8)  # NumPy copies without Python's lock
        while len(source):
            count = min(len(source), BLOCK_BYTES - filled)
            array[filled : filled + count] = source[:count]
            source, filled = source[count:], filled + count
            if filled == BLOCK_BYTES:
                yield room
                filled = 0
    if filled:
        yield room[:filled]


def publish(written: Path, path: Path) -> None:
    """Gives a file that has been written its name, once its bytes are certain to be on the disk."""
    with File(written, new=False) as file:
        file.sync()
    replace(written, path)
    sync_dir(path.parent)


def remove_tree(path: Path) -> None:
    """A directory of files, and it; links in it, or in its place, are removed, never followed."""
    if path.is_symlink():
        unlink(path)
        return
    for name in os.listdir(path):
        if (path / name).is_dir():
            remove_tree(path / name)
        else:
            unlink(path / name)
    remove_dir(path)


def read_file(path: Path, limit: int) -> bytes:
    """A file as a whole, if it is one and no longer than that."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {size(limit)}", str(path))
    return data


def open_regular(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file, looked up in the directory `dir_fd` if there is one.

    Links are not followed, and a pipe, which would wait for ever, is refused like all that is no file.
    """
    safely = system.flags("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
    if not system.flags("O_NOFOLLOW") and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    descriptor = os.open(path, flags | safely, 0o644, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_dirs(path: Path) -> None:
    """A directory and those above it, each certain to be on the disk: one that is there may not have been synced."""
    if not path.is_dir():
        make_dirs(path.parent)
        try:
            make_dir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
    sync_dir(path.parent)


def no_run(path: Path) -> RunError:
    """The error for a directory that is no run; it names the newest runs below it."""
    inside = sorted(found.parent.name for found in path.glob("*/run.json"))
    hint = f"It holds runs: name one of {', '.join(inside[-3:])}." if inside else "Name what was given to fit(run=...)."
    return RunError(f"{path} is not a run: it has no run.json. {hint}")


def refuse_link(path: Path) -> None:
    """Raises where there is a link in place of a directory of a run."""
    if path.is_symlink():
        raise RunError(f"{path} is a link, which a run does not follow. Link the whole run instead.")


@contextmanager
def failing(what: str, path: Path, needed: int = 0) -> Iterator[None]:
    """Raises what the system refuses as a RunError that says what was being done."""
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        raise failure(error, what, path, needed) from error


def failure(error: OSError, what: str, path: Path, needed: int) -> RunError:
    """An operation that failed, with the room that there was."""
    try:
        room = f"{size(needed)} needed, {size(free(path))} free"
    except OSError:
        room = f"{size(needed)} needed"
    where = f": {error.filename}" if error.filename else ""
    failed = RunError(f"{what} failed: {os.strerror(error.errno) if error.errno else error}{where} ({room}).")
    failed.errno, failed.filename = error.errno, error.filename
    return failed


def free(path: Path) -> int:
    """Bytes that may still be written where a path is."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def size(count: float) -> str:
    """A number of bytes, to be read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _open(path: Path, new: bool) -> int:
    return open_regular(path, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_APPEND))


def _write(path: Path, fd: int, data: Bytes) -> None:
    view = memoryview(data)
    unbuffered = len(view) == BLOCK_BYTES and system.unbuffered(fd, True)
    try:
        while len(view):
            try:
                view = view[_naming(path, os.write, fd, view) :]
            except OSError as error:
                if not unbuffered or error.errno != errno.EINVAL:  # it asks for more than blocks of this kind
                    raise
                unbuffered = system.unbuffered(fd, False)
    finally:
        if unbuffered:
            system.unbuffered(fd, False)


def _truncate(path: Path, fd: int, length: int) -> None:
    _naming(path, os.ftruncate, fd, length)


def _sync(path: Path, fd: int) -> None:
    _naming(path, system.sync, fd)


def _naming(path: Path, call: Callable[..., Result], *arguments: Any) -> Result:
    """Makes a call by descriptor; its error names the file, as that of the system does not."""
    try:
        return call(*arguments)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync_dir(path: Path) -> None:
    if not (directory := system.flags("O_DIRECTORY")):
        return  # Windows opens no directories; NTFS keeps the order of names in a journal
    fd = os.open(path, os.O_RDONLY | directory | system.flags("O_CLOEXEC"))
    try:
        _naming(path, system.sync, fd)
    finally:
        os.close(fd)
