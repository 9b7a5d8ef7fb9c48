"""Another platform, as far as it can be had here: headrace's modules do not see what that platform lacks."""

import builtins
import ctypes
import errno
import fcntl
import importlib
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_NOT_MACOS = {
    "os": "sched_getaffinity sched_setaffinity memfd_create MFD_CLOEXEC pidfd_open posix_fallocate O_PATH",
    "signal": "SIGRTMIN SIGRTMAX",
    "socket": "SOCK_SEQPACKET SO_PEERCRED",
    "select": "epoll",
    "mmap": "MAP_POPULATE",
    "fcntl": "F_ADD_SEALS F_SEAL_SHRINK F_SEAL_GROW",
}
_NOT_WINDOWS = {
    "os": _NOT_MACOS["os"] + " pread pwrite preadv readv writev statvfs setpgrp setsid getpgid killpg register_at_fork"
    " getuid geteuid fork forkpty wait mkfifo uname getloadavg sysconf posix_spawn nice sync chown"
    " O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_SYNC O_DSYNC",
    "signal": "SIGRTMIN SIGRTMAX SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGKILL SIGALRM SIGCHLD SIGPIPE pthread_sigmask"
    " pthread_kill alarm setitimer sigwait",
    "socket": "AF_UNIX SOCK_SEQPACKET SO_PEERCRED send_fds recv_fds socketpair",
    "select": "epoll poll",
    "mmap": "MAP_SHARED MAP_PRIVATE MAP_POPULATE",
    "fcntl": "",
}
_NO_MODULE_ON_WINDOWS = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
PLATFORMS = ("macos", "windows")

_O_BINARY = 1 << 30
_F_FULLFSYNC, _F_OFD_SETLK = 51, 37


def pretend(platform: str) -> None:
    """From now on, modules of headrace that are imported find what the platform has; nobody else sees a difference."""
    lacks = {"macos": _NOT_MACOS, "windows": _NOT_WINDOWS}[platform]
    shown: dict[str, Any] = {name: _without(importlib.import_module(name), names) for name, names in lacks.items()}
    shown["ctypes"] = _without(ctypes, "")
    absent: tuple[str, ...] = ("msvcrt",)
    if platform == "windows":
        absent, shown["msvcrt"] = _NO_MODULE_ON_WINDOWS, _msvcrt()
        shown["ctypes"].CDLL = _no_library
        _as_windows(shown["os"])
    else:
        shown["ctypes"].CDLL = lambda *_, **__: _MacLibrary()
        shown["fcntl"].F_FULLFSYNC, shown["fcntl"].fcntl = _F_FULLFSYNC, _mac_fcntl
    _show(shown, absent)
    for name in ("read_text", "read_bytes", "write_text"):
        setattr(Path, name, _without_proc(getattr(Path, name)))


def _show(shown: dict[str, Any], absent: tuple[str, ...]) -> None:
    real, found = builtins.__import__, importlib.import_module

    def seen(name: str, importer: str) -> Any:
        """What headrace sees in place of a module; `None`: the module itself."""
        if not importer.startswith("headrace"):
            return None
        if name in absent:
            raise ModuleNotFoundError(name)
        return shown.get(name)

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found_here = None if level else seen(name, str((globals or {}).get("__name__")))
        return found_here or real(name, globals, locals, fromlist, level)

    def import_module(name: str, package: str | None = None) -> ModuleType:
        found_here: ModuleType | None = seen(name, sys._getframe(1).f_globals["__name__"])
        return found_here or found(name, package)

    builtins.__import__ = imported
    importlib.import_module = import_module


def _without(module: ModuleType, names: str) -> Any:
    copy = ModuleType(module.__name__)
    copy.__dict__.update({name: value for name, value in vars(module).items() if name not in names.split()})
    return copy


def _without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of paths that finds nothing in /proc, nor in /sys, for headrace."""

    def looking(path: Path, *arguments: Any, **options: Any) -> Any:
        if str(path).startswith(("/proc", "/sys")) and sys._getframe(1).f_globals["__name__"].startswith("headrace"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return call(path, *arguments, **options)

    return looking


# --- macOS ------------------------------------------------------------------------------------------------


_load = ctypes.CDLL


class _MacLibrary:
    """The C library: what it has besides Linux's, and what it lacks of those."""

    def __init__(self) -> None:
        self._linux = _load(None, use_errno=True)

    def renamex_np(self, source: bytes, target: bytes, flag: int) -> int:
        found: int = self._linux.renameat2(-100, source, -100, target, {4: 1, 2: 2}[flag])
        return found

    def sysctlbyname(self, name: bytes, found: Any, length: Any, *_: Any) -> int:
        assert name == b"machdep.cpu.brand_string"
        found.value = b"Apple M9"
        return 0

    def __getattr__(self, name: str) -> Any:
        if name in ("renameat2", "mallopt", "sched_getcpu", "sched_setaffinity"):
            raise AttributeError(name)
        return getattr(self._linux, name)


def _mac_fcntl(descriptor: int, command: int, *arguments: Any) -> Any:
    if command != _F_FULLFSYNC:
        return fcntl.fcntl(descriptor, command, *arguments)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # as a file system that knows it for files only
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
    os.fsync(descriptor)
    return 0


# --- Windows ----------------------------------------------------------------------------------------------


def _as_windows(shown: Any) -> None:
    """Calls that Windows has, and that do otherwise there."""
    shown.name, shown.O_BINARY = "nt", _O_BINARY
    shown.open = _open
    parent = os.getppid()
    shown.getppid = lambda: parent  # also when that process is no more
    shown.kill = lambda process, _: os.kill(process, signal.SIGKILL)
    shown.rename = _unless_open(_rename, 2)
    shown.replace = _unless_open(os.replace, 2)
    for name in ("unlink", "remove", "rmdir"):
        setattr(shown, name, _unless_open(getattr(os, name), 1))


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Opens no directory, and none by its directory; what is not opened as binary would change its line ends."""
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    assert flags & _O_BINARY or path == os.devnull, f"{path} is opened as text"
    return os.open(path, (flags & ~_O_BINARY) | os.O_CLOEXEC, mode)


def _rename(source: Any, target: Any) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)


def _unless_open(call: Callable[..., None], paths: int) -> Callable[..., None]:
    """Refuses what this process has open, or mapped, there or below."""

    def refusing(*arguments: Any) -> None:
        held = _held()
        for path in map(os.path.realpath, arguments[:paths]):
            if any(one == path or one.startswith(f"{path}/") for one in held):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        call(*arguments)

    return refusing


def _held() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:  # that of the listing
            continue
    mapped = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return found + [fields[5] for fields in mapped if len(fields) == 6]


def _no_library(name: Any, *_: Any, **__: Any) -> Any:
    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return ctypes.CDLL(name)


def _msvcrt() -> ModuleType:
    """Windows's locks of bytes, by those of this system: each open file has its own, and they end with it."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, at, count, 0)
        fcntl.fcntl(descriptor, _F_OFD_SETLK, wanted)

    found: Any = ModuleType("msvcrt")
    found.LK_NBLCK, found.locking = 2, locking
    return found
