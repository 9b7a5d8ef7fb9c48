"""Runs workers on Ray: actors in a placement group, which get the environment of torchrun and call the function."""

import logging
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch

from ..errors import ConfigError, RunError, WorkerError
from ..workers.heartbeat import explain, write_report
from ..workers.here import current_comm
from ..workers.join import attempt_of, listen
from .generators import seed
from .job import Job, Result, work
from .worker import Outcome, ProgramPlace, environment, pack, pack_result, restarting, unpack, variables, write_to_store

OLDEST = (2, 54)
"""Before it, a page in the user's browser can delete jobs (CVE-2026-27482)."""
INSTALL = 'pip install "headrace[ray]"'
START_S = 120.0  # that workers may take at least to be placed and to start, however little time others give them later
_LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0" on any system: only this machine is listened to
GATHER_S = 5.0  # that the others have to end by themselves after a failure


def run(job: Job) -> Result:
    """Runs the job's workers to their end; the result of worker 0."""
    with ExitStack() as stack:
        ray, gpus = stack.enter_context(_connected(job))
        group = _placed(ray, job, gpus, stack)
        packed = ray.put((pack(job, import_module("ray.cloudpickle").dumps), ProgramPlace.here()))
        return unpack(restarting(job, lambda attempt: _Start(ray, job, gpus, group, attempt).outcome(packed)))


class WorkerActor:
    """The actor in which a worker runs."""

    def node(self) -> str:
        """The machine that it is on."""
        return str(import_module("ray").get_runtime_context().get_node_id())

    def work(self, packed: tuple[bytes, ProgramPlace], place: Mapping[str, str]) -> Outcome:
        """Calls the function as a process of torchrun would; what worker 0 has to give."""
        cloudpickle = import_module("ray.cloudpickle")
        os.environ.update(place)
        worker = int(place["RANK"])
        try:
            function, program = packed
            program.enter()
            main, arguments = cloudpickle.loads(function)
            seed(worker)
            result = work(main, arguments)
            if (comm := current_comm()) is not None:
                comm.close()
            return pack_result(result, cloudpickle.dumps) if worker == 0 else (b"", b"")
        except BaseException as error:  # also an exit: Ray knows no status of an actor
            if (comm := current_comm()) is not None:
                comm.report_error(error)
            write_to_store(write_report, error)
            raise WorkerError(f"ended by {type(error).__name__}: {error}") from None


class _Start:
    """One start of all workers."""

    def __init__(self, ray: Any, job: Job, gpus: bool, group: Any, attempt: int) -> None:
        self._ray, self._job, self._attempt = ray, job, attempt
        self._host = ray.util.get_node_ip_address()
        server = listen(self._host, 0, job.timeout_s)
        self._port, self._store = server.port, attempt_of(server, attempt)
        self._limit_s = max(START_S, job.timeout_s)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor = ray.remote(WorkerActor)
        self._actors = [
            actor.options(num_cpus=1, num_gpus=int(gpus), scheduling_strategy=strategy(group, k)).remote()
            for k in range(job.workers)
        ]

    def outcome(self, packed: Any) -> Outcome:
        """Runs all workers; the outcome of worker 0."""
        ray = self._ray
        try:
            try:
                nodes = ray.get([actor.node.remote() for actor in self._actors], timeout=self._limit_s)
            except ray.exceptions.RayError as error:
                raise WorkerError(f"Ray could not start {self._job.workers} workers: {_first_line(error)}") from None
            calls = [actor.work.remote(packed, self._variables(k, nodes)) for k, actor in enumerate(self._actors)]
            if failed := self._failed(calls):
                raise explain(self._store, self._job.workers, failed)
            outcome: Outcome = ray.get(calls[0])
            return outcome
        finally:
            for actor in self._actors:
                ray.kill(actor)

    def _failed(self, calls: list[Any]) -> dict[int, str]:
        """How each worker has ended that did not end well, once all have ended or one has failed."""
        ray, left = self._ray, list(calls)
        failed: dict[int, str] = {}
        end = float("inf")
        while left and time.monotonic() < end:
            done, left = ray.wait(left, timeout=1)
            for call in done:
                try:
                    ray.get(call)
                except ray.exceptions.RayTaskError as error:
                    failed[calls.index(call)] = _first_line(error.cause)
                except ray.exceptions.RayError as error:
                    found = dict(re.findall(r"^\s*(pid|ip): (\S+)", str(error), re.MULTILINE))
                    where = f" {found['pid']} on {found['ip']}" if len(found) == 2 else ""
                    failed[calls.index(call)] = f"was lost: its process{where} has ended, or its machine is gone"
            if failed and end == float("inf"):
                end = time.monotonic() + GATHER_S
        return failed

    def _variables(self, worker: int, nodes: list[str]) -> dict[str, str]:
        local, count = nodes[:worker].count(nodes[worker]), nodes.count(nodes[worker])
        node = sorted(set(nodes), key=nodes.index).index(nodes[worker])
        found = variables(worker, len(nodes), local, count, node, self._host, self._port, self._attempt)
        return found | {"HEADRACE_TIMEOUT_S": f"{self._job.timeout_s:g}"}


def _placed(ray: Any, job: Job, gpus: bool, stack: ExitStack) -> Any:
    """Waits for a placement group with room for all workers."""
    bundle = {"CPU": 1.0} | ({"GPU": 1.0} if gpus else {})
    group = ray.util.placement_group([bundle] * job.workers, strategy="SPREAD" if job.nodes > 1 else "PACK")
    stack.callback(ray.util.remove_placement_group, group)
    limit_s = max(START_S, job.timeout_s)
    end = time.monotonic() + limit_s
    while not group.wait(1):  # a second at a time: Ctrl-C is heard in between
        if time.monotonic() > end:
            there = f"{ray.cluster_resources().get('CPU', 0):g} CPUs"
            raise WorkerError(f"Ray has found no place for {job.workers} workers for {limit_s:g} s ({there}).")
    return group


# --- the cluster -------------------------------------------------------------------------------------------


def load() -> Any:
    """Ray, if one is installed that can be used."""
    try:
        ray = import_module("ray")
        import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise ConfigError(f"engine='ray' needs Ray ({error}). {INSTALL}", argument="engine") from None
    if tuple(int(number) for number in re.findall(r"\d+", ray.__version__)[:2]) < OLDEST:
        raise ConfigError(f"Ray {ray.__version__} has known holes: {OLDEST[0]}.{OLDEST[1]} is needed. {INSTALL}")
    return ray


@contextmanager
def _connected(job: Job) -> Iterator[tuple[Any, bool]]:
    """Ray in the cluster that this process is in, that `RAY_ADDRESS` names, or else in one of this machine alone.

    Also whether each worker has an accelerator.
    """
    known = sys.modules.get("ray")
    address = job.address or os.environ.get("RAY_ADDRESS", "")
    if known is not None and known.is_initialized():
        yield known, _has_gpus(known, job)
    elif address not in ("", "local"):
        ray = load()
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {address!r} that this process may join: {_first_line(error)} "
                "Start one there, or unset RAY_ADDRESS to have one on this machine."
            ) from None
        try:
            yield ray, _has_gpus(ray, job)
        finally:
            ray.shutdown()
    else:
        with _own(job) as found:
            yield found


def _has_gpus(ray: Any, job: Job) -> bool:
    """Whether workers have accelerators; what the cluster cannot have at all is refused."""
    if job.devices is not None:
        raise ConfigError(
            "devices= is not for a Ray cluster that is there already: Ray places workers. Leave it out.",
            argument="devices",
        )
    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes < job.nodes:
        raise ConfigError(f"nodes={job.nodes} were asked for, and the Ray cluster has {nodes}.", argument="nodes")
    gpus = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(ray.cluster_resources().get("GPU", 0))
    _enough(job, gpus)
    return gpus > 0


@contextmanager
def _own(job: Job) -> Iterator[tuple[Any, bool]]:
    """A cluster that only this machine can reach, and only with its token."""
    if job.nodes > 1:
        raise ConfigError(f"nodes={job.nodes} need a Ray cluster that is there: set RAY_ADDRESS, or call ray.init.")
    gpus = torch.cuda.device_count() if job.devices is None else len(job.devices)
    _enough(job, gpus)
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}
    if "ray" not in sys.modules:  # it reads these once
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        os.environ |= own | {_LOOPBACK_ALONE: "0"}
    elif os.environ.get(_LOOPBACK_ALONE) != "0":
        warnings.warn(
            "ray was imported before launch, so the cluster that it starts is open to the network. Call launch first, "
            "or ray.init as you want it.",
            stacklevel=4,
        )
    if job.devices is not None:
        visible = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))]
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(visible[k] if visible else str(k) for k in job.devices)
    with environment(settings):
        ray = load()
        try:
            ray.init(
                address="local",
                num_cpus=job.workers,  # workers need one each, however few there are
                num_gpus=gpus,
                include_dashboard=False,
                logging_level=logging.WARNING,
            )
        except (OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise RunError(f"Ray could not be started on this machine: {_first_line(error)}") from error
        try:
            yield ray, gpus > 0
        finally:
            ray.shutdown()


def _enough(job: Job, gpus: int) -> None:
    if 0 < gpus < job.workers:
        raise ConfigError(
            f"workers={job.workers} have {gpus} accelerators, and need one each. "
            f"Give workers={gpus}, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
