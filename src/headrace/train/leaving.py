"""Closes training loops that are abandoned without being finished, and reports what fails then."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType

from ..step.signals import Signals
from ..watch.info import Info

_ASK_S = 0.001  # between two signals
_SHUTDOWN = getattr(threading._shutdown, "__code__", None)  # type: ignore[attr-defined]


def leave_at_exit(steps: Generator[Info], asked: Signals) -> Iterator[Info]:
    """Closes an abandoned loop before the interpreter takes itself apart, not while it does."""
    weakref.finalize(steps, _leave, weakref.ref(steps), asked)
    return steps


def _leave(steps: weakref.ref[Generator[Info]], asked: Signals) -> None:
    if (left := steps()) is not None:
        try:
            left.close()
        except BaseException:
            traceback.print_exc()
            _exit_badly()
        if asked.heard:
            _exit_badly(asked.status)


def mind_if_unheard(error: BaseException) -> None:
    """A loop that is left by `break` cannot raise: Python prints the error, and the exit status tells of it."""
    before = sys.unraisablehook

    def hook(unheard: sys.UnraisableHookArgs) -> None:
        sys.unraisablehook = before
        if unheard.exc_value is error:
            atexit.register(_exit_badly)
        before(unheard)

    sys.unraisablehook = hook


@contextmanager
def answering(asked: Signals, loop: CodeType) -> Iterator[None]:
    """Ends the program after a loop, with this code, that was left by `break` when it had been asked to end."""
    try:
        yield
    except GeneratorExit:
        if asked.heard and threading.current_thread() is threading.main_thread():
            frame = sys._getframe()
            while frame.f_code is not loop and frame.f_back is not None:
                frame = frame.f_back
            _answer_once_left(asked.error(), asked.signal, asked.status, frame)
        raise


def _answer_once_left(error: BaseException, number: int, status: int, loop: FrameType) -> None:
    """Raises an error in the main thread once the frame of a loop is gone: `break` itself cannot raise.

    A thread sends a signal until its handler may raise. If the program ends before that, it ends with `status`.
    """
    before, seen, done = signal.getsignal(number), threading.Event(), threading.Event()
    main = threading.main_thread()

    def answer(_: int, frame: FrameType | None) -> None:
        seen.set()
        while frame is not None:
            if frame is loop or frame.f_code is _SHUTDOWN:
                return
            frame = frame.f_back
        done.set()
        atexit.unregister(end)
        signal.signal(number, before)
        raise error

    def ask() -> None:
        while not done.wait(_ASK_S) and main.is_alive():
            seen.clear()
            signal.pthread_kill(main.ident or 0, number)
            seen.wait()

    def end() -> None:
        done.set()
        atexit.unregister(end)
        _exit_badly(status)

    signal.signal(number, answer)
    atexit.register(end)
    threading.Thread(target=ask, name="headrace-signal", daemon=True).start()


def _exit_badly(status: int = 1) -> None:
    """The end of a program that cannot tell of a failure otherwise, after what else is to be done at its end."""
    atexit.unregister(_exit_badly)
    atexit._run_exitfuncs()
    for held in gc.get_objects():  # files that somebody has not closed keep what was written to them
        if issubclass(type(held), io.TextIOWrapper | io.BufferedWriter) and not held.closed:
            with suppress(Exception):
                held.flush()
    os._exit(status)
