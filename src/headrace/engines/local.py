"""The engine of virtual workers: all run in this process, one at a time."""

import functools
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.optim import Optimizer

from ..data.source import Source
from ..errors import ConfigError, WorkerError
from ..watch.callback import Callback
from ..workers.here import use_comm
from ..workers.strategy import Strategy
from .job import Job, Result, models_of, own, work
from .network import Network
from .sim import SimComm
from .virtual_cluster import VirtualCluster


def run(job: Job) -> Result:
    """Runs the job's workers to their end; if all were lost, again, as often as it allows."""
    _must_be_copied(job.main)
    cluster = VirtualCluster(job.workers, job.network or Network(), job.timeout_s)

    def live(worker: int) -> Result:
        with use_comm(SimComm(cluster, worker)):
            try:
                main, arguments = own(job.main, job.arguments)
            except Exception as error:
                raise ConfigError(
                    f"every virtual worker needs the arguments for itself, and they cannot be copied: {error}. "
                    "Pass what can be, and make the rest in the function."
                ) from error
            return work(main, arguments)

    for restarts_left in range(job.restarts, -1, -1):
        try:
            result: Result = cluster.run(live)[0]
            return result
        except WorkerError:
            if not cluster.lost or not restarts_left or cluster.timing.restart_s is None:
                raise
            cluster.restart()
    raise AssertionError


def _must_be_copied(main: Callable[..., Any]) -> None:
    """What the function finds by itself is the same object for all workers."""
    for name, value in _found_by(main, set()):
        if isinstance(value, ModuleType | type):
            continue
        if isinstance(value, Optimizer | Strategy | Callback | Source) or models_of(value, [value]):
            raise ConfigError(
                f"{name!r} ({type(value).__name__}) would be shared by all workers, and each needs its own: "
                f"pass it as an argument, launch(main, {name}, ...), or make it in the function."
            )


def _found_by(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What a function refers to without being given it, by name; functions of the same file are looked into."""
    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    defaults = function.__defaults__ or ()
    named = list(
        zip(function.__code__.co_varnames[function.__code__.co_argcount - len(defaults) :], defaults, strict=False)
    )
    named += list((function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            named.append((name, cell.cell_contents))
        except ValueError:  # not yet there
            continue
    named += [(name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__]
    for name, value in named:
        yield name, value
        if isinstance(value, Mapping | list | tuple):
            items = value.values() if isinstance(value, Mapping) else value
            yield from ((name, item) for item in items)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _found_by(value, seen)
