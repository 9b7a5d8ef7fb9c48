"""The reports of a training as metrics of an MLflow run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store.rows import Row
from .tracker import Tracker, numbers, require, settings

if TYPE_CHECKING:
    from .info import Info

AT_ONCE = 1000  # metrics that MLflow takes in one call
PARAMS_AT_ONCE = 100
LONGEST = 500  # letters of a parameter's value, which older servers take too
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_ODD = re.compile(r"[^\w\-. :/]")  # what MLflow allows in no name


class MLflow(Tracker):
    """Settings as parameters, and every number at its step; a training that goes on, goes on in the same MLflow run.

    `experiment`: its name, else that of MLFLOW_EXPERIMENT_NAME; `uri`: of the server or the database, else that of
    MLFLOW_TRACKING_URI; `name`: of the run, else that of the run's directory. It does not touch MLflow's active run.
    """

    def __init__(self, experiment: str | None = None, uri: str | None = None, name: str | None = None) -> None:
        super().__init__()
        require("MLflow", "mlflow")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._uri, self._name = uri, name
        self._client: Any = None
        self._known: dict[str, int] | None = None  # the last step of every metric that MLflow has; `None`: ask it

    def begin(self, info: Info) -> None:
        from mlflow import MlflowClient

        self._client, self._known = MlflowClient(tracking_uri=self._uri), None
        if self.id:
            self._go_on()
            return
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        name = self._name or (info.run.name if info.run else None)
        self.id = self._client.create_run(experiment, run_name=name).info.run_id
        self._describe(settings(info))

    def send(self, rows: Iterable[Row]) -> None:
        from mlflow.entities import Metric

        known = self._steps() if self._known is None else self._known
        self._known = None  # of a call that fails, MLflow may have taken a part
        now, metrics = time.time_ns() // 1_000_000, []
        for row in rows:
            for key, value in numbers(row).items():
                name = _ODD.sub("_", key)
                if row["step"] > known.get(name, -1):
                    metrics.append(Metric(name, value, now, row["step"]))
        for start in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self.id, metrics=metrics[start : start + AT_ONCE])
        self._known = known | {metric.key: metric.step for metric in metrics}

    def end(self, state: str) -> None:
        self._client.set_terminated(self.id, _STATUS[state])

    def _go_on(self) -> None:
        try:
            self._client.update_run(self.id, status="RUNNING")
        except Exception as error:
            raise ConfigError(
                f"the run was recorded by MLflow as {self.id}, which cannot be read at "
                f"{self._uri or os.environ.get('MLFLOW_TRACKING_URI') or 'the default uri'}: {error}. Pass uri= as "
                "before, or go on without MLflow."
            ) from error

    def _steps(self) -> dict[str, int]:
        """What the run has: reports that were made after the last checkpoint are made again."""
        found = self._client.get_run(self.id).data.metrics
        histories = {key: self._client.get_metric_history(self.id, key) for key in found}
        return {key: max(metric.step for metric in history) for key, history in histories.items()}

    def _describe(self, given: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(_ODD.sub("_", name), str(value)[:LONGEST]) for name, value in given.items()]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(self.id, params=params[start : start + PARAMS_AT_ONCE])
