"""Runs the function of a launch in a worker's process, and packs what it returns."""

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError, HeadraceError, OutOfMemoryError, RunError, WorkerError
from ..store import system
from ..workers import wire
from ..workers.heartbeat import write_end, write_report
from ..workers.here import current_comm
from ..workers.join import attempt_of, connect, within
from .generators import seed
from .job import Job, Result, work

FAILED = 1
ORPHANED_S = 10.0  # that a worker has for its last checkpoint when whoever has started it is gone
DEFERRED = system.signals("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGQUIT")
"""Signals that are held back while workers are started."""
_LOOK_S = 0.5
_REPORT_S = 5.0

Outcome = tuple[bytes, bytes]
"""The value, as the user's own classes are pickled, and the weights."""


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables of this process, and of those that it starts meanwhile; `None` takes one away."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pack_result(result: Result, dumps: Callable[[Any], bytes] = pickle.dumps) -> Outcome:
    try:
        value = dumps(result.value)
    except Exception as error:
        raise ConfigError(
            f"what main returned, a {type(result.value).__name__}, cannot be sent back: {type(error).__name__}: "
            f"{error}. Return plain values and tensors."
        ) from error
    return value, wire.pack(result.weights).numpy().tobytes()


def unpack(outcome: Outcome) -> Result:
    """What a worker has returned."""
    value, weights = outcome
    return Result(pickle.loads(value), wire.unpack(torch.frombuffer(bytearray(weights), dtype=torch.uint8)))


def pack(job: Job, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """The function and its arguments for a worker, to which nothing of them is shared with anybody."""
    try:
        return dumps((job.main, tuple(job.arguments)))
    except Exception as error:
        raise ConfigError(
            f"main and its arguments are sent to the workers, and cannot be: {type(error).__name__}: {error}. Define "
            "main at the top level of a module, and make in it what cannot be sent: open files, locks, threads."
        ) from error


def variables(
    worker: int, count: int, local: int, local_count: int, node: int, host: str, port: int, attempt: int
) -> dict[str, str]:
    """What torchrun would put into the environment of a worker, whose store another process keeps."""
    return {
        "RANK": str(worker),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_count),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def restarting(job: Job, start: Callable[[int], Outcome]) -> Outcome:
    """What all workers come to; after a failure all are started again, as often as the job allows."""
    for attempt in range(job.restarts):
        try:
            return start(attempt)
        except Exception as error:
            if not may_work_again(error):
                raise
            notice = f"all workers start again ({attempt + 1} of {job.restarts})."
            sys.stderr.write(f"headrace: {error}\nheadrace: {notice}\n")
    return start(job.restarts)


def may_work_again(error: BaseException) -> bool:
    """Whether it makes sense to start all workers again after an error."""
    passing = (WorkerError, RunError, OutOfMemoryError)  # of our own errors: those that another start may not meet
    return isinstance(error, Exception) and (not isinstance(error, HeadraceError) or isinstance(error, passing))


def main(file: str, environment: dict[str, str]) -> None:
    """Calls the function in a worker process. Worker 0 writes the outcome into a file beside that of the job."""
    os.environ.update(environment)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C is for the process that has started it, which passes it on once
    threading.Thread(target=_end_with_parent, name="headrace-parent", daemon=True).start()
    _restore_signals()
    system.hold_signals(DEFERRED, False)
    try:
        function, arguments = pickle.loads(Path(file).read_bytes())
        seed(int(os.environ["RANK"]))
        result = work(function, arguments)
        if os.environ["RANK"] == "0":
            Path(f"{file}-outcome").write_bytes(pickle.dumps(pack_result(result)))
    except KeyboardInterrupt:
        write_to_store(write_end, "exit")
        sys.exit(128 + signal.SIGINT)
    except SystemExit as asked:
        write_to_store(write_end, "exit" if asked.code else "returned")
        raise
    except BaseException as error:
        _report(error)
        sys.exit(FAILED)
    if (comm := current_comm()) is not None:
        comm.close()
    write_to_store(write_end, "returned")


def _restore_signals() -> None:
    for number in DEFERRED:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _report(error: BaseException) -> None:
    """Reports the error of this worker to the others and to the parent process."""
    if (comm := current_comm()) is not None:
        comm.report_error(error)
    write_to_store(write_report, error)


def write_to_store(write: Callable[..., None], what: Any) -> None:
    """Writes into the store of the parent process, if that still answers."""

    def leave() -> None:
        store = connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), _REPORT_S)
        write(attempt_of(store), int(os.environ["RANK"]), what)

    if _is_orphan():
        return
    with suppress(RuntimeError):
        within(_REPORT_S, leave, "the store of the workers")


def _is_orphan() -> bool:
    """Whether the process that has started this one is gone."""
    starter = parent_process()
    # Windows goes on to give the id of a process that is no more; forked ones keep each other's pipes to it open
    return starter is not None and (os.getppid() != starter.pid or not starter.is_alive())


def _end_with_parent() -> None:
    """Ends this worker when its parent process is gone: first as by Ctrl-C, then at once."""
    while not _is_orphan():
        time.sleep(_LOOK_S)
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as under nohup
    system.interrupt(signal.SIGTERM if ignored else signal.SIGINT)
    time.sleep(ORPHANED_S)
    os._exit(FAILED)
