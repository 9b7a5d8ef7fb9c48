"""What headrace asks of the operating system, with the nearest equivalent where a system lacks it.

docs/install.md says which those are, and what is lost.
"""

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

PATIENCE_S = 2.0  # for another program that has a file open, where that keeps the file from being renamed


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl = _module("fcntl")


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names; those that the system lacks are left out."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


def flags(*names: str) -> int:
    """The flags of `os.open` of these names, together; those that the system lacks are left out."""
    found = 0
    for name in names:
        found |= getattr(os, name, 0)
    return found


def unbuffered(descriptor: int, wanted: bool) -> bool:
    """Has writes to an open file bypass the system's cache of files, or not; whether they do so now."""
    direct = getattr(os, "O_DIRECT", 0)
    if not direct or _fcntl is None:
        return False
    try:
        flags = _fcntl.fcntl(descriptor, _fcntl.F_GETFL)
        _fcntl.fcntl(descriptor, _fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    except OSError:
        return False
    return wanted


def sync(descriptor: int) -> None:
    """Makes certain that the bytes of an open file are on the disk, and not in the memory of the disk either.

    The `fsync` of macOS leaves them there; what it has besides, network file systems may not know.
    """
    full = getattr(_fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            _fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def open_files_stay() -> bool:
    """Whether a file that is open, in any program, can be neither renamed nor removed, as on Windows."""
    return os.name == "nt"


def patient(call: Callable[..., None]) -> Callable[..., None]:
    """A call that renames or removes files; where open ones stay, it tries for a while, as virus scanners open many."""
    if not open_files_stay():
        return call

    def persist(*arguments: Any) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call(*arguments)
            except PermissionError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.02)

    return persist


def cores() -> int:
    """Cores that this process may use: all, where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's name where a function of the C library tells it, as on macOS; else nothing."""
    ask = c_function("sysctlbyname")
    name, length = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    if ask is None or ask(b"machdep.cpu.brand_string", name, ctypes.byref(length), None, ctypes.c_size_t(0)):
        return ""
    return name.value.decode(errors="replace")


def c_function(name: str) -> Any:
    """A function of the C library; `None` where it has none of this name. It sets `ctypes.get_errno`."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name, None)
    except (TypeError, OSError):  # Windows has no library that holds all
        return None


def hold_signals(numbers: tuple[signal.Signals, ...], held: bool) -> None:
    """Holds back these signals from this thread, or lets them through again, where the system can."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if held else signal.SIG_UNBLOCK, numbers)


def interrupt(number: int) -> None:
    """Sends a signal to the main thread, from any; it wakes up a wait where the system can do that."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)  # Python runs the handler in the main thread
