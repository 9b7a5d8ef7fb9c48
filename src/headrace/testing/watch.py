"""A time limit for code that may never come back."""

import contextlib
import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

POLL_S = 0.05


class Watch:
    """Does work in a thread, and gives up when one of its calls takes longer than `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._call: tuple[str, float] | None = None

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """A call that is named if it does not come back."""
        self._call = (what, time.monotonic())
        try:
            yield
        finally:
            self._call = None

    def run(self, work: Callable[[], None], late: Callable[[str], Exception]) -> None:
        """Does the work; raises what it raises, or what `late` makes of a sentence about the call that hangs."""
        doing = _Doing(work)
        try:
            while not doing.done.wait(POLL_S):
                call = self._call
                if call is not None and time.monotonic() - call[1] > self.limit_s:
                    raise late(f"{call[0]} has not come back for {self.limit_s:g} s; it is at {doing.where()}")
        finally:
            doing.leave()
        doing.result()


def elsewhere(work: Callable[[], Any]) -> Any:
    """The same work in a thread of its own, waited for."""
    return together([work])[0]


def together(works: list[Callable[[], Any]]) -> list[Any]:
    """Several pieces of work at once, each in a thread of its own."""
    doings = [_Doing(work) for work in works]
    try:
        for doing in doings:
            while not doing.done.wait(POLL_S):  # in short waits, so that whoever gives up can end this thread too
                pass
    finally:
        for doing in doings:
            doing.leave()
    return [doing.result() for doing in doings]


class _Doing:
    """Work in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self._work, self._value = work, None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name="headrace-check", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def where(self) -> str:
        """File, line and function that the thread is at."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "its end"
        here = traceback.extract_stack(frame)[-1]
        return f"{here.filename}, line {here.lineno}, in {here.name}"

    def leave(self) -> None:
        """Ends the thread if it still runs: a loop in Python ends, a call that waits is left behind."""
        if not self.done.is_set():
            ident = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
