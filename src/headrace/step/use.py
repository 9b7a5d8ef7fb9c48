"""Keeps two threads from using a trainer at the same time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from ..data.feed import READS
from ..errors import ConfigError

Method = TypeVar("Method", bound=Callable[..., Any])
CHECKED_EVERY_S = 1.0  # by a thread that waits: whether the owner is still alive, and does not train


class Use:
    """A re-entrant lock of a trainer. A second thread waits for it; during a training it is refused."""

    def __init__(self) -> None:
        self._released, self._owner = threading.Condition(), threading.current_thread()
        self._uses = 0  # one within another, as a validation within a training
        self.trainings = 0  # under way, of these uses

    def __reduce__(self) -> Any:
        return Use, ()  # a copy starts unused

    @contextmanager
    def during(self, what: str, trains: bool = False) -> Iterator[None]:
        """This thread uses the trainer for a while; errors name the use by `what`."""
        me = threading.current_thread()
        with self._released:
            while self._uses and self._owner is not me and self._owner.is_alive():
                if self.trainings:
                    raise ConfigError(
                        f"{what} was called while another thread trains, and would change what it trains. Call it in "
                        "that thread, from a callback or in the loop of steps(), or give each thread its own trainer."
                    )
                if me.name == READS:
                    raise ConfigError(
                        f"{what} was called by a map or a table that is being read, while the trainer is in use: the "
                        "two would wait for each other. Give the map a trainer and a model of its own."
                    )
                self._released.wait(CHECKED_EVERY_S)
            self._owner, self._uses, self.trainings = me, self._uses + 1, self.trainings + trains
        try:
            yield
        finally:
            with self._released:
                self._uses, self.trainings = self._uses - 1, self.trainings - trains
                self._released.notify_all()

    def advance(self) -> None:
        """Makes this thread the owner: a loop of `steps` may be handed from thread to thread."""
        self._owner = threading.current_thread()


def one_thread(method: Method) -> Method:
    """A method of a trainer that one thread at a time may call."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.use.during(f"{method.__name__}()"):
            return method(self, *arguments, **options)

    return cast(Method, call)
