"""Runs workers on Ray: actors in a placement group, which get the environment of torchrun and call the function."""

import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from ..errors import ConfigError, WorkerError
from ..workers.heartbeat import explain, write_report
from ..workers.here import current_comm
from ..workers.join import attempt_of, listen
from .generators import seed
from .job import Job, Result, work
from .worker import Outcome, pack, pack_result, restarting, unpack, variables, write_to_store

OLDEST = (2, 54)
"""Before it, a page in the user's browser can delete jobs (CVE-2026-27482)."""
INSTALL = 'pip install "headrace[ray]"'
START_S = 120.0  # that workers may take at least to be placed and to start, however little time others give them later
GATHER_S = 5.0  # that the others have to end by themselves after a failure


def run(job: Job) -> Result:
    """Runs the job's workers to their end; the result of worker 0."""
    with ExitStack() as stack:
        ray = stack.enter_context(_connected(job))
        gpus = _has_gpus(ray, job)
        group = _placed(ray, job, gpus, stack)
        path = [os.path.abspath(entry) for entry in sys.path]
        packed = ray.put((pack(job, import_module("ray.cloudpickle").dumps), os.getcwd(), path))
        return unpack(restarting(job, lambda attempt: _Start(ray, job, gpus, group, attempt).outcome(packed)))


class WorkerActor:
    """The actor in which a worker runs."""

    def node(self) -> str:
        """The machine that it is on."""
        return str(import_module("ray").get_runtime_context().get_node_id())

    def work(self, packed: tuple[bytes, str, list[str]], place: Mapping[str, str]) -> Outcome:
        """Calls the function as a process of torchrun would, in the directory of the program and with its path."""
        cloudpickle = import_module("ray.cloudpickle")
        os.environ.update(place)
        worker = int(place["RANK"])
        try:
            function, directory, path = packed
            if os.path.isdir(directory):  # it may be another machine
                os.chdir(directory)
            sys.path.extend(entry for entry in path if entry not in sys.path)
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
        ray, remaining = self._ray, list(calls)
        failed: dict[int, str] = {}
        end = float("inf")
        while remaining and time.monotonic() < end:
            done, remaining = ray.wait(remaining, timeout=1)
            for call in done:
                try:
                    ray.get(call)
                except ray.exceptions.RayTaskError as error:
                    failed[calls.index(call)] = _first_line(error.cause)
                except ray.exceptions.RayError as error:
                    facts = dict(re.findall(r"^\s*(pid|ip): (\S+)", str(error), re.MULTILINE))
                    where = f" {facts['pid']} on {facts['ip']}" if len(facts) == 2 else ""
                    failed[calls.index(call)] = f"was lost: its process{where} has ended, or its machine is gone"
            if failed and end == float("inf"):
                end = time.monotonic() + GATHER_S
        return failed

    def _variables(self, worker: int, nodes: list[str]) -> dict[str, str]:
        local, count = nodes[:worker].count(nodes[worker]), nodes.count(nodes[worker])
        node = sorted(set(nodes), key=nodes.index).index(nodes[worker])
        place = variables(worker, len(nodes), local, count, node, self._host, self._port, self._attempt)
        return place | {"HEADRACE_TIMEOUT_S": f"{self._job.timeout_s:g}"}


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
def _connected(job: Job) -> Iterator[Any]:
    """Ray in the cluster that this process is in, or else in one that is named, or that runs on this machine."""
    ray = load()
    joins = not ray.is_initialized()
    if joins:
        address = job.address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {address!r} that this process may join: {_first_line(error)} Start one "
                "(ray start --head), name it by address= or RAY_ADDRESS, or use engine='processes' on this machine.",
                argument="engine",
            ) from None
    try:
        yield ray
    finally:
        if joins:
            ray.shutdown()


def _has_gpus(ray: Any, job: Job) -> bool:
    """Whether workers have accelerators; what the cluster cannot have at all is refused."""
    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes < job.nodes:
        raise ConfigError(f"nodes={job.nodes} were asked for, and the Ray cluster has {nodes}.", argument="nodes")
    gpus = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(ray.cluster_resources().get("GPU", 0))
    if 0 < gpus < job.workers:
        raise ConfigError(
            f"workers={job.workers} have {gpus} accelerators, and need one each. "
            f"Give workers={gpus}, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    return gpus > 0


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
