"""Callbacks that pass reports on to another program: MLflow, Weights & Biases."""

from __future__ import annotations

import math
import os
import re
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store.document import Row
from .callback import Callback
from .rows import flattened, numbers, was_interrupted

if TYPE_CHECKING:
    from .info import Info

MOST_WAITING = 10_000
"""Reports that are kept while they cannot be passed on."""
END_S, END_SHARE = 5.0, 0.01
"""How long the end of a training waits for another program: seconds, or a share of its time if that is more."""
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
"""After how long a report that could not be passed on is tried again; each time after twice as long."""
LOOK_S = 0.02  # how often it is looked at whether the other program has answered
AT_ONCE = 1000  # metrics that MLflow takes in one call
PARAMS_AT_ONCE = 100
LONGEST = 500  # letters of a parameter's value, which older servers take too
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_ODD = re.compile(r"[^\w\-. :/]")  # what MLflow allows in no name

_OURS = ("id", "resume", "config")
_EXIT = {"finished": 0, "interrupted": 255, "failed": 1}
"""Exit codes as W&B gives them itself: 255 after Ctrl-C."""


class Tracker(Callback, ABC):
    """Passes reports on to another program; the id of the record is saved, and a resumed training goes on in it.

    A thread sends, so that no update waits for a server that is slow or gone. Reports that could not be passed on are
    kept, the newest `MOST_WAITING` of them, and tried again after a second or more. The end of a training waits no
    longer for a server than a hundredth of its time, or five seconds, and not at all for one that has kept a report
    waiting for so long already.
    """

    everywhere = False
    id = ""
    """The other program's id for this training, once it has begun."""
    _sender: _Sender | None = None

    def forget(self) -> None:
        self.id = ""

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.id = str(state["id"])

    def on_fit_start(self, info: Info) -> None:
        try:
            self.begin(info)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{type(self).__name__} could not begin: {type(error).__name__}: {error}. Train without it, or see to "
                "what it says."
            ) from error
        self._sender = _Sender(self.send, info.history.rows)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        assert self._sender is not None
        self._sender.put(row)
        self._warn_once(self._sender)

    def on_error(self, info: Info, error: BaseException) -> None:
        self._leave("failed" if isinstance(error, Exception) else "interrupted", info)

    def on_fit_end(self, info: Info) -> None:
        self._leave("interrupted" if was_interrupted(info.stopping) else "finished", info)

    @abstractmethod
    def begin(self, info: Info) -> None:
        """Begins the record and sets `id`, or continues the record of `id`."""

    @abstractmethod
    def send(self, rows: Iterable[Row]) -> None:
        """Passes on what the record does not have of these reports."""

    @abstractmethod
    def end(self, state: str) -> None:
        """Closes the record of a training that is "finished", "interrupted" or "failed", as its report has it."""

    def _warn_once(self, sender: _Sender) -> None:
        """Warns of a failure, in the thread of the training, until something has been sent again."""
        failure, sender.failure = sender.failure, None
        if failure is not None:
            self._warn(f"has not taken step {failure[0]}, which is tried again", failure[1])

    def _leave(self, state: str, info: Info) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        limit_s = max(END_S, END_SHARE * 60 * info.counters.minutes)
        if not sender.end(limit_s):
            self._warn("has not taken the last reports", TimeoutError(f"it does not answer for {limit_s:.0f} s."))
            return
        self._warn_once(sender)
        try:
            self.end(state)
        except Exception as error:
            self._warn("could not be closed", error)

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(f"{type(self).__name__} {what}: {type(error).__name__}: {error}", stacklevel=4)


class _Sender:
    """A thread that sends the reports that are put here, until it ends; it pauses after a failure."""

    def __init__(self, send: Callable[[Iterable[Row]], None], rows: Iterable[Row]) -> None:
        self.failure: tuple[int, Exception] | None = None
        """The first of the failures since something was sent, and the step that was not; nobody has been told of it."""
        self._send, self._fails = send, False
        self._waiting: deque[Row] = deque(map(dict, rows), maxlen=MOST_WAITING)
        self._lock, self._due, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self._asked_s = math.inf  # since when the program at the other end has not answered
        self._thread = threading.Thread(target=self._run, name="headrace-tracker", daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """Adds a report, which joins what there is of its step: a training that goes on may have begun with a part."""
        with self._lock:
            waiting = self._waiting
            before = waiting.pop() if waiting and waiting[-1]["step"] == row["step"] else {}
            waiting.append({**before, **row})
        if not self._due.is_set():
            self._due.set()

    def end(self, limit_s: float) -> bool:
        """Sends what is left; whether that was over in time. Who has not answered for so long is not waited for."""
        self._ended.set()
        self._due.set()
        until_s = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < min(until_s, self._asked_s + limit_s):
            self._thread.join(LOOK_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause_s, ended = 0.0, False
        while not ended:
            self._due.wait()
            self._due.clear()
            ended = self._ended.is_set()
            pause_s = 0.0 if self._pass_on() else min(2 * pause_s or RETRY_S, LONGEST_RETRY_S)
            self._ended.wait(pause_s)

    def _pass_on(self) -> bool:
        """Sends what is waiting; what comes meanwhile is sent the next time."""
        with self._lock:
            rows = list(self._waiting)
        try:
            if rows:
                self._asked_s = time.monotonic()
                self._send(rows)
        except Exception as error:
            if not self._fails:
                self._fails, self.failure = True, (rows[-1]["step"], error)
            return False
        finally:
            self._asked_s = math.inf
        self._fails, self.failure, sent = False, None, set(map(id, rows))
        with self._lock:
            self._waiting = deque((row for row in self._waiting if id(row) not in sent), MOST_WAITING)
        return True


def require(kind: str, module: str, params: Mapping[str, Any] | None) -> None:
    """Raises unless a package is installed, and its parameters have names; nothing is imported yet."""
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError(f"{kind}(params=) takes a dict of names and values, got {params!r}.")
    spec = find_spec(module)
    if spec is None or spec.origin is None:  # a directory that happens to have the name has no origin
        raise ConfigError(f'{kind} needs {module}, which is not installed: pip install "headrace[{module}]".')


def settings(info: Info, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of a training and `params` of the user's own, each by a name with dots."""
    limits = {limit.unit: limit.count for limit in info.limits}
    return flattened({**info.trainer.resume_settings, "limits": limits}) | flattened(params or {})


class MLflow(Tracker):
    """Logs settings as parameters, and every number at its step; a resumed training goes on in the same MLflow run.

    It does not touch MLflow's active run. `MlflowClient().log_artifact(tracker.id, path)` adds files.

    Args:
        experiment: its name, else that of MLFLOW_EXPERIMENT_NAME
        uri: of the server or the database, else that of MLFLOW_TRACKING_URI
        name: of the run, else that of the run's directory
        params: parameters of your own beside the settings
    """

    _looks_on = True

    def __init__(
        self,
        experiment: str | None = None,
        uri: str | None = None,
        name: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        require("MLflow", "mlflow", params)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._uri, self._name, self._params = uri, name, params
        self._client: Any = None
        self._known: dict[str, int] | None = None  # the last step of every metric that MLflow has; `None`: ask it

    def begin(self, info: Info) -> None:
        from mlflow import MlflowClient

        self._client, self._known = MlflowClient(tracking_uri=self._uri), None
        if self.id:
            self._go_on()
            return
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        name = self._name or (info.run.name if info.run else None)
        self.id = self._client.create_run(experiment, run_name=name).info.run_id
        self._describe(settings(info, self._params))

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
        newest = self._client.get_run(self.id).data.metrics
        histories = {key: self._client.get_metric_history(self.id, key) for key in newest}
        return {key: max(metric.step for metric in history) for key, history in histories.items()}

    def _describe(self, given: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(_ODD.sub("_", name), str(value)[:LONGEST]) for name, value in given.items()]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(self.id, params=params[start : start + PARAMS_AT_ONCE])


class WandB(Tracker):
    """Logs settings as the config, and every number at its step; a resumed training goes on in the same W&B run.

    Test scores are in the summary. Offline, every start has a file of its own, which has all numbers from the first
    step on: send the last one.

    Args:
        project: its name
        name: of the run, else that of the run's directory
        params: of your own, in the config beside the settings
        options: what else `wandb.init` takes, as in `mode="offline"`
    """

    _looks_on = True

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        require("WandB", "wandb", params)
        if taken := sorted(set(_OURS) & options.keys()):
            raise ConfigError(
                f"WandB sets {' and '.join(taken)} by itself: a training goes on in the run that it began."
            )
        self._options, self._params = {"project": project, "name": name, **options}, params
        self._run: Any = None
        self._known = -1  # the last step that W&B has

    def begin(self, info: Info) -> None:
        import wandb

        self.id = self.id or uuid.uuid4().hex[:16]
        given: dict[str, Any] = {
            "config": settings(info, self._params),
            "allow_val_change": True,
        }  # limits may have grown
        given["reinit"] = "create_new"  # a run of the user's own stays what it is
        given |= {name: value for name, value in self._options.items() if value is not None}
        if info.run is not None:
            given.setdefault("name", info.run.name)
        self._run = wandb.init(id=self.id, resume="allow", **given)
        self._known = -1 if self._run.offline else self._run.step - 1

    def send(self, rows: Iterable[Row]) -> None:
        for row in rows:
            found = numbers(row)
            if row["step"] > self._known:
                self._run.log({"epoch": row["epoch"], **found}, step=row["step"], commit=True)
                self._known = row["step"]
            if tested := {key: value for key, value in found.items() if key.startswith("test/")}:
                self._run.summary.update(tested)

    def end(self, state: str) -> None:
        self._run.finish(exit_code=_EXIT[state])
