"""Starts and watches the workers on Ray: each is an actor in a placement group, and is started again when it is lost.

Workers that go in step are all started again when one is lost. Those at a center are started again one by one, while
the others go on. https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html
"""

import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ...data.shard import Shard
from ...errors import ConfigError, WorkerError
from ...workers.comm import Comm
from ...workers.heartbeat import FailureReport, WorkerStatus, read_place, read_status
from ...workers.here import use_comm
from ...workers.join import attempt_of, listen
from ..generators import seed
from ..job import Job, Result, work
from ..worker import Outcome, ProgramPlace, pack_result, unpack
from .center import CenterActor
from .cluster import START_S, Cluster
from .comm import NeedsCenter, WorkerPlace

LOOK_S = 0.5
"""How often the driver looks for workers of whom nothing is heard."""
LATER_S = 3.0
"""How much later than the others the driver gives up a worker that has stopped: they can say more."""
GATHER_S = 5.0
"""How long the others have to end by themselves after a failure, and to say what they know of it."""


def run(job: Job, cluster: Cluster) -> Result:
    """Runs the job; what worker 0 has to give."""
    with ExitStack() as stack:
        driver = Driver(job, cluster, stack)
        outcome = driver.outcome()
        if outcome is None:  # a worker has asked for a center
            outcome = driver.with_center().outcome()
        assert outcome is not None
        return unpack(outcome)


class Failure(Exception):  # noqa: N818
    """The error that a worker ended by, in a form that can always be pickled."""

    def __init__(self, report: FailureReport) -> None:
        super().__init__(report)
        self.report = report


class WorkerActor:
    """The actor in which a worker runs."""

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def work(self, packed: tuple[bytes, ProgramPlace], place: WorkerPlace) -> Outcome | None:
        """Joins the others and calls the function; worker 0's outcome. `None`: the workers are to have a center."""
        return run_worker(packed, place.shard.index, place.join)


def run_worker(packed: tuple[bytes, ProgramPlace], worker: int, join: Callable[[], Comm]) -> Outcome | None:
    """Runs the launched function in a worker. Whatever it raises, also an exit, becomes a `Failure`."""
    try:
        function, place = packed
        place.enter()
        main, arguments = cloudpickle.loads(function)
        comm = join()
        try:
            seed(worker)
            with use_comm(comm):
                result = work(main, arguments)
            return pack_result(result, cloudpickle.dumps) if comm.leader else (b"", b"")
        except BaseException as error:
            if not isinstance(error, NeedsCenter):  # then nothing has failed
                comm.report_error(error)
            raise
        finally:
            comm.close()
    except NeedsCenter:
        return None
    except BaseException as error:
        raise Failure(FailureReport.of(error, worker, 0)) from None


@dataclass(slots=True)
class _Worker:
    """A worker as the driver sees it."""

    number: int
    start: int
    """How often it has been started before."""
    process: Any
    call: Any
    """What will be its function's outcome."""
    since_s: float
    """When it was asked for."""
    status: WorkerStatus = field(default_factory=WorkerStatus)
    seen_s: float = 0.0
    """When its status last changed."""

    @property
    def begun(self) -> bool:
        return self.status.beat > 0


class Driver:
    """Starts all workers, and starts them again, a number of times."""

    def __init__(self, job: Job, cluster: Cluster, stack: ExitStack) -> None:
        self._job, self._cluster, self._stack = job, cluster, stack
        self._workers: list[_Worker] = []
        self._starts = 0  # of all workers together
        self._failures = dict.fromkeys(range(job.workers), 0)
        self._center: Any = None
        self._host = ray.util.get_node_ip_address()
        self._store = listen(self._host, 0, job.timeout_s)
        self._packed_job = ray.put((self._packed(), ProgramPlace.here()))
        stack.callback(self._stop_all)
        self._group = self._placed()
        if job.centered and job.workers > 1:
            self.with_center()

    def with_center(self) -> "Driver":
        """The workers that are started from now on have a center."""
        center = ray.remote(CenterActor).options(
            num_cpus=0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        )
        self._center = center.remote(str(self._cluster.scratch / "center"), ProgramPlace.here())
        self._stack.callback(ray.kill, self._center)
        return self

    def outcome(self) -> Outcome | None:
        """Runs all workers; the outcome of worker 0, or `None` if they are to be started again with a center."""
        found: Outcome = (b"", b"")
        self._start_all()
        while self._workers:
            done, _ = ray.wait([worker.call for worker in self._workers], timeout=LOOK_S)
            self._read_statuses()
            for worker in [worker for worker in self._workers if worker.call in done]:
                try:
                    outcome = ray.get(worker.call)
                except RayError as error:
                    self._replace(worker, error)
                    break  # perhaps all are others now
                if outcome is None:
                    self._stop_all()
                    return None
                found = outcome if worker.number == 0 else found
                self._stop(worker)
            for worker in [worker for worker in self._workers if self._silent(worker)][:1]:
                self._replace(worker, None)
        return found

    # --- starting and ending

    def _packed(self) -> bytes:
        try:
            data: bytes = cloudpickle.dumps((self._job.main, tuple(self._job.arguments)))
            return data
        except Exception as error:
            raise ConfigError(
                f"main and its arguments have to be sent to the workers, and cannot be: {type(error).__name__}: "
                f"{error}. Make within main what cannot be sent: open files, connections, threads, locks."
            ) from error

    def _placed(self) -> Any:
        """Waits for a placement group with room for all workers."""
        bundle = {"CPU": 1.0} | ({"GPU": 1.0} if self._cluster.gpus else {})
        group = placement_group([bundle] * self._job.workers, strategy="SPREAD" if self._job.nodes > 1 else "PACK")
        self._stack.callback(remove_placement_group, group)
        limit_s = max(START_S, self._job.timeout_s)
        end = time.monotonic() + limit_s
        while not group.wait(1):  # a second at a time: Ctrl-C is heard in between
            if time.monotonic() < end:
                continue
            cpus = ray.cluster_resources().get("CPU", 0)
            raise WorkerError(
                f"Ray could not run {self._job.workers} workers: it has found no place for them for {limit_s:g} s "
                f"({cpus:g} CPUs)."
            )
        return group

    def _start_all(self) -> None:
        start, self._starts = self._starts, self._starts + 1
        if self._center is not None or self._job.workers == 1:
            for number in range(self._job.workers):
                self._start_one(number, start)
            return
        processes = [self._process(number) for number in range(self._job.workers)]
        try:
            nodes = self._nodes(processes)
        except WorkerError as error:
            for process in processes:
                ray.kill(process)
            self._start_all_again(error)
            return
        for number, process in enumerate(processes):
            self._begin(number, start, process, nodes)

    def _start_one(self, number: int, start: int) -> _Worker:
        """Starts one worker that need not know on which machines the others are."""
        return self._begin(number, start, self._process(number), [""] * self._job.workers)

    def _nodes(self, processes: list[Any]) -> list[str]:
        """The machine of each worker, once all have begun."""
        limit_s = max(START_S, self._job.timeout_s)
        try:
            found: list[str] = ray.get([process.node.remote() for process in processes], timeout=limit_s)
            return found
        except RayError as error:
            raise WorkerError(f"Ray could not run {self._job.workers} workers: {_first_line(error)}") from None

    def _process(self, number: int) -> Any:
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        return (
            ray.remote(WorkerActor)
            .options(num_cpus=1, num_gpus=int(self._cluster.gpus), scheduling_strategy=place)
            .remote()
        )

    def _begin(self, number: int, start: int, process: Any, nodes: list[str]) -> _Worker:
        mine = nodes[number]
        place = WorkerPlace(
            shard=Shard(number, self._job.workers),
            start=start,
            host=self._host,
            port=self._store.port,
            local=Shard(nodes[:number].count(mine), nodes.count(mine)),
            node=sorted(set(nodes), key=nodes.index).index(mine),
            center=self._center,
            timeout_s=self._job.timeout_s,
        )
        worker = _Worker(number, start, process, process.work.remote(self._packed_job, place), time.monotonic())
        self._workers.append(worker)
        return worker

    def _stop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        ray.kill(worker.process)

    def _stop_all(self) -> None:
        """Ends all workers."""
        for worker in list(self._workers):
            self._stop(worker)

    # --- watching

    def _read_statuses(self) -> None:
        """Reads the status of every worker."""
        for worker in self._workers:
            status = read_status(attempt_of(self._store, worker.start), worker.number)
            if status.beat != worker.status.beat:
                worker.status, worker.seen_s = status, time.monotonic()

    def _silent(self, worker: _Worker) -> bool:
        """Whether a worker has not changed its status for too long."""
        if worker.begun:
            patience_s = self._job.timeout_s + (LATER_S if self._center is None else 0.0)
            return not worker.status.left and time.monotonic() - worker.seen_s > patience_s
        return time.monotonic() - worker.since_s > max(START_S, self._job.timeout_s)

    # --- failures

    def _replace(self, worker: _Worker, failure: Exception | None) -> None:
        """Starts a failed worker again, or all of them, or raises. `failure=None`: it is silent."""
        if self._center is None:
            self._start_all_again(self._failure_of(worker, failure))
            return
        lost = isinstance(failure, RayError) and not isinstance(failure, RayTaskError)
        if lost and not worker.begun and not self._silent(worker):  # Ray may have sent it to a dead machine
            self._stop(worker)
            self._start_one(worker.number, worker.start).since_s = worker.since_s
            return
        error = self._explained({worker.number: failure}, {worker.number: worker})
        count = self._failures[worker.number] = self._failures[worker.number] + 1
        if count > self._job.restarts:
            raise error
        self._stop(worker)
        again = f"It is started again, for the {count}. of {self._job.restarts} times; the others go on."
        warnings.warn(f"{str(error).rstrip('.')}. {again}", stacklevel=2)
        with suppress(RayError):  # a center that is lost itself has let go of everybody
            ray.get(self._center.give_up.remote(worker.number, worker.start), timeout=self._job.timeout_s)
        self._start_one(worker.number, worker.start + 1)

    def _start_all_again(self, error: Exception) -> None:
        """Starts all workers again: those in step can only begin anew together."""
        count = self._failures[0] = self._failures[0] + 1
        if count > self._job.restarts:
            raise error
        self._stop_all()
        again = f"All are started again, for the {count}. of {self._job.restarts} times."
        sys.stderr.write(f"headrace: {str(error).rstrip('.')}. {again}\n")
        self._start_all()

    def _failure_of(self, worker: _Worker, failure: Exception | None) -> Exception:
        """The error behind a failure, after the other workers have had time to end by it too."""
        workers = {each.number: each for each in self._workers}
        failures = {worker.number: failure}
        others = {each.call: each.number for each in self._workers if each is not worker}
        ended, _ = ray.wait(list(others), num_returns=len(others), timeout=GATHER_S) if others else ([], [])
        for call in ended:
            try:
                ray.get(call)
            except RayError as error:
                failures[others[call]] = error
        self._read_statuses()
        return self._explained(failures, workers)

    def _explained(self, failures: Mapping[int, Exception | None], workers: Mapping[int, _Worker]) -> Exception:
        """The first failure that is not a consequence of others."""
        causes = {number: getattr(failure, "cause", None) for number, failure in failures.items()}
        reports = {
            number: replace(found.report, step=workers[number].status.step)
            for number, found in causes.items()
            if isinstance(found, Failure)
        }
        if (found := cause([*reports.values()])) is not None:
            return found
        first = next(iter(reports.values()), None)
        for number in sorted(failures.keys() - reports.keys()):
            others = "" if first is None else f" Worker {first.worker} says: {first}"
            what = self._how_it_ended(workers[number], failures[number])
            return WorkerError(f"worker {number} of {self._job.workers} {what}.{others}")
        assert first is not None
        return first.for_caller()

    def _how_it_ended(self, worker: _Worker, failure: Exception | None) -> str:
        """Describes the end of a worker that reported no error itself."""
        place = read_place(attempt_of(self._store, worker.start), worker.number, self._job.workers)
        where = f" at {place}" if place else ""
        if isinstance(failure, RayTaskError):  # before the function was called
            return f"could not begin: {_first_line(failure.cause)}"
        if failure is not None:
            found = dict(re.findall(r"^\s*(pid|ip): (\S+)", str(failure), re.MULTILINE))
            which = f" {found['pid']} on {found['ip']}" if {"pid", "ip"} <= found.keys() else ""
            return f"was lost{where}: its process{which} has ended, or its machine is gone"
        if worker.begun:
            return f"has stopped{where}: nothing has been heard of it for {self._job.timeout_s:g} s"
        cpus = ray.cluster_resources().get("CPU", 0)
        waited_s = time.monotonic() - worker.since_s
        return f"has not begun for {waited_s:.0f} s: Ray finds no place for it ({cpus:g} CPUs), or it does not start"


def cause(reports: Sequence[FailureReport]) -> Exception | None:
    """The first error that is not about another worker, as the caller is to get it."""
    own = (report for report in reports if report.kind != WorkerError.__name__)
    return next((report.for_caller() for report in own), None)


def _first_line(error: Exception) -> str:
    """The first line of Ray's message, which says what has happened."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
