"""Makes processes of tests workers of torch.distributed, which make steps and fail in several ways."""

import ctypes
import gc
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.run
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headrace.engines import processes
from headrace.errors import DataError, WorkerError
from headrace.workers.here import here
from headrace.workers.shared import Shared
from kit import forked
from kit.forked import LIMIT_S, Child, start, tell

TIMEOUT_S = 3.0  # how long workers wait for each other where one of them comes late
PATIENCE_S = 1000.0  # and where none does: whoever ends before has not waited for this


def be_worker(index: int, count: int, port: int, timeout_s: float = PATIENCE_S) -> None:
    """Sets the environment variables that torchrun would set."""
    os.environ |= {"RANK": f"{index}", "WORLD_SIZE": f"{count}", "LOCAL_RANK": f"{index}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "HEADRACE_TIMEOUT_S": f"{timeout_s}"}


@contextmanager
def worker_processes(function: Callable[..., None], at: Path, count: int, *arguments: Any) -> Iterator[list[Child]]:
    """So many processes, each of which calls `function(index, *arguments)`."""
    with ExitStack() as stack:
        yield [stack.enter_context(start(function, at, index, *arguments)) for index in range(count)]


def fork_workers() -> None:
    """Makes `launch` fork its workers from this process, which has one thread and has imported all that they need.

    Garbage of this process stays what it is in them: some of it would wait for threads that were not forked.
    """
    processes.START = "fork"
    os.register_at_fork(after_in_child=gc.freeze)


def with_forks(function: Callable[..., None], at: Path, *arguments: Any) -> str:
    """Calls a function of a test's module in a process whose workers are forks, as it returns; what it has printed."""
    with start(_with_forks, at, function.__code__.co_filename, function.__name__, *arguments) as child:
        assert child.ending() == 0, child.output
        return child.output


def _with_forks(file: str, name: str, *arguments: Any) -> None:
    fork_workers()
    getattr(sys.modules.get(Path(file).stem) or forked._loaded(file), name)(*arguments)


def run_program(path: str, directory: str) -> None:
    """Runs a program as the main one, in a directory; processes that it launches are forks."""
    fork_workers()
    os.chdir(directory)
    runpy.run_path(path, run_name="__main__")


def run_torchrun(options: list[str], function: Callable[..., object], *arguments: Any) -> None:
    """Does what torchrun does with these options, but forks its workers, which call a function."""

    def launch(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
        config.start_method = "fork"
        return lambda *_: elastic_launch(config, function)(*arguments)

    torch.distributed.run.elastic_launch = launch  # type: ignore[assignment, attr-defined]
    torch.distributed.run.main([*options, "no script"])


def over_gloo() -> None:
    """Makes the workers exchange vectors over gloo, as workers of several hosts do."""
    Shared.connect = classmethod(lambda *_: None)  # type: ignore[assignment,method-assign]


# --- what happens to a worker -----------------------------------------------------------------------------


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    time.sleep(PATIENCE_S)


def hangs_deaf() -> None:
    """In a call that no signal interrupts: it locks what it has locked."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def raises() -> None:
    raise ValueError("row 17 is not in the archive")


def raises_ours() -> None:
    raise DataError("row 17 has no target.")


def raises_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("a bad start")


def ends() -> None:
    sys.exit(0)


def exits() -> None:
    sys.exit(7)


def leaves() -> None:
    os._exit(0)


WAYS = {
    way.__name__: way
    for way in (is_killed, is_stopped, hangs, hangs_deaf, raises, raises_ours, raises_once, ends, exits, leaves)
}
LATE = ("is_stopped", "hangs", "hangs_deaf")
"""Ways of a worker for which the others wait until their timeout."""


def steps(how: str, bad: int = 1) -> str:
    """Steps as a training makes them; at step 5 something happens to a worker, for which the others wait."""
    comm = here()
    tell(f"pid {os.getpid()}")
    try:
        for step in range(30):
            comm.at(step, "reading data")
            if step == 5 and how:
                comm.gather(None)
                tell(f"{'acts' if comm.shard.index == bad else 'waits'} {time.monotonic()} {os.getpid()}")
                if comm.shard.index == bad:
                    WAYS[how]()
            comm.at(step, "reducing")
            comm.all_reduce(torch.ones(1000))
    except WorkerError as error:
        tell(f"lost {time.monotonic()} {error}")
        raise
    return "done"


def times(told: list[str], what: str) -> list[float]:
    """When workers did something, as far as they have told."""
    return [float(line.split()[1]) for line in told if line.startswith(what)]


def wait_until_gone(pids: Collection[int], limit_s: float = LIMIT_S) -> None:
    """Returns once all these processes have ended; zombies have."""
    end = time.monotonic() + limit_s
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < end, f"the processes {left} are still there after {limit_s:g} s"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
