"""Threads that take turns on one core of the processor: what one leaves in the cache, the next one finds there."""

import ctypes
import os
import threading
from collections.abc import Callable


class Cores:
    """Linux wakes a thread on an idle core if there is one, and each turn would begin with a cold cache.

    So whoever waits may only run where the one runs that wakes it up. As long as it runs it is free: threads that it
    starts inherit nothing, and the system may move it, and then all that follow.
    """

    def __init__(self, count: int) -> None:
        self._here = _here()
        self._threads = [0] * count
        self._allowed: list[set[int]] = [set()] * count
        self._waits_at = [-1] * count

    def enter(self, worker: int) -> None:
        """This thread is the worker's."""
        if self._here is not None:
            self._threads[worker], self._allowed[worker] = threading.get_native_id(), os.sched_getaffinity(0)

    def hand_over(self, worker: int, other: int) -> None:
        """This thread, the worker's, is about to wake up the other's and to wait."""
        if self._here is None:
            return
        core = self._here()
        try:
            os.sched_setaffinity(0, {core})
            if self._waits_at[other] != core:
                os.sched_setaffinity(self._threads[other], {core})
        except OSError:  # the system allows it other cores than it did
            self._here = None
        self._waits_at[worker] = core

    def go_on(self, worker: int) -> None:
        """This thread, the worker's, may run anywhere again."""
        if self._allowed[worker]:
            os.sched_setaffinity(0, self._allowed[worker])


def _here() -> Callable[[], int] | None:
    """What tells the core that a thread runs on; `None` where that does not help, or cannot be."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    found: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return found if found is not None and found() in os.sched_getaffinity(0) else None
