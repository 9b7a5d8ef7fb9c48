"""Writes one thing at a time in a thread; what failed there is raised where the next thing is asked for."""

import threading
import warnings
from collections.abc import Callable

SLOW_S = 60.0  # that a write is waited for before whoever looks on is told what the training waits for


class Saver:
    """At most one write is under way. The thread is no daemon: an interpreter that ends waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begins a write; the one before it has to be waited for."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(write,), name="headrace-save")
        try:
            thread.start()
        except RuntimeError:  # an interpreter that is shutting down starts none
            write()
            return
        self._thread = thread

    def wait(self) -> None:
        """Returns once the write is done; raises if it failed. A disk may be slow: it is waited for, and said so."""
        if self._thread is not None:
            self._thread.join(SLOW_S)
            if self._thread.is_alive():
                warnings.warn(
                    f"the training has waited for its last checkpoint for {SLOW_S:g} s: the disk is slow, or does not "
                    "answer. It goes on once that is written.",
                    stacklevel=2,
                )
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error
