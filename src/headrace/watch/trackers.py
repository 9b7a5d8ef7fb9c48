"""What trackers share: the numbers of a report, a place for their files, and a record that another program keeps."""

from __future__ import annotations

import errno
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store import disk
from ..store.rows import COUNTERS, Row, was_interrupted
from .callback import Callback

if TYPE_CHECKING:
    from .info import Info

Numbers = dict[str, float]


def numbers(row: Row, within: str = "") -> Numbers:
    """The single numbers of a report by key, without counters, words and matrices."""
    found: Numbers = {}
    for key, value in row.items():
        if isinstance(value, float | Real) and not isinstance(value, bool):  # float first: it is quick, and usual
            if within or key not in COUNTERS:
                found[f"{within}{key}"] = float(value)
        elif isinstance(value, Mapping):
            found |= numbers(value, f"{within}{key}/")
    return found


class Place:
    """Where a tracker writes: the path that it was given, or a name in the directory of the run."""

    def __init__(self, owner: Callback, path: str | Path | None, name: str) -> None:
        self._kind, self._name, self._path = type(owner).__name__, name, path
        if path is not None and (not isinstance(path, str | Path) or not str(path)):
            raise ConfigError(f"{self._kind} takes the path that it is to write to, got {path!r}.")

    def find(self, info: Info) -> Path:
        """The path, in a directory that is there."""
        if self._path is None and info.run is None:
            raise ConfigError(
                f"{self._kind}() writes into the run, and this training has none. Say where: "
                f"{self._kind}({self._name!r}), or name a run: fit(run='runs/name')."
            )
        path = Path(self._path) if self._path is not None else Path(str(info.run)) / self._name
        path = path.absolute()
        if self._path is None:
            disk.refuse_link(path)
        with self.usable(path):
            if not path.parent.is_dir():
                disk.make_dirs(path.parent)
        return path

    def folder(self, info: Info) -> Path:
        """The path as a directory that is there and may be written to."""
        path = self.find(info)
        with self.usable(path):
            disk.make_dirs(path)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path

    @contextmanager
    def usable(self, path: Path) -> Iterator[None]:
        """Turns a failure to open what is at a path into an error that says what to do."""
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(
                f"{self._kind} cannot write to {path}: {why}. Move what is there away, or name another path."
            ) from error


class Tracker(Callback, ABC):
    """A record that another program keeps, perhaps far away: its id is saved with the training, which goes on in it.

    A report that cannot be passed on is kept and passed on with the next one; the training goes on.
    """

    everywhere = False

    def __init__(self) -> None:
        self.id = ""
        """The other program's name for this training, once it has begun."""
        self._waiting: list[Row] = []
        self._failing = self._begun = False

    def forget(self) -> None:
        self.id, self._waiting = "", []
        self._failing = self._begun = False

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
        self._waiting, self._begun = [dict(row) for row in info.history.rows], True

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        before = self._waiting.pop() if self._waiting and self._waiting[-1]["step"] == row["step"] else {}
        self._waiting.append({**before, **row})  # a training that goes on may have begun with a part of this report
        self._pass_on()

    def on_error(self, info: Info, error: BaseException) -> None:
        self._leave("failed" if isinstance(error, Exception) else "interrupted")

    def on_fit_end(self, info: Info) -> None:
        self._leave("interrupted" if was_interrupted(info.stopping) else "finished")

    @abstractmethod
    def begin(self, info: Info) -> None:
        """Begins the record and sets `id`, or goes on in the one that `id` names."""

    @abstractmethod
    def send(self, rows: Iterable[Row]) -> None:
        """Passes on what the record does not have of these reports."""

    @abstractmethod
    def end(self, state: str) -> None:
        """Closes the record of a training that is "finished", "interrupted" or "failed", as its report has it."""

    def _pass_on(self) -> None:
        try:
            self.send(self._waiting)
            self._waiting, self._failing = [], False
        except Exception as error:
            if not self._failing:
                self._failing = True
                self._warn(f"has not taken step {self._waiting[-1]['step']}, which is tried again", error)

    def _leave(self, state: str) -> None:
        if not self._begun:
            return
        self._begun = False
        if self._waiting:
            self._pass_on()
        try:
            self.end(state)
        except Exception as error:
            self._warn("could not be closed", error)

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(f"{type(self).__name__} {what}: {type(error).__name__}: {error}", stacklevel=4)


def require(kind: str, module: str) -> None:
    """Raises unless a package is installed; nothing is imported yet."""
    found = find_spec(module)
    if found is None or found.origin is None:  # a directory that happens to have the name has no origin
        raise ConfigError(f'{kind} needs {module}, which is not installed: pip install "headrace[{module}]".')


def settings(info: Info) -> dict[str, Any]:
    """The settings of a training, each by a name with dots."""
    limits = {limit.unit: limit.count for limit in info.limits}
    return _flat({**info.trainer._config, "limits": limits})


def _flat(value: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, list) and item and all(isinstance(one, Mapping) for one in item):
            item = dict(enumerate(item)) if len(item) > 1 else item[0]
        found |= _flat(item, f"{within}{key}.") if isinstance(item, Mapping) else {f"{within}{key}": item}
    return found
