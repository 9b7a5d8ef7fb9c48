"""Requests to end a training, by a signal or by `Trainer.preempt`: noted at once, acted on after the update at hand."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..store import system

SIGNALS = system.signals("SIGTERM", "SIGINT", "SIGUSR1")
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


class Interrupted(BaseException):
    """Raised by `Signals.check` where something long may be left: a wait for data, a validation."""


class Signals:
    """Whether the training is asked to end. A signal sets a flag; a second one ends the program at once."""

    def __init__(self) -> None:
        self.why = ""
        """Why the training at hand is to end; "" if nothing has asked for that."""
        self.last_reason = ""
        """Why the last training was asked to end."""
        self.is_only_worker = True
        """Whether no other worker has to agree on the update after which all end."""
        self.signal: int = signal.SIGTERM
        """The signal that asked; SIGTERM for `request`."""
        self._has_consensus = False
        self._listening = self._scoring = False

    def request(self, why: str = "preempted") -> None:
        """Asks the training to end; any thread may call it."""
        if not self.why:
            self.why, self.signal = why, signal.SIGTERM

    def end_together(self, why: str) -> None:
        """Says that all workers have agreed to end after this update."""
        self.request(why)
        self._has_consensus = True

    def check(self) -> None:
        """Raises `Interrupted` if the training is asked to end, and no worker has to be waited for."""
        if self.why and self._listening and (self.is_only_worker or self._has_consensus):
            raise Interrupted

    def check_scoring(self) -> None:
        """As `check`, but only within a validation that the loop has started."""
        if self._scoring:
            self.check()

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Marks a validation that the loop has started."""
        self._scoring = True
        try:
            yield
        finally:
            self._scoring = False

    def error(self) -> BaseException:
        """The exception to raise after the training: a `KeyboardInterrupt` for SIGINT, else exit status 143."""
        if self.signal != signal.SIGINT:
            return SystemExit(128 + signal.SIGTERM)
        return KeyboardInterrupt() if _is_session() else _without_traceback(KeyboardInterrupt())

    @contextmanager
    def listening(self, wanted: bool) -> Iterator[None]:
        """Handles signals for a while, in the main thread, unless the program has handlers of its own."""
        self.last_reason = ""  # `why` stays: what was asked for before a training still holds
        self._listening, self._has_consensus = True, False
        before: dict[int, Any] = {}
        if wanted and threading.current_thread() is threading.main_thread():
            before = {s: handler for s in SIGNALS if (handler := signal.getsignal(s)) in _DEFAULT}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            self.last_reason, self.why, self._listening = self.why, "", False
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.why:
            self.why, self.signal = f"{signal.Signals(number).name} received", number
        elif number == signal.SIGINT and _is_session():
            raise KeyboardInterrupt
        else:
            os.write(2, b"headrace: asked a second time: ended at once, without saving\n")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _is_session() -> bool:
    """Whether a person types commands here, and wants to keep the session."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _without_traceback(error: BaseException) -> BaseException:
    """Lets the program end by this exception without a traceback, if nothing catches it: the training is saved."""
    print_error = sys.excepthook
    sys.excepthook = lambda kind, value, trace: None if value is error else print_error(kind, value, trace)
    return error
