"""What happens in a worker process of a launch, and what comes back from it."""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..workers.heartbeat import write_exit, write_told
from ..workers.here import speaking
from ..workers.store import attempt_of, connect, within
from ..workers.wire import pack as to_bytes
from ..workers.wire import unpack as from_bytes
from .generators import seed
from .job import Job, Result, work

FAILED = 1
ORPHANED_S = 10.0  # that a worker has for its last checkpoint when whoever has started it is gone
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)
"""Signals that are held back while workers are started."""
_LOOK_S = 0.5
_TELLING_S = 5.0

Outcome = tuple[bytes, bytes]
"""The value, as the user's own classes are pickled, and the weights."""


def pack(job: Job) -> bytes:
    """The function and its arguments for a worker, to which nothing of them is shared with anybody."""
    home = getattr(job.main, "__module__", None)
    if home == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ConfigError(f"main={job.main!r} is in no file that workers could read. Put it into a module.")
    try:
        return pickle.dumps((job.main, tuple(job.arguments)))
    except Exception as error:
        raise ConfigError(
            f"main and its arguments are sent to the workers, and cannot be: {type(error).__name__}: {error}. Define "
            "main at the top level of a module, and make in it what cannot be sent: open files, locks, threads."
        ) from error


def unpack(outcome: Outcome) -> Result:
    """What a worker has returned."""
    value, weights = outcome
    return Result(pickle.loads(value), from_bytes(torch.frombuffer(bytearray(weights), dtype=torch.uint8)))


def main(file: str, parent: int) -> str | None:
    """In a worker: calls the function. The first worker of a node returns the file that holds what came of it.

    `None` if that worker left by exit(). What is returned is short: a worker that is killed while it is read would keep
    whoever reads it waiting.
    """
    os.setpgrp()  # Ctrl-C is for the process that has started it, which passes it on once
    threading.Thread(target=_end_without, args=(parent,), name="headrace-parent", daemon=True).start()
    _hear_as_ever()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    try:
        function, arguments = pickle.loads(Path(file).read_bytes())
        seed(int(os.environ["RANK"]))
        result = work(function, arguments)
        outcome = None
        if os.environ["LOCAL_RANK"] == "0":
            outcome = f"{file}-outcome-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
            Path(outcome).write_bytes(pickle.dumps(_pack_result(result)))
    except KeyboardInterrupt:
        _in_store(write_exit)
        sys.exit(128 + signal.SIGINT)
    except SystemExit as asked:
        if asked.code:
            _in_store(write_exit)
            raise
        outcome = None
    except BaseException as error:
        _tell(error)
        sys.exit(FAILED)
    if (comm := speaking()) is not None:
        comm.close()
    _hear_as_ever()  # while it waits for the others
    return outcome


def _hear_as_ever() -> None:
    for number in HELD:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _pack_result(result: Result) -> Outcome:
    try:
        value = pickle.dumps(result.value)
    except Exception as error:
        raise ConfigError(
            f"what main returned, a {type(result.value).__name__}, cannot be sent back: {type(error).__name__}: "
            f"{error}. Return plain values and tensors."
        ) from error
    return value, to_bytes(result.weights).numpy().tobytes()


def _tell(error: BaseException) -> None:
    """Whoever has started this worker learns why it fails, and so do the others."""
    if (comm := speaking()) is not None:
        comm.tell(error)
    _in_store(write_told, error)


def _in_store(write: Callable[..., None], *what: Any) -> None:
    """Leaves something in the store, if it is there still, for whoever has started this worker."""

    def work() -> None:
        store = connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), _TELLING_S)
        write(attempt_of(store), int(os.environ["RANK"]), *what)

    with suppress(RuntimeError):
        within(_TELLING_S, work, "the store of the workers")


def _end_without(parent: int) -> None:
    """No worker is left behind by a process that is killed: SIGINT has asked it to end, and it may not have heard."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as under nohup
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHANED_S)
    os._exit(FAILED)
