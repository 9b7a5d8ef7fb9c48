"""A request to end from outside, noted at once and acted on at the next update; and loops that are left unfinished."""

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
from typing import Any

from ..store import system

SIGNALS = system.signals("SIGTERM", "SIGINT", "SIGUSR1")
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)
_ASK_S = 0.001  # between two signals
_SHUTDOWN = getattr(threading._shutdown, "__code__", None)  # type: ignore[attr-defined]


class Interrupted(BaseException):
    """Raised by `Signals.check` where something long may be left: a wait for data, a validation."""


class Signals:
    """Whether the training is asked to end. A signal sets a flag and does nothing else; a second one ends at once."""

    def __init__(self) -> None:
        self.why = ""
        """What has asked the training at hand, if anything has."""
        self.heard = ""
        """What asked the last training."""
        self.alone = True
        """Whether there is nobody to agree with about when to end."""
        self.signal: int = signal.SIGTERM
        """That asks, or stands for what does."""
        self._agreed = False
        self._listening = self._scoring = False

    def request(self, why: str = "preempted") -> None:
        """Asks, from any thread."""
        if not self.why:
            self.why, self.signal = why, signal.SIGTERM

    def agree(self, why: str) -> None:
        """All workers know that one of them was asked to end, and end here."""
        self.request(why)
        self._agreed = True

    def check(self) -> None:
        """Leaves what can be done again later, if the training is asked to end, and all workers know."""
        if self.why and self._listening and (self.alone or self._agreed):
            raise Interrupted

    def check_scoring(self) -> None:
        """As `check`, within a validation of the loop's own: one that somebody else has asked for is not left."""
        if self._scoring:
            self.check()

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """A validation of the loop's own."""
        self._scoring = True
        try:
            yield
        finally:
            self._scoring = False

    @property
    def status(self) -> int:
        """The exit status of a program that ends without raising `error`."""
        return 128 + (signal.SIGINT if self.signal == signal.SIGINT else signal.SIGTERM)

    def error(self) -> BaseException:
        """What ends the program afterwards: Ctrl-C as ever, anything else with exit status 143."""
        return KeyboardInterrupt() if self.signal == signal.SIGINT else SystemExit(128 + signal.SIGTERM)

    @contextmanager
    def listening(self, wanted: bool) -> Iterator[None]:
        """Signals are heard for a while. Handlers of the user's own stay: they call `Trainer.preempt`.

        Outside the main thread no handler can be set, and whoever has one calls `Trainer.preempt` as well.
        """
        self.heard = ""  # `why` stays: what was asked for before a training still holds
        self._listening, self._agreed = True, False
        before: dict[int, Any] = {}
        if wanted and threading.current_thread() is threading.main_thread():
            before = {s: handler for s in SIGNALS if (handler := signal.getsignal(s)) in _DEFAULT}
        for number in before:
            signal.signal(number, self._heard)
        try:
            yield
        finally:
            self.heard, self.why, self._listening = self.why, "", False
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if not self.why:
            self.why, self.signal = f"{signal.Signals(number).name} received", number
        elif number == signal.SIGINT and (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
            raise KeyboardInterrupt  # in a session that a person wants to keep
        else:
            os.write(2, b"headrace: asked a second time: ended at once, without saving\n")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


# --- loops that are left ----------------------------------------------------------------------------------


def leave_at_exit(steps: Generator[Any], asked: Signals) -> Iterator[Any]:
    """Closes an abandoned loop before the interpreter takes itself apart, not while it does."""
    weakref.finalize(steps, _leave, weakref.ref(steps), asked)
    return steps


def _leave(steps: weakref.ref[Generator[Any]], asked: Signals) -> None:
    if (left := steps()) is not None:
        try:
            left.close()
        except BaseException:
            traceback.print_exc()
            _exit_badly()
        if asked.heard:
            _exit_badly(asked.status)


def exit_badly_if_lost(error: BaseException) -> None:
    """A loop that is left by `break` cannot raise: Python prints the error, and the exit status tells of it."""
    before = sys.unraisablehook

    def hook(unheard: sys.UnraisableHookArgs) -> None:
        sys.unraisablehook = before
        if unheard.exc_value is error:
            atexit.register(_exit_badly)
        before(unheard)

    sys.unraisablehook = hook


@contextmanager
def raising_after_break(asked: Signals, loop: CodeType) -> Iterator[None]:
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
            system.interrupt(number)
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
