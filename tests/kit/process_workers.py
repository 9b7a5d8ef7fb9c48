"""A launch of worker processes for tests: what workers do, the launching process, and what it tells."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch

from headrace.engines import processes
from headrace.engines.job import Job
from headrace.engines.processes import run
from headrace.workers.here import here
from kit.forked import Child, start, tell
from kit.torch_workers import LATE, PATIENCE_S, TIMEOUT_S, fork_workers, hangs, is_stopped, steps

# --- what workers do; each function gets a directory and a word -------------------------------------------


def steps_of_training(at: str, how: str) -> str:
    return steps(how)


def waits(at: str, how: str) -> None:
    here().all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    while not (Path(at) / "go").exists():
        time.sleep(0.01)


def never_comes(at: str, how: str) -> None:
    tell(f"pid {os.getpid()}")
    if os.environ["RANK"] == "1":
        is_stopped()
    here()


def exits_well(at: str, how: str) -> None:
    here().all_reduce(torch.ones(1))
    sys.exit()


def goes_on(at: str, how: str) -> str:
    """Worker 1 returns, and a thread of its own does not."""
    comm = here()
    comm.all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    if comm.shard.index == 1:
        threading.Thread(target=hangs).start()
    return "done"


def returns_a_lock(at: str, how: str) -> Any:
    return threading.Lock()


def listens(at: str, how: str) -> None:
    """Counts what it hears before it ends."""
    heard: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: heard.append(number))
    comm = here()
    comm.all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    while not heard:
        time.sleep(0.01)
    tell("asked")
    while how == "deaf":
        time.sleep(0.01)
    time.sleep(0.3)  # for what should not come
    tell(f"heard {heard}")
    comm.all_reduce(torch.ones(1))  # as a last checkpoint needs all
    sys.exit(128 + heard[0])


# --- the process that starts them -------------------------------------------------------------------------


def launches(function: str, workers: int, at: str, how: str, restarts: int = 0) -> None:
    """What a program does that calls `launch`; it tells the result or the error, and handlers and environment stay."""
    fork_workers()
    processes.ENDING_S = PATIENCE_S  # none of them ends since it was given long enough
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before, environment = [*map(signal.getsignal, numbers)], dict(os.environ)
    timeout_s = TIMEOUT_S if how in LATE or function in ("never_comes", "goes_on") else PATIENCE_S
    job = Job(globals()[function], (at, how), workers=workers, restarts=restarts, timeout_s=timeout_s)
    try:
        tell(f"result {run(job).value}")
    except BaseException as error:
        tell(f"raised {type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            tell("note " + note.replace("\n", " | "))
        tell(f"children {len(active_children())}")
        raise SystemExit(3) from None
    finally:
        assert [*map(signal.getsignal, numbers)] == before
        assert dict(os.environ) == environment


@contextmanager
def launched(
    at: Path, how: str, workers: int = 2, restarts: int = 0, main: str = "steps_of_training"
) -> Iterator[Child]:
    """A process that launches workers, each of which calls `main`, a function above, with `at` and `how`."""
    with start(launches, at, main, workers, at, how, restarts) as child:
        yield child


# --- what the test sees -----------------------------------------------------------------------------------


def pids(child: Child, count: int) -> list[int]:
    """The workers, once all have told who they are."""
    return [int(child.until("pid")) for _ in range(count)]


def raised(child: Child) -> tuple[str, list[str]]:
    """What, and the notes."""
    what = child.until("raised")
    notes = []
    while (line := child.line()) is not None and line.startswith("note"):
        notes.append(line)
    assert line == "children 0"
    return what, notes
