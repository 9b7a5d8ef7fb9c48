"""The engine of processes on this machine: starts and watches them, and starts all again when one fails."""

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from multiprocessing import active_children, current_process, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Store, TCPStore

from ..errors import ConfigError
from ..store import system
from ..workers.heartbeat import explain, read_end, write_report
from ..workers.join import LOOPBACK, attempt_of, listen, loopback_interface
from .job import Job, Result
from .worker import DEFERRED, FAILED, Outcome, environment, main, pack, restarting, unpack, variables

SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # otherwise a new interpreter imports from the working directory, perhaps a run
START = "spawn"  # a fork of a process that has threads, or has used an accelerator, does not work
POLL_S = 0.1  # how often workers are looked at
GRACE_S = 1.5  # that the others have to end by themselves after a failure, and once more when they are asked to
ENDING_S = 30.0  # that they have for a last checkpoint where somebody was asked to end
_ASKED = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}  # statuses of those that were asked to end


def run(job: Job) -> Result:
    """Runs the job's workers to their end; the result of worker 0."""
    _check_place()
    devices = _devices(job)
    home = getattr(job.main, "__module__", None)
    if home == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ConfigError(f"main={job.main!r} is in no file that workers could read. Put it into a module.")
    packed = pack(job)
    with ExitStack() as stack:
        stack.enter_context(environment(_settings(job, devices)))
        stack.enter_context(_as_before())
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-")))
        asked = _asked_to_end()
        stores = [listen(LOOPBACK, 0, job.timeout_s)]
        stack.callback(stores.clear)  # its thread and its port end here: the frames of an error would keep them

        def start(attempt: int) -> Outcome:
            file = room / f"job-{attempt}"
            file.write_bytes(packed)
            error = WorkerProcesses(job, str(file), stores[0], attempt, asked).error()
            if asked:
                raise _ending(asked[0])
            if error is not None:
                raise error
            file_of_outcome = Path(f"{file}-outcome")
            if not file_of_outcome.exists():
                raise SystemExit(0)  # as the function itself would have done
            result: Outcome = pickle.loads(file_of_outcome.read_bytes())
            return result

        return unpack(restarting(job, start))


class WorkerProcesses:
    """One start of all workers."""

    def __init__(self, job: Job, file: str, store: TCPStore, attempt: int, asked: list[int]) -> None:
        self._timeout_s, self._asked = job.timeout_s, asked
        self._store: Store = attempt_of(store, attempt)
        context: Any = multiprocessing.get_context(START)
        path = {name: os.environ.get(name, "") for name in SAFE_PATH}  # for what workers start
        system.hold_signals(DEFERRED, True)  # half of them would be nobody's
        try:
            self._processes = []
            with environment(SAFE_PATH):
                for worker in range(job.workers):
                    place = variables(worker, job.workers, worker, job.workers, 0, LOOPBACK, store.port, attempt) | path
                    process = context.Process(target=main, args=(file, place))
                    process.start()
                    self._processes.append(process)
        finally:
            system.hold_signals(DEFERRED, False)

    def error(self) -> BaseException | None:
        """What the workers have ended by, once all have ended."""
        failed: dict[int, int] = {}
        passed_on, late = 0, False
        ask_s = kill_s = late_s = inf  # when those that are left are asked to end, or ended
        while alive := [process for process in self._processes if process.is_alive()]:
            wait([process.sentinel for process in alive], POLL_S)
            now_s = time.monotonic()
            if not failed and (failed := self._failed()):
                self._report_lost(failed)
                ask_s = now_s + (ENDING_S if _ASKED & set(failed.values()) else GRACE_S)
            if len(self._asked) > passed_on:
                passed_on, ask_s = len(self._asked), inf
                kill_s = now_s + (ENDING_S if passed_on == 1 else 0.0)  # asked again, it waits for nobody
                for process in alive:
                    os.kill(process.pid, self._asked[0])
            elif now_s > ask_s:
                ask_s, kill_s = inf, now_s + GRACE_S
                for process in alive:
                    process.terminate()
            if late_s == inf and not failed and self._all_returned():
                late_s = now_s + self._timeout_s
            if now_s > late_s and not late:
                late, kill_s = True, now_s
                self._tell_late()
            if now_s >= kill_s:
                for process in alive:
                    process.kill()
        failed = failed or self._failed()
        return self._cause(failed) if failed and not late else None

    def _report_lost(self, failed: dict[int, int]) -> None:
        """Reports to the others who was killed, so that they need not find it out."""
        for worker, how in {worker: _how(status) for worker, status in failed.items() if status < 0}.items():
            write_report(self._store, worker, explain(self._store, len(self._processes), {worker: how}))

    def _tell_late(self) -> None:
        late = [str(worker) for worker, process in enumerate(self._processes) if process.is_alive()]
        sys.stderr.write(
            f"headrace: worker{'s' * (len(late) > 1)} {' and '.join(late)} of this node returned {self._timeout_s:g} s "
            "ago and did not end, as when a thread goes on: ended now.\n"
        )

    def _failed(self) -> dict[int, int]:
        """The exit statuses of workers that have failed, or ended without a record in the store."""
        statuses = {worker: process.exitcode for worker, process in enumerate(self._processes)}
        return {
            worker: status
            for worker, status in statuses.items()
            if status or (status == 0 and not read_end(self._store, worker))
        }

    def _all_returned(self) -> bool:
        return all(read_end(self._store, worker) == "returned" for worker in range(len(self._processes)))

    def _cause(self, failed: dict[int, int]) -> BaseException:
        """What the workers have ended by: of an exit that one has asked for, the same exit."""
        for worker, status in failed.items():
            if status not in (0, FAILED) and read_end(self._store, worker) == "exit":
                if status == 128 + signal.SIGINT:
                    return KeyboardInterrupt()
                sys.stderr.write(
                    f"headrace: worker {worker} has ended by sys.exit({status}), and so all workers end.\n"
                )
                return SystemExit(status)
        return explain(self._store, len(self._processes), {worker: _how(status) for worker, status in failed.items()})


def _how(status: int) -> str:
    """How a worker has ended; "" if by an error that one of them has reported."""
    if status < 0:
        return f"was lost: {_signal(-status)}"
    if status == FAILED:
        return ""
    return (
        f"ended with exit status {status}, and did not say why. What it has printed may tell, as an error of the "
        "script, which each worker imports first"
    )


def _check_place() -> None:
    """Whether workers started here would find the function."""
    if getattr(current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker that imports this script would start workers itself: put the call of launch under "
            "`if __name__ == '__main__':`."
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("processes are started from the main thread, which hears Ctrl-C. Call launch there.")


def _devices(job: Job) -> list[str] | None:
    """The accelerators that workers are to see, as the system names them; `None`: as they are."""
    workers = job.workers
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if job.devices is None:
        if there and workers > there:
            raise ConfigError(
                f"{workers} workers on a machine with {there} accelerators. Start no more workers than that, or "
                "pass devices=[] to train on the CPU."
            )
        return None
    if any(device >= there for device in job.devices):
        raise ConfigError(f"devices={list(job.devices)}, on a machine with {there} accelerators.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(device) for device in range(there)]
    return [names[device] for device in job.devices]


# --- around it ---------------------------------------------------------------------------------------------


def _settings(job: Job, devices: list[str] | None) -> dict[str, str]:
    """Environment variables of workers: some are read before any of their code runs."""
    usual = {
        "OMP_NUM_THREADS": str(max(1, system.cores() // job.workers)),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "NCCL_SOCKET_IFNAME": loopback_interface(),
    }
    settings = {name: os.environ.get(name, value) for name, value in usual.items()}
    visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
    return {"HEADRACE_TIMEOUT_S": f"{job.timeout_s:g}", **settings, **visible}


@contextmanager
def _as_before() -> Iterator[None]:
    """However it ends: no process is left, signals go where they went, and the terminal shows its cursor."""
    handlers = {number: signal.getsignal(number) for number in DEFERRED}
    processes = set(active_children())
    with environment(SAFE_PATH):
        resource_tracker.ensure_running()  # it is started with signals of its own, which starting workers is not to see
    try:
        yield
    except BaseException:
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()
        raise
    finally:
        for number in DEFERRED:
            signal.signal(number, signal.SIG_IGN)
        for process in set(active_children()) - processes:
            process.kill()
            process.join()
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # one that is not Python's is lost


def _asked_to_end() -> list[int]:
    """A list of the signals that ask this process to end, from now on: they are passed on to the workers."""
    asked: list[int] = []
    for number in filter(_is_ours, DEFERRED):
        signal.signal(number, lambda number, _: asked.append(number))
    return asked


def _is_ours(number: signal.Signals) -> bool:
    """Whether a signal asks the workers to end: not one of nohup, nor SIGUSR1 where the user has a use for it."""
    handler = signal.getsignal(number)
    return handler != signal.SIG_IGN and (number not in system.signals("SIGUSR1") or handler == signal.SIG_DFL)


def _ending(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(
        128 + (signal.SIGTERM if number in system.signals("SIGUSR1") else number)
    )  # as a training alone ends


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number in system.signals("SIGKILL"):
        return f"it was killed ({name}), as the system does when memory runs out"
    return f"it was ended by {name}"
