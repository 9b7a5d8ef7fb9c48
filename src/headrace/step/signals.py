"""A request to end from outside, as a scheduler makes it by a signal: noted at once, acted on at the next update."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


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
