"""What `fit(run=)` takes: the directory of a run and how it is kept, or a directory of numbered runs."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import CheckpointError, ConfigError, RunError, unknown
from ..length import Length
from ..step import config
from ..step.weights import check_model, completed
from ..store import codec, disk
from ..store.checkpoints import Store, checked_keep
from ..store.contents import MODEL, TRAINER
from ..store.named import url_of
from ..store.parents import step_of
from ..store.run import CHECKPOINTS, RUN, run_id
from ..store.shape import check
from .checkpoint import PARTS

RESUME = ("auto", "must", "never")
CHECKPOINT = ("complete", "trainable")
_NUMBER = re.compile(r"\d+")
_SEPARATORS = tuple(filter(None, ("/", os.sep, os.altsep)))


def _nothing(run: Path) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Run:
    """Where a training is saved, and how: `fit(run=hr.Run("runs/a", keep=5, every="10 minutes"))`.

    Args:
        path: the directory. If it ends with a slash, as "runs/", it holds numbered runs: the newest with the same
            settings is continued, or a new one is begun, and `history.run` is its path. Without a path nothing is
            saved.
        resume: "auto" continues from the last checkpoint, if there is one. "must" requires one, "never" refuses one.
            Limits may differ from those of the run; any other setting that differs is an error.
        every: how often a checkpoint is written, as in "1 epoch" or "10 minutes". There is always one at the end.
        keep: how many checkpoints are kept, or "all". The best one is always kept.
        override: continue although settings differ.
        wait: write checkpoints in the training thread. By default another thread writes them.
        logs: whether the run has a log.txt and curves for TensorBoard.
        parent: "runs/a@600" begins a new run with the checkpoint of step 600 of the run "runs/a", which is not changed.
            With the same settings it ends with the bits of that run; with `override` settings may differ.
        checkpoint: "trainable" saves only what is trained, and a hash of the frozen rest. Resuming needs a model with
            the same rest.
    """

    path: "str | Path | Runs | None" = None
    _: KW_ONLY
    resume: str = "auto"
    every: str | Length = "1 epoch"
    keep: int | str = 3
    override: bool = False
    wait: bool = False
    logs: bool = True
    parent: str | None = None
    checkpoint: str = "complete"

    @classmethod
    def of(cls, run: "str | Path | Run | None") -> "Run":
        """Makes a run of the argument `run` of `fit`."""
        return run if isinstance(run, Run) else cls(run)

    def __post_init__(self) -> None:
        if self.path is not None and (not isinstance(self.path, str | Path | Runs) or not str(self.path)):
            raise ConfigError(
                f"run= is the path of a directory, or hr.Run(path, ...); got {self.path!r}.", argument="run"
            )
        if self.checkpoint not in CHECKPOINT:
            raise ConfigError(unknown("checkpoint", self.checkpoint, CHECKPOINT), argument="checkpoint")
        if self.resume not in RESUME:
            raise ConfigError(unknown("resume", self.resume, RESUME))
        if self.path is None and self.resume == "must":
            raise ConfigError("resume='must' needs the run to go on from: hr.Run('runs/name').", argument="resume")
        if self.override and self.resume == "never":
            raise ConfigError("override= is for a run that goes on, which resume='never' refuses. Leave one out.")
        if self.parent is not None:
            step_of(self.parent)
            if self.resume == "never":
                raise ConfigError("parent= goes on from a checkpoint, which resume='never' refuses. Leave one out.")
            if not isinstance(self.path, str | Path) or Runs.are_at(self.path):
                raise ConfigError(
                    "parent= needs the path of the new run: hr.Run('runs/b', parent=...).", argument="parent"
                )
        checked_keep(self.keep)
        Length.parse(self.every, "every")


@dataclass(frozen=True, slots=True)
class Runs:
    """A directory whose runs are numbered. A training goes on with the newest run of its settings, or begins one."""

    path: Path
    differences: Callable[[Path], list[str]] = _nothing
    """What differs in a run beside the settings of the trainer."""

    @staticmethod
    def are_at(run: str | Path) -> bool:
        """Whether `run=` names a directory of runs: it is a string that ends with a slash, and is not a run itself."""
        if Path(run, RUN).exists():
            return False
        if isinstance(run, Path) and any(_NUMBER.fullmatch(part.parent.name) for part in run.glob(f"*/{RUN}")):
            raise ConfigError(
                f"run={run!r} is a directory of runs. To number the next one there pass the string '{run}/': a Path "
                "loses the slash at its end.",
                argument="run",
            )
        return isinstance(run, str) and run.endswith(_SEPARATORS)

    def choose(self, model: nn.Module, settings: config.Config, resume: str, override: bool) -> tuple[Path, str]:
        """The run to train in, and a sentence for its log where it is a new one."""
        reason = ""
        for run, store in self._newest_first() if resume != "never" else ():
            differences = self._differences(run, store, model, settings)
            if override or not differences:
                return run, ""
            reason = reason or f"{run} differs: " + "; ".join(differences)
        if resume == "must":
            why = reason or f"{self.path} has no run with a checkpoint."
            raise RunError(f"resume='must', and no run in {self.path} has these settings. {why}")
        return self._begin(), "this run is new" + (f", since {reason}" if reason else "")

    def _newest_first(self) -> Iterator[tuple[Path, Store]]:
        """The runs with a checkpoint, and their checkpoints."""
        for name in sorted(self._numbers(), key=int, reverse=True):
            run = self.path / name
            if (run / RUN).is_file() and (store := Store(run / CHECKPOINTS, run_id(run))).steps():
                yield run, store

    def _numbers(self) -> list[str]:
        names = os.listdir(self.path) if self.path.is_dir() else []
        return [name for name in names if _NUMBER.fullmatch(name)]

    def _begin(self) -> Path:
        """A directory with the next number; another process may take the same number at the same time."""
        with disk.failing(f"making a run in {self.path}", self.path):
            disk.make_dirs(self.path)
            number = max(map(int, self._numbers()), default=0)
            while True:
                number += 1
                try:
                    disk.make_dir(run := self.path / f"{number:03d}")
                except FileExistsError:
                    continue
                return run

    def _differences(self, run: Path, store: Store, model: nn.Module, settings: Mapping[str, Any]) -> list[str]:
        """What a run was trained with that is not as it is now; why it cannot be read, if it cannot."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are told where the training goes on
                last = store.newest(lambda name: name == TRAINER)
                assert last is not None
                saved = codec.decode(last.document(TRAINER).get("config"), {})
                found = config.differences(check(saved, PARTS["config"], "config"), settings) + self.differences(run)
                if not found:
                    weights = store.load(last.step, lambda name: name == MODEL).tensors_of(MODEL)
                    base = check(last.document(TRAINER).get("base"), PARTS["base"], "base")
                    check_model(completed(weights, base, model, None), model.state_dict())
        except CheckpointError as error:
            return [" ".join(str(error).split())]  # in a line of a log
        return found


def named(run: str | Path | Runs) -> Path | Runs:
    """What `run=` names: a run, or a directory of runs."""
    if (url := url_of(run.path if isinstance(run, Runs) else run)) is not None:
        if isinstance(run, Runs) or url.endswith("/"):
            raise RunError(f"{url} ends with a slash, and runs are numbered on this machine only. Name a run.")
        from ..store.cache import folder_of

        return folder_of(url)
    if isinstance(run, Runs):
        return run
    return Runs(Path(run)) if Runs.are_at(run) else Path(run)
