"""Workers that meet at a center: each is an actor of its own, and is started again while the others go on."""

import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from ...data.source import Shard
from ...errors import WorkerError
from ..job import Job, Result
from .center import Kept
from .cluster import START_S, Cluster
from .hall import Heart
from .parcel import Failure, Outcome, Parcel, Place, carry_out, ending, pack, unpack
from .voice import Apart, hall_for, hearts_in, on_this_machine

LOOK_S = 0.5
"""How often the driver looks for workers of whom nothing is heard."""


def run(job: Job, cluster: Cluster) -> Result:
    """Runs the job; what worker 0 has to give."""
    with ExitStack() as stack:
        own = str(cluster.scratch / "center"), Place.here()
        helper = {"num_cpus": 0, "scheduling_strategy": on_this_machine()}
        center = ray.remote(Kept).options(**helper, max_restarts=-1).remote(*own)
        stack.callback(ray.kill, center)
        others = stack.enter_context(hall_for(job.workers))
        crew = Team(job, cluster, center, others)
        stack.callback(crew.end)
        return unpack(crew.outcome())


class Hand:
    """A worker's process."""

    def work(self, parcel: Parcel, shard: Shard, life: int, others: Any, center: Any, timeout_s: float) -> Outcome:
        return carry_out(parcel, shard.index, shard.count, lambda: Apart(shard, life, others, center, timeout_s))


@dataclass(slots=True)
class Worker:
    """A worker as the driver sees it."""

    number: int
    life: int
    """How often it has been started again."""
    process: Any
    call: Any
    """What will be its function's outcome."""
    since_s: float
    """When it was asked for, or its process was lost for the last time."""


class Team:
    """All workers: starts them, and starts again whom it loses, a number of times each."""

    def __init__(self, job: Job, cluster: Cluster, center: Any, others: Any) -> None:
        self._job, self._center, self._others = job, center, others
        self._parcel = ray.put(pack(job))
        self._options = {
            "num_cpus": 1,
            "num_gpus": int(cluster.gpus),
            "scheduling_strategy": "SPREAD" if job.nodes > 1 else "DEFAULT",
        }
        self._hearts: dict[int, Heart] = {}
        self._at_work = [self._start(number, 0) for number in range(job.workers)]

    def outcome(self) -> Outcome:
        """That of worker 0, once all have ended."""
        found: Outcome = (b"", [])
        while self._at_work:
            done, _ = ray.wait([worker.call for worker in self._at_work], timeout=LOOK_S)
            self._hearts = hearts_in(self._others, self._job.timeout_s)
            for worker in [worker for worker in self._at_work if worker.call in done]:
                try:
                    outcome = ray.get(worker.call)
                except RayTaskError as error:
                    self._replace(worker, error.cause)
                except RayError as error:
                    self._replace(worker, error)
                else:
                    found = outcome if worker.number == 0 else found
                    self._let_go(worker)
            for worker in [worker for worker in self._at_work if self._silent(worker)]:
                self._replace(worker, None)
        return found

    def end(self) -> None:
        """Nobody is left."""
        for worker in self._at_work:
            ray.kill(worker.process)

    def _start(self, number: int, life: int, since_s: float | None = None) -> Worker:
        shard = Shard(number, self._job.workers)
        process = ray.remote(Hand).options(**self._options).remote()
        call = process.work.remote(self._parcel, shard, life, self._others, self._center, self._job.timeout_s)
        return Worker(number, life, process, call, since_s or time.monotonic())

    def _let_go(self, worker: Worker) -> None:
        self._at_work.remove(worker)
        ray.kill(worker.process)

    def _replace(self, worker: Worker, failure: Exception | None) -> None:
        """Another process takes the place of a worker that has failed, or all end. `None`: it is silent."""
        lost = isinstance(failure, RayError)
        if lost and not self._begun(worker) and not self._silent(worker):  # Ray may have sent it to a dead machine
            self._let_go(worker)
            self._at_work.append(self._start(worker.number, worker.life, worker.since_s))
            return
        title = f"worker {worker.number} of {self._job.workers}"
        if isinstance(failure, Failure):
            error, what = failure.error, str(failure)
        else:
            what = f"{title} {self._last_word(worker, failure)}" if lost or failure is None else f"{title}: {failure}"
            error = WorkerError(f"{what}.")
        if worker.life >= self._job.restarts:
            raise error
        self._let_go(worker)
        again = f"It is started again, for the {worker.life + 1}. of {self._job.restarts} times; the others go on."
        warnings.warn(f"{what}. {again}", stacklevel=2)
        with suppress(RayError):  # a center that is lost itself has let go of everybody
            ray.get(self._center.give_up.remote(worker.number, worker.life), timeout=self._job.timeout_s)
        self._at_work.append(self._start(worker.number, worker.life + 1))

    def _last_word(self, worker: Worker, failure: Exception | None) -> str:
        heart = self._hearts.get(worker.number)
        if failure is not None:
            return ending(failure, heart)
        if heart is not None and self._begun(worker):
            silence = f"nothing has been heard of it for {self._job.timeout_s:g} s"
            return f"has stopped at step {heart[2]} ({heart[3]}): {silence}"
        cpus = ray.cluster_resources().get("CPU", 0)
        waited_s = time.monotonic() - worker.since_s
        return f"has not begun for {waited_s:.0f} s: Ray finds no place for it ({cpus:g} CPUs), or it does not start"

    def _silent(self, worker: Worker) -> bool:
        """Whether nothing has been heard of a worker for too long."""
        if self._begun(worker):
            return self._hearts[worker.number][1] > self._job.timeout_s
        return time.monotonic() - worker.since_s > max(START_S, self._job.timeout_s)

    def _begun(self, worker: Worker) -> bool:
        return worker.number in self._hearts and self._hearts[worker.number][0] == worker.life
