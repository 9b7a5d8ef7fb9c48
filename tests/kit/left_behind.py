"""Finds processes that tests have started and that are still running, by an environment variable that they inherit."""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

MARK = "HEADRACE_TESTS_OF"
"""The environment variable; its value is the pid of the first process of the run and of the one that runs the tests."""
GONE_S = 60.0  # time that a process has to end, on a busy machine
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "forked.serve()")
"""Commands of child processes that serve all tests of a process, and end with it."""


def mark() -> None:
    """Sets the variable: processes started from now on are found by it."""
    run = os.environ.get(MARK, str(os.getpid())).partition(" ")[0]
    os.environ[MARK] = f"{run} {os.getpid()}"


class Processes:
    """The processes that this one has started since; with `of_all`, those of every process that runs the tests."""

    def __init__(self, of_all: bool = False) -> None:
        value = os.environ[MARK]
        self._mark = f"{MARK}={value.partition(' ')[0]} " if of_all else f"{MARK}={value}\0"
        self._others = set[str]() if of_all else _all()
        """The pids of processes that were started by others."""

    def left(self, limit_s: float = 0.0, but: Collection[int] = ()) -> dict[int, str]:
        """The commands of processes that are still running after `limit_s`, by pid; those in `but` are left out."""
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
        """The command of a process; "" if others started it, if it serves all tests, or if it has ended."""
        state, parent, *_ = _read(pid, "stat").rpartition(b")")[2].split() or (b"X", b"0")
        child = int(parent) == os.getpid()
        if self._mark.encode() not in _read(pid, "environ") + b"\0":
            if not child:  # a new child may not have its environment yet
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
    """Sends SIGKILL to these processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
