"""A trial checks promises one by one, counts what was compared, and names the promise that is broken."""

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.batch import Batch
from ..data.fields import has_rows

POLL_S = 0.05


@dataclass
class Report:
    """How often each promise was compared, and which promises did not apply."""

    subject: str
    checked: dict[str, int] = field(default_factory=dict)
    """How many comparisons of each promise succeeded."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons why promises did not apply, and why streams could not be compared."""

    def __str__(self) -> str:
        kept = ", ".join(f"{promise} ({times:,})" for promise, times in self.checked.items())
        lines = [f"{self.subject} keeps its promises: {kept}."]
        return "\n".join([*lines, *(f"  not checked: {promise}: {why}." for promise, why in self.skipped.items())])


class PromiseTrial:
    """Compares; an AssertionError says which promise was broken, where, what was expected and what came."""

    def __init__(self, promises: Mapping[str, str], limit_s: float) -> None:
        self.report = Report("what the factory makes")
        self._promises, self._limit_s = promises, limit_s
        self._call: tuple[str, float] | None = None  # which call is under way, and since when

    def run(self, work: Callable[[], None]) -> Report:
        """Does the checks in a thread, and gives up when a call to what is tried takes longer than the limit."""
        thread = _Thread(work)
        try:
            while not thread.done.wait(POLL_S):
                call = self._call
                if call is not None and time.monotonic() - call[1] > self._limit_s:
                    late = f"{call[0]} has not come back for {self._limit_s:g} s; it is at {thread.where()}"
                    raise self._broken("calls", late)
        finally:
            thread.end()
        thread.result()
        return self.report

    def that(self, promise: str, holds: bool, where: str, expected: object, got: object) -> None:
        """Raises unless it holds."""
        if not holds:
            raise self._broken(promise, f"{where}: expected {expected}, got {got}")
        self.report.checked[promise] = self.report.checked.get(promise, 0) + 1

    def equal(self, promise: str, expected: Any, got: Any, where: str) -> None:
        """Raises unless both are equal."""
        self.that(promise, bool(expected == got), where, expected, got)

    def skip(self, promise: str, why: str) -> None:
        """Notes that a promise does not apply."""
        self.report.skipped.setdefault(promise, why)

    def uncompared(self, batch: Batch) -> None:
        """Notes the streams of a batch whose values nobody can compare."""
        for name, held in batch.fields.items():
            if not has_rows(held):
                self.skip(f"stream {name!r}", f"it holds a {type(held).__name__}, whose values cannot be compared")

    def call(self, promise: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a call to the code that is tried gives; an error there breaks the promise."""
        self._call = (what, time.monotonic())
        try:
            return function(*args)
        except Exception as error:
            raise self._broken(promise, f"{what} raised {type(error).__name__}: {error}") from error
        finally:
            self._call = None

    def _broken(self, promise: str, sentence: str) -> AssertionError:
        rule = self._promises[promise]
        return AssertionError(
            f"{self.report.subject} broke the promise {promise!r}: {rule}.\n  {sentence.rstrip('.')}."
        )


def in_threads(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Does several pieces of work at once, each in a thread of its own; what they return."""
    threads = [_Thread(work) for work in works]
    try:
        for thread in threads:
            while not thread.done.wait(POLL_S):  # in short waits, so that this thread can be ended too
                pass
    finally:
        for thread in threads:
            thread.end()
    return [thread.result() for thread in threads]


class _Thread:
    """Work in a thread that can be ended."""

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

    def end(self) -> None:
        """Ends the thread if it still runs: a loop in Python ends, a call that waits is left behind."""
        if not self.done.is_set():
            ident = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
