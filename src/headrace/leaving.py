"""What becomes of a loop that somebody leaves without a word: it is closed in time, and what fails then is told."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import traceback
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress

from .info import Info


def leave_at_exit(steps: Generator[Info]) -> Iterator[Info]:
    """A loop that somebody has left without a word is closed before the interpreter comes apart, not while it does."""
    weakref.finalize(steps, _leave, weakref.ref(steps))
    return steps


def _leave(steps: weakref.ref[Generator[Info]]) -> None:
    if (left := steps()) is not None:
        try:
            left.close()
        except BaseException:
            traceback.print_exc()
            _exit_badly()


def mind_if_unheard(error: BaseException) -> None:
    """A loop that is left by `break` cannot raise: Python prints the error, and the exit status tells of it."""
    before = sys.unraisablehook

    def hook(unheard: sys.UnraisableHookArgs) -> None:
        sys.unraisablehook = before
        if unheard.exc_value is error:
            atexit.register(_exit_badly)
        before(unheard)

    sys.unraisablehook = hook


def _exit_badly() -> None:
    """The end of a program whose last checkpoint could not be written, after what else is to be done at its end."""
    atexit.unregister(_exit_badly)
    atexit._run_exitfuncs()
    for held in gc.get_objects():  # files that somebody has not closed keep what was written to them
        if isinstance(held, io.TextIOWrapper | io.BufferedWriter) and not held.closed:
            with suppress(Exception):
                held.flush()
    os._exit(1)
