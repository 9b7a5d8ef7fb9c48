"""Workers that are processes: of this machine, or of several that each make the same call."""

import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children, current_process, resource_tracker
from pathlib import Path

import torch
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from ..errors import ConfigError, WorkerError
from ..workers.store import is_loopback, loopback_interface
from .agent import ENDING_S, Agent
from .job import Job, Result
from .rendezvous import host_of, rendezvous
from .worker import HELD, main, pack, unpack

START = "spawn"  # a fork of a process that has threads, or has used an accelerator, does not work
POLL_S = 0.1  # how often workers are looked at
_NOISY = ("torch.distributed.elastic", "torch.multiprocessing")


def run(job: Job) -> Result:
    """Runs the job's workers of this node to their end: what its first worker has to give, on node 0 worker 0."""
    workers = job.workers // job.nodes
    _check_place(job)
    devices = _devices(job, workers)
    parcel = pack(job)
    with ExitStack() as stack:
        host = host_of(job.interface)
        stack.enter_context(_environment(job, workers, devices, host))
        stack.enter_context(_quiet())
        stack.enter_context(_as_before())
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))) / "job"
        file.write_bytes(parcel)
        handler = rendezvous(job, host)
        stack.callback(handler.shutdown)
        spec = WorkerSpec(
            role="worker",
            local_world_size=workers,
            rdzv_handler=handler,
            entrypoint=main,
            args=(str(file), os.getpid()),
            max_restarts=job.restarts,
            monitor_interval=POLL_S,
        )
        agent = Agent(spec, DefaultLogsSpecs(log_dir=os.devnull), start_method=START, shutdown_timeout=ENDING_S)
        agent.timeout_s = job.timeout_s
        try:
            outcome = agent.run()
        except SignalException as asked:
            raise _ending(asked.sigval) from None
        if not outcome.return_values:
            raise agent.error or WorkerError(
                f"the workers of this node have ended ({outcome.state.value}), nobody says why."
            )
        first = outcome.return_values[min(outcome.return_values)]
        if first is None:
            raise SystemExit(0)  # as the function itself would have done
        return unpack(pickle.loads(Path(first).read_bytes()))


def _check_place(job: Job) -> None:
    """Whether workers started here would find the function."""
    if getattr(current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker that imports this script would start workers itself: put the call of launch under "
            "`if __name__ == '__main__':`."
        )
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("processes are started from the main thread, which hears Ctrl-C. Call launch there.")


def _devices(job: Job, workers: int) -> list[str] | None:
    """The accelerators that workers are to see, as the system names them; `None`: as they are."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if job.devices is None:
        if there and workers > there:
            raise ConfigError(
                f"{workers} workers on a machine with {there} accelerators. Start no more workers than that, or "
                "pass devices=[] to train on the CPU."
            )
        return None
    if any(not 0 <= device < there for device in job.devices):
        raise ConfigError(f"devices={list(job.devices)}, on a machine with {there} accelerators.")
    if job.devices and workers > len(job.devices):
        raise ConfigError(f"{workers} workers for {len(job.devices)} devices: {list(job.devices)}. Each needs its own.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(device) for device in range(there)]
    return [names[device] for device in job.devices]


# --- around it ---------------------------------------------------------------------------------------------


@contextmanager
def _environment(job: Job, workers: int, devices: list[str] | None, host: str) -> Iterator[None]:
    """What workers find in their environment: some of it is read before any of their code runs."""
    network = loopback_interface() if is_loopback(host) else str(job.interface)
    heard = [number.name for number in HELD if _is_ours(number)]
    given = {"HEADRACE_TIMEOUT_S": f"{job.timeout_s:g}", "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(heard)}
    if devices is not None:
        given["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    for name, value in {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // workers)),
        "GLOO_SOCKET_IFNAME": network,
        "NCCL_SOCKET_IFNAME": network,
    }.items():
        given[name] = os.environ.get(name, value)
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch logs of an end is said better by the error."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_NOISY)]
    loggers = [one for one in map(logging.getLogger, names) if not one.disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False


@contextmanager
def _as_before() -> Iterator[None]:
    """However it ends: no process is left, signals go where they went, and the terminal shows its cursor."""
    handlers = {number: signal.getsignal(number) for number in HELD}
    processes = set(active_children())
    resource_tracker.ensure_running()  # it is started with signals of its own, which starting workers is not to see
    try:
        yield
    except BaseException:
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()
        raise
    finally:
        for number in HELD:
            signal.signal(number, signal.SIG_IGN)
        for process in set(active_children()) - processes:
            process.kill()
            process.join()
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # one that is not Python's is lost


def _is_ours(number: signal.Signals) -> bool:
    """Whether a signal asks the workers to end: not one of nohup, nor SIGUSR1 where the user has a use for it."""
    handler = signal.getsignal(number)
    return handler != signal.SIG_IGN and (number != signal.SIGUSR1 or handler == signal.SIG_DFL)


def _ending(number: signal.Signals) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(128 + (signal.SIGTERM if number == signal.SIGUSR1 else number))  # as a training alone ends
