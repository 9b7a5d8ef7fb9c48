"""Processes that tests have started, found by a variable that they all inherit."""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

MARK = "HEADRACE_TESTS_OF"
"""The variable; its value names the run, and the process of it that runs the tests."""
GONE_S = 10.0  # within which a process has to be gone that was told to end, on a machine that has much else to do
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "forked.serve()")
"""Children that serve all tests of a process, and end with it."""


def mark() -> None:
    """All processes that are started from here on belong to this one."""
    run = os.environ.get(MARK, str(os.getpid())).partition(" ")[0]
    os.environ[MARK] = f"{run} {os.getpid()}"


class Processes:
    """Those that have started since this was made; with `of_all`, those of all processes that run the tests."""

    def __init__(self, of_all: bool = False) -> None:
        value = os.environ[MARK]
        self._mark = f"{MARK}={value.partition(' ')[0]} " if of_all else f"{MARK}={value}\0"
        self._others = set[str]() if of_all else _all()
        """Processes that are known to be none of these."""

    def left(self, limit_s: float = 0.0, but: Collection[int] = ()) -> dict[int, str]:
        """Those that are still there, by their commands, once all `but` some have had time to end."""
        end = time.monotonic() + limit_s
        while True:
            found = {pid: command for pid, command in self._now().items() if pid not in but}
            if not found or time.monotonic() >= end:
                return found
            time.sleep(0.01)

    def _now(self) -> dict[int, str]:
        there = _all()
        self._others &= there
        return {int(pid): command for pid in there - self._others if (command := self._ours(pid))}

    def _ours(self, pid: str) -> str:
        """The command of a process; "" for one that is none of ours, serves all tests, or has ended."""
        state, parent, *_ = _read(pid, "stat").rpartition(b")")[2].split() or (b"X", b"0")
        child = int(parent) == os.getpid()
        if self._mark.encode() not in _read(pid, "environ") + b"\0":
            if not child:  # a child may have its environment still to come
                self._others.add(pid)
            return ""
        command = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        return "" if state in (b"Z", b"X") or (child and any(one in command for one in _HELPERS)) else command


def _all() -> set[str]:
    return {name for name in os.listdir("/proc") if name.isdecimal()} if sys.platform == "linux" else set()


def _read(pid: str, what: str) -> bytes:
    try:
        return (Path("/proc") / pid / what).read_bytes()
    except OSError:
        return b""  # it has ended, or is another user's


def end(pids: Iterable[int]) -> None:
    """SIGKILL for all of them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
