"""Finds the communicator of this worker: a virtual one, one that torchrun has started, or a worker alone."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .comm import Comm, Null


class _Current(threading.local):
    comm: Comm | None = None


_current = _Current()


def here() -> Comm:
    """The communicator of this worker."""
    if _current.comm is not None:
        return _current.comm
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        from .torch_comm import TorchComm

        _current.comm = TorchComm.of_environment()
        return _current.comm
    return Null()


def current_comm() -> Comm | None:
    """The communicator of this worker, if one has been made."""
    return _current.comm


@contextmanager
def use_comm(comm: Comm) -> Iterator[None]:
    """For a while, `here` returns this communicator in this thread."""
    before, _current.comm = _current.comm, comm
    try:
        yield
    finally:
        _current.comm = before
