"""Callbacks that pass reports on to another program: MLflow, Weights & Biases."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
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
AT_ONCE = 1000  # metrics that MLflow takes in one call
PARAMS_AT_ONCE = 100
LONGEST = 500  # letters of a parameter's value, which older servers take too
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_ODD = re.compile(r"[^\w\-. :/]")  # what MLflow allows in no name

_UNFIT = re.compile(r"[^\w\-.]")  # what W&B allows in no artifact's name
_OURS = ("id", "resume", "config")
_EXIT = {"finished": 0, "interrupted": 255, "failed": 1}
"""Exit codes as W&B gives them itself: 255 after Ctrl-C."""


class Tracker(Callback, ABC):
    """Passes reports on to another program; the id of the record is saved, and a resumed training goes on in it.

    A thread sends, so that no update waits for a server that is slow or gone. Reports that could not be passed on are
    kept, the newest `MOST_WAITING` of them, and tried again after a second or more. The end of a training waits no
    longer for a server than a hundredth of its time, or five seconds.
    """

    everywhere = False
    id = ""
    """The other program's id for this training, once it has begun."""
    _params: Mapping[str, Any] = MappingProxyType({})  # of the class: a subclass need not call `__init__`
    _artifacts: Sequence[Path] = ()
    _sender: _Sender | None = None

    def __init__(self, params: Mapping[str, Any] | None = None, artifacts: Sequence[str | Path] = ()) -> None:
        kind = type(self).__name__
        if params is not None and not isinstance(params, Mapping):
            raise ConfigError(f"{kind}(params=) takes a dict of names and values, got {params!r}.")
        if isinstance(artifacts, str | Path) or not isinstance(artifacts, Sequence):
            raise ConfigError(f"{kind}(artifacts=) takes a list of files and directories, got {artifacts!r}.")
        self._params, self._artifacts = flattened(params or {}), [Path(path) for path in artifacts]

    def forget(self) -> None:
        self.id = ""
        self._failure: tuple[int, Exception] | None = None
        self._waiting: deque[Row] = deque(maxlen=MOST_WAITING)
        self._has_warned = False

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
        self._waiting.extend(dict(row) for row in info.history.rows)
        self._sender = _Sender(self._pass_on)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        assert self._sender is not None
        with self._sender.lock:
            before = self._waiting.pop() if self._waiting and self._waiting[-1]["step"] == row["step"] else {}
            self._waiting.append({**before, **row})  # a training that goes on may have begun with a part of this report
        self._sender.wake()
        self._warn_once()

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

    def keep(self, path: Path) -> None:
        """Keeps a file or a directory beside the record."""
        raise NotImplementedError

    def _pass_on(self, lock: threading.Lock) -> bool:
        """In the sender's thread: sends what is waiting; what has come meanwhile is sent the next time."""
        with lock:
            rows = list(self._waiting)
        if not rows:
            return True
        try:
            self.send(rows)
        except Exception as error:
            self._failure = self._failure or (rows[-1]["step"], error)
            return False
        self._failure, self._has_warned = None, False
        sent = set(map(id, rows))
        with lock:
            remaining = [row for row in self._waiting if id(row) not in sent]
            self._waiting.clear()
            self._waiting.extend(remaining)
        return True

    def _warn_once(self) -> None:
        """Warns of a failure, in the thread of the training, until something has been sent again."""
        if (failure := self._failure) is not None and not self._has_warned:
            self._has_warned = True
            self._warn(f"has not taken step {failure[0]}, which is tried again", failure[1])

    def _leave(self, state: str, info: Info) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        limit_s = max(END_S, END_SHARE * 60 * info.counters.minutes)
        if not sender.end(limit_s):
            self._warn("has not taken the last reports", TimeoutError(f"it does not answer for {limit_s:.0f} s."))
            return
        self._warn_once()
        for path in self._artifacts:
            try:
                if not path.exists():
                    raise FileNotFoundError("there is no such file.")
                self.keep(path)
            except Exception as error:
                self._warn(f"has not taken {path}", error)
        try:
            self.end(state)
        except Exception as error:
            self._warn("could not be closed", error)

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(f"{type(self).__name__} {what}: {type(error).__name__}: {error}", stacklevel=4)


class _Sender:
    """A thread that calls `send` when it is woken, one call at a time, until it ends; it pauses after a failure."""

    def __init__(self, send: Callable[[threading.Lock], bool]) -> None:
        self.lock = threading.Lock()
        self._send, self._due, self._ended = send, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-tracker", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if not self._due.is_set():
            self._due.set()

    def end(self, limit_s: float) -> bool:
        """Sends what is left; whether that was over in time."""
        self._ended.set()
        self._due.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause_s, ended = 0.0, False
        while not ended:
            self._due.wait()
            self._due.clear()
            ended = self._ended.is_set()
            pause_s = 0.0 if self._send(self.lock) else min(2 * pause_s or RETRY_S, LONGEST_RETRY_S)
            self._ended.wait(pause_s)


def require(kind: str, module: str) -> None:
    """Raises unless a package is installed; nothing is imported yet."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:  # a directory that happens to have the name has no origin
        raise ConfigError(f'{kind} needs {module}, which is not installed: pip install "headrace[{module}]".')


def settings(info: Info) -> dict[str, Any]:
    """The settings of a training, each by a name with dots."""
    limits = {limit.unit: limit.count for limit in info.limits}
    return flattened({**info.trainer.resume_settings, "limits": limits})


class MLflow(Tracker):
    """Logs settings as parameters, and every number at its step; a resumed training goes on in the same MLflow run.

    `experiment`: its name, else that of MLFLOW_EXPERIMENT_NAME; `uri`: of the server or the database, else that of
    MLFLOW_TRACKING_URI; `name`: of the run, else that of the run's directory. It does not touch MLflow's active run.
    `params`: parameters of your own beside the settings; `artifacts`: files and directories that are uploaded when the
    training ends.
    """

    _looks_on = True

    def __init__(
        self,
        experiment: str | None = None,
        uri: str | None = None,
        name: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        artifacts: Sequence[str | Path] = (),
    ) -> None:
        super().__init__(params, artifacts)
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
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        name = self._name or (info.run.name if info.run else None)
        self.id = self._client.create_run(experiment, run_name=name).info.run_id
        self._describe({**settings(info), **self._params})

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

    def keep(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self.id, str(path), path.resolve().name)
        else:
            self._client.log_artifact(self.id, str(path))

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

    `project`, `name` (else that of the run's directory) and what else `wandb.init` takes, as in `mode="offline"`.
    Test scores are in the summary. Offline, every start has a file of its own, which has all numbers from the first
    step on: send the last one. `params`: of your own, in the config beside the settings; `artifacts`: files and
    directories that are uploaded when the training ends.
    """

    _looks_on = True

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        artifacts: Sequence[str | Path] = (),
        **options: Any,
    ) -> None:
        super().__init__(params, artifacts)
        require("WandB", "wandb")
        if taken := sorted(set(_OURS) & options.keys()):
            raise ConfigError(
                f"WandB sets {' and '.join(taken)} by itself: a training goes on in the run that it began."
            )
        self._options = {"project": project, "name": name, **options}
        self._run: Any = None
        self._known = -1  # the last step that W&B has

    def begin(self, info: Info) -> None:
        import wandb

        self.id = self.id or uuid.uuid4().hex[:16]
        config = {**settings(info), **self._params}
        given: dict[str, Any] = {"config": config, "allow_val_change": True}  # limits may have grown
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

    def keep(self, path: Path) -> None:
        import wandb

        artifact = wandb.Artifact(_UNFIT.sub("_", path.resolve().name) or "files", type="file")
        (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path))
        self._run.log_artifact(artifact)

    def end(self, state: str) -> None:
        self._run.finish(exit_code=_EXIT[state])
