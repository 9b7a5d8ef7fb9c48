"""Threads that take turns on one core of the processor: what one leaves in the cache, the next one finds there."""

import ctypes
import os
import threading
from collections.abc import Iterable
from typing import Any

_CORES = 1024  # of a machine, at most, as the C library has it
_MYSELF = 0  # the calling thread, to the system


class Cores:
    """Linux wakes a thread on an idle core if there is one, and each turn would begin with a cold cache.

    So whoever waits may only run where the one runs that wakes it up. As long as it runs it is free: threads and
    processes that it starts inherit nothing, and the system may move it, and then all that follow.
    """

    def __init__(self, count: int) -> None:
        self._system = _system()
        self._threads, self._at = [_MYSELF] * count, [-1] * count
        """The threads, as the system calls them, and the core on which each waits."""
        self._allowed = [b""] * count
        self._only: dict[int, bytes] = {}

    def enter(self, worker: int) -> None:
        """This thread is the worker's."""
        if self._system is not None:
            self._threads[worker], self._allowed[worker] = threading.get_native_id(), _mask(os.sched_getaffinity(0))

    def leave(self, worker: int) -> None:
        """This thread is nobody's from now on: whoever still hands over to the worker leaves it alone."""
        self._threads[worker] = _MYSELF
        self.go_on(worker)

    def hand_over(self, worker: int, other: int) -> None:
        """This thread, the worker's, is about to wake up the other's and to wait."""
        if self._system is None:
            return
        core: int = self._system.sched_getcpu()
        only = self._only.get(core) or self._only.setdefault(core, _mask([core]))
        size, pin = len(only), self._system.sched_setaffinity
        pin(_MYSELF, size, only)
        if self._at[other] != core:
            pin(self._threads[other], size, only)  # no other thread comes between reading whose it is and the call
        self._at[worker] = core

    def go_on(self, worker: int) -> None:
        """This thread, the worker's, may run anywhere again."""
        if self._system is not None:
            self._system.sched_setaffinity(_MYSELF, len(self._allowed[worker]), self._allowed[worker])


def _system() -> Any:
    """The system's calls; `None` where they are not there, or there is one core alone."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    library = ctypes.PyDLL(None)  # keeps the interpreter's lock: these calls take a microsecond
    return library if hasattr(library, "sched_getcpu") and hasattr(library, "sched_setaffinity") else None


def _mask(cores: Iterable[int]) -> bytes:
    return sum(1 << core for core in cores).to_bytes(_CORES // 8, "little")
