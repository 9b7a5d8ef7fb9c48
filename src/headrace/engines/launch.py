"""`launch`: checks what is asked for, and gives it to the engine that is named."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ..errors import ConfigError, unknown
from ..workers.here import here
from .job import Job, Result, take_back
from .network import Network, positive

_ENGINES = {
    "local": "simulates all workers in this process",
    "processes": "starts workers on this machine. On several machines, start the script with torchrun, without launch",
    "ray": "starts workers on a cluster",
}
_REAL = ("processes", "ray")
_ENGINES_WITH = {
    "devices": ("processes",),
    "restarts": _REAL,
    "nodes": ("ray",),
    "address": ("ray",),
    "network": ("local",),
}
"""Options that not every engine has."""


def launch(
    main: Callable[..., Any],
    *arguments: Any,
    workers: int = 1,
    engine: str = "local",
    nodes: int = 1,
    devices: Sequence[int] | None = None,
    restarts: int = 0,
    timeout_s: float = 600.0,
    address: str | None = None,
    network: Network | None = None,
) -> Any:
    """Calls `main(*arguments)` in every worker, and returns the result of worker 0.

    Models among the arguments, also those of trainers, get the weights of the workers at the end. All other changes to
    arguments stay in the workers. Virtual workers seed the generators of torch, NumPy and Python with their numbers,
    and restore those of the caller.

    Args:
        main: a function, or a method of a trainer.
        arguments: its arguments.
        workers: how many workers there are.
        engine: "local" simulates them in this process; "processes" starts them on this machine, with torch.distributed;
            "ray" starts them on a Ray cluster that is running. On several machines without Ray, start a script with
            torchrun, and call `main` directly.
        nodes: machines of the Ray cluster over which to spread the workers.
        devices: the accelerators of this machine that processes use, one for each of them.
        restarts: how often all workers may be started again after a failure.
        timeout_s: how long a worker waits for another.
        address: of the Ray cluster, as in "10.0.0.1:6379".
        network: the speed of simulated workers and their network.
    """
    job = Job(main, arguments, workers, nodes, devices, restarts, timeout_s, address, network)
    _check(job, engine)
    alone = engine == "local" and workers == 1 and network is None
    _not_within_a_worker(alone)
    if alone:
        return main(*arguments)
    result: Result = import_module(f".{engine}", __package__).run(job)
    take_back(main, arguments, result.weights)
    return result.value


def _check(job: Job, engine: str) -> None:
    """Raises on whatever is wrong and can be known before anything starts."""
    if not callable(job.main):
        raise ConfigError(f"launch calls a function in every worker, got {job.main!r}.")
    if engine not in _ENGINES:
        raise ConfigError(unknown("engine", engine, _ENGINES))
    _whole(job.workers, "workers", 1)
    _whole(job.nodes, "nodes", 1)
    _whole(job.restarts, "restarts", 0)
    positive(job.timeout_s, "timeout_s")
    if job.workers % job.nodes:
        raise ConfigError(
            f"workers= is shared out evenly, got {job.workers} workers for {job.nodes} nodes.", argument="workers"
        )
    _check_devices(job.devices, job.workers // job.nodes)
    _check_engine_options(job, engine)
    if job.network is not None:
        if not isinstance(job.network, Network):
            raise ConfigError(
                f"network= is a headrace.Network, got a {type(job.network).__name__}.", argument="network"
            )
        job.network.check(job.workers)


def _check_engine_options(job: Job, engine: str) -> None:
    """Raises on options that the engine does not have."""
    plain = Job(job.main)
    for name, engines in _ENGINES_WITH.items():
        if engine not in engines and getattr(job, name) != getattr(plain, name):
            raise ConfigError(
                f"{name}= is for engine={' or '.join(map(repr, engines))}; engine={engine!r} {_ENGINES[engine]}.",
                argument=name,
            )


def _whole(value: Any, what: str, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what}= is a whole number, {least} or more, got {value!r}.", argument=what)


def _check_devices(devices: Any, needed: int) -> None:
    if devices is None:
        return
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise ConfigError(
            f"devices= lists the accelerators of a node by number, as in [0, 1], got {devices!r}.", argument="devices"
        )
    for device in devices:
        _whole(device, "a device in devices", 0)
    if len(set(devices)) != len(devices):
        raise ConfigError(f"devices= names each accelerator once, got {list(devices)}.", argument="devices")
    if devices and len(devices) < needed:
        raise ConfigError(f"each of a node's {needed} workers needs a device of its own, got devices={list(devices)}.")


def _not_within_a_worker(alone: bool) -> None:
    """A worker starts no others; under torchrun, a plain call is what every worker is to make."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        if not alone:
            raise ConfigError(
                "this process is one of several workers already, started by torchrun or by a launch: "
                "call the function itself, or start the script with python."
            )
    elif here().count > 1:
        raise ConfigError("this is a worker that a launch has started: it cannot launch others. Call the function.")
