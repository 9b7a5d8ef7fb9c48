"""Keeps two threads from using a trainer at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from ..data.feed import READS
from ..errors import ConfigError

Method = TypeVar("Method", bound=Callable[..., Any])
LOOK_S = 1.0
"""How often a thread that waits for a trainer looks whether the thread that uses it is still there."""


class Use:
    """Which thread uses a trainer. It may do so within a use of its own; others wait, or are refused by a training."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread = 0
        self._uses = self._trainings = 0  # one within another

    def __reduce__(self) -> Any:
        return Use, ()  # a copy starts unused

    @property
    def trains(self) -> bool:
        """Whether a training is under way."""
        return self._trainings > 0

    @contextmanager
    def during(self, what: str, trains: bool = False) -> Iterator[None]:
        """This thread uses the trainer for a while, for `what`."""
        self.begin(what, trains)
        try:
            yield
        finally:
            self.end(trains)

    def begin(self, what: str, trains: bool = False) -> None:
        """This thread uses the trainer from now on, until `end`."""
        with self._changed:
            while self._uses and self._is_elsewhere():
                if self.trains:
                    raise ConfigError(
                        f"{what} was called while another thread trains, and would change what it trains. Call it in "
                        "that thread, from a callback or in the loop of steps(), or give each thread a trainer and a "
                        "model of its own."
                    )
                if threading.current_thread().name == READS:
                    raise ConfigError(
                        f"{what} was called by a map or a table that is being read, while the trainer is in use: the "
                        "two would wait for each other. Give the map a trainer and a model of its own."
                    )
                self._changed.wait(LOOK_S)
            self.go_on()
            self._uses, self._trainings = self._uses + 1, self._trainings + trains
            if trains:
                self._changed.notify_all()  # whoever waits is refused

    def end(self, trains: bool = False) -> None:
        """This use is over."""
        with self._changed:
            self._uses, self._trainings = self._uses - 1, self._trainings - trains
            self._changed.notify_all()

    def go_on(self) -> None:
        """The use at hand goes on, perhaps in another thread than before: a loop of `steps` may be handed over."""
        self._thread = threading.get_ident()

    def _is_elsewhere(self) -> bool:
        """Whether it is another thread that uses the trainer, and one that has not ended."""
        return self._thread != threading.get_ident() and any(t.ident == self._thread for t in threading.enumerate())


def one_thread(method: Method) -> Method:
    """A method of a trainer that one thread at a time may call."""

    what = f"{method.__name__}()"

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        use: Use = self.use
        use.begin(what)
        try:
            return method(self, *arguments, **options)
        finally:
            use.end()

    return cast(Method, call)
