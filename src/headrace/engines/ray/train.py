"""Workers that go in step: Ray Train places them, and starts all of them again when one fails.

https://docs.ray.io/en/latest/train/train.html
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import (
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    get_context,
)
from ray.train.torch import TorchTrainer

from ...errors import WorkerError
from ...workers.comm import Null
from ..job import Job, Result
from .cluster import START_S, Cluster, environment
from .hall import Heart
from .meeting import Meeting
from .parcel import Failure, NeedsCenter, Outcome, Parcel, carry_out, ending, first, pack, unpack
from .voice import InStep, hall_for, hearts_in

ABORT_S = 10.0
LATER_S = 3.0
"""How much later than the others the controller gives up a worker that has stopped: they can say more."""
LOOK_S = 0.5
"""How often the controller asks the workers how they are."""


def run(job: Job, cluster: Cluster) -> Result | None:
    """Runs the job; what worker 0 has to give. `None` if it needs a center, which these workers do not have."""
    parcel, workers, timeout_s = pack(job), job.workers, job.timeout_s
    with hall_for(workers) as others, environment(_settings(job, cluster)):

        def loop() -> Outcome | None:
            return _loop(parcel, workers, others, timeout_s)

        trainer = _Trainer(
            loop,
            torch_config=Meeting(timeout_s=max(1, round(timeout_s))),
            scaling_config=ScalingConfig(
                num_workers=workers, use_gpu=cluster.gpus, placement_strategy="SPREAD" if job.nodes > 1 else "PACK"
            ),
            run_config=RunConfig(
                name="run",
                storage_path=str(cluster.scratch / "train"),
                failure_config=FailureConfig(max_failures=job.restarts, controller_failure_limit=job.restarts),
                callbacks=[_Teller(workers, job.restarts)],
                logging_config=LoggingConfig("CRITICAL"),
            ),
        )
        try:
            result = trainer.fit()
        except (TrainingFailedError, RayError) as error:
            hearts: dict[int, Heart] = {}
            with suppress(WorkerError):
                hearts = hearts_in(others, timeout_s)
            raise explained(error, workers, hearts) from None
        except BaseException:  # Ctrl-C, most of all: nobody else would end the workers of a cluster that goes on
            trainer.abort()
            raise
    return None if result.return_value is None else unpack(result.return_value)


def _loop(parcel: Parcel, workers: int, others: Any, timeout_s: float) -> Outcome | None:
    """In a worker."""
    os.environ["HEADRACE_TIMEOUT_S"] = str(timeout_s)
    try:
        own = get_context().get_world_rank()
        return carry_out(parcel, own, workers, lambda: InStep.among(others) if workers > 1 else Null(timeout_s))
    except NeedsCenter:
        return None


def explained(error: Exception, workers: int, hearts: Mapping[int, Heart]) -> Exception:
    """What Ray says of workers that have failed, as an error of our own."""
    failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    told = first([failure for failure in failures.values() if isinstance(failure, Failure)])
    if told is not None and told.trace:
        return told.error
    for worker, failure in failures.items():
        if not isinstance(failure, Failure):
            others = f" Worker {told.worker} says: {told.sentence}." if told is not None else ""
            return WorkerError(f"worker {worker} of {workers} {ending(failure, hearts.get(worker))}.{others}")
    if told is not None:
        return told.error
    return WorkerError(f"Ray could not run {workers} workers: {_reason(error)}")


class _Trainer(TorchTrainer):  # type: ignore[misc]
    """Ray's own, without the actor that watches its controller by what only Ray's dashboard can tell.

    It would free places of a controller that dies. They are free at the latest when the driver ends. And without Ray's
    answer to Ctrl-C, which stays for good and ends the program with the status 0.
    """

    controller: Any = None

    def abort(self) -> None:
        """Ends the workers."""
        if self.controller is not None:
            with suppress(RayError):
                ray.get(self.controller.abort.remote(), timeout=ABORT_S)

    def _register_sigint_handler(self, controller: Any) -> None:
        self.controller = controller

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ != "PlacementGroupCleanerCallback"]


class _Teller(UserCallback):  # type: ignore[misc]
    """In Ray's controller: says in one line why workers are about to be started again."""

    def __init__(self, workers: int, restarts: int) -> None:
        self._workers, self._restarts, self._count = workers, restarts, 0

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self._count += 1
        if self._count <= self._restarts:
            why = explained(_Failures(worker_exceptions), self._workers, {})
            print(f"headrace: {why} All are started again, for the {self._count}. of {self._restarts} times.")


class _Failures(Exception):  # noqa: N818
    def __init__(self, failures: Mapping[int, Exception]) -> None:
        self.worker_failures = failures


def _settings(job: Job, cluster: Cluster) -> dict[str, str | None]:
    """Of Ray Train, for the length of a call."""
    own = {
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(LOOK_S),
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(job.timeout_s + LATER_S),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(max(START_S, job.timeout_s)),
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0" if cluster.ours else "1",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }
    return {name: os.environ.get(name, value) for name, value in own.items()}  # who has set one wants it so


def _reason(error: Exception) -> str:
    """The sentence in which Ray says what has happened, out of all that it says."""
    cause = getattr(error, "controller_failure", error)
    return next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
