"""Writes the state of a training into a run and reads it back; without a run it keeps only the best weights."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError, RunError, unknown
from ..length import Length
from ..step import config
from ..step.weights import check_model, load_model
from ..store import codec
from ..store.checkpoints import Keep, Store
from ..store.codec import Texts
from ..store.contents import MODEL, TRAINER, Contents
from ..store.disk import failure, run_path
from ..store.run import RUN, Run
from ..store.shape import PARTS, check
from ..store.snapshot import Copier, Saver
from ..watch.info import Best, Info
from .runs import Runs
from .state import LARGE, State, decode, encode, fill, parts_of, tensors_in

RESUME = ("auto", "must", "never")


class Checkpointer:
    """Keeps nothing but the best weights, in memory: there is no run."""

    keeps = False
    """Whether a training can go on from here."""
    every: Length | None = None
    """How often a checkpoint is written."""
    path: Path | None = None
    """The directory of the run, once it is chosen."""

    def choose(self, model: nn.Module, settings: config.Config) -> None:
        """Finds the run of this model and these settings, where a directory of runs was named."""

    def __enter__(self) -> "Checkpointer":
        self._best: dict[str, Tensor] = {}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass

    def find(self, model: nn.Module, settings: config.Config, limits: config.Config) -> State | None:
        """The state to go on from, once it is known to fit this model and these settings."""
        return None

    def begin(self, info: Info, nbytes: int) -> None:
        """The training is about to begin, or to go on; the history gets what was reported after its checkpoint."""

    def started(self, info: Info, data: str) -> None:
        """Called after `on_fit_start`, when nothing has refused the training."""

    def due(self, info: Info) -> bool:
        """Whether a checkpoint is to be written now."""
        return False

    def overdue(self) -> bool:
        """Whether a checkpoint is due by the clock of the worker that writes it."""
        return False

    def wait(self) -> None:
        """Returns once everything that was saved is on the disk; raises if it could not be."""

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        """A row of the history is complete, after so many minutes of training."""

    def save(self, state: State | None, info: Info, again: bool = False) -> None:
        """Writes a checkpoint of this state, if there is one; `again`: there is one of this step, which knows less."""

    def mark_best(self, model: nn.Module) -> None:
        """The model is the best so far."""
        self._best = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}

    def restore(self, best: Best, model: nn.Module) -> None:
        """The model becomes the best again."""
        if self._best:
            model.load_state_dict(self._best, strict=False)

    def log(self, text: str) -> None:
        """Writes a line into the run's log."""

    def end(self, why: str) -> None:
        """The training has ended well."""


class RunCheckpointer(Checkpointer):
    """Keeps everything in a run directory."""

    keeps = True
    path: Path

    def __init__(self, run: Path | Runs, resume: str, every: Length, keep: Keep, override: bool, wait: bool) -> None:
        self._named, self._resume, self._override, self._wait = run, resume, override, wait
        self._reason = ""  # for a new run
        self.every, self._keep = every, keep
        self._saver, self._copier, self._texts = Saver(), Copier(), Texts()
        self._saved_at = time.perf_counter()
        self._best_steps: dict[int, list[int]] = {}  # that the last checkpoints, by their step, want to be kept
        self._config: config.Config = {}
        self._overtakes = -1  # a checkpoint that the training has gone back from; the next one replaces it
        self._refusable = False  # whether it has been trained in this run, and this training has not begun
        self._good: list[int] = []  # the step of the last checkpoint that can be gone on from, if it is known
        self._rows_until = -1  # the last step whose reports are those of the checkpoint to go on from

    def choose(self, model: nn.Module, settings: config.Config) -> None:
        path = self._named
        if isinstance(path, Runs):
            path, self._reason = path.choose(model, settings, self._resume, self._override)
        self.path = path.absolute()

    def __enter__(self) -> "RunCheckpointer":
        if self._resume == "must" and not (self.path / RUN).is_file():
            raise RunError(f"resume='must', and {self.path} is no run. Use resume='auto' to start one.")
        self._run = Run(self.path)
        self._store = Store(self._run.checkpoints, self._run.id, self._keep)
        if self._reason:
            self._run.log(self._reason)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits for what is being written; a failure there is raised unless there is another already."""
        try:
            self._saver.wait()
        except BaseException as failure:
            self._run.log(f"a checkpoint could not be written: {failure}")
            if error is None or isinstance(error, GeneratorExit | SystemExit | KeyboardInterrupt):
                raise
            error.add_note(f"And the last checkpoint could not be written: {failure}")
        finally:
            if error is not None and not isinstance(error, GeneratorExit):
                self._run.log(f"{'refused' if self._refusable else 'ended by'} {type(error).__name__}: {error}")
            self._run.close()

    def find(self, model: nn.Module, settings: config.Config, limits: config.Config) -> State | None:
        steps = self._store.steps()
        self._refusable = bool(steps)
        if self._resume == "never" and steps:
            raise RunError(
                f"resume='never', and {self.path} has {len(steps)} checkpoints, the last of step {steps[-1]}. "
                "Name another run, or resume this one."
            )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            contents = self._store.newest()
        for warning in caught:
            self._run.log(str(warning.message))
            warnings.warn(warning.message, stacklevel=3)
        self._config = {**settings, "limits": limits}
        if contents is None:
            if self._resume == "must":
                raise RunError(f"resume='must', and {self.path} has no checkpoint. Use resume='auto' to start it.")
            self._run.refuse_without_checkpoints()
            return None
        state = decode(contents)
        if state.is_stuck:
            contents, state = self._before(contents, state)
        check_model(state.model, model.state_dict())
        self._good = [] if state.is_stuck else [contents.step]
        state.forced = self._override
        state.overridden = self._check_settings(state.config, settings, state.limits, limits)
        self._rows_until = contents.step - ("row" not in state.done)
        for step in [step for step in steps if step <= contents.step][-(self._keep.last or 1) :]:
            self._best_steps[step] = self._marked_by(step, contents)
        return state

    def _before(self, stuck: Contents, state: State) -> tuple[Contents, State]:
        """The last checkpoint before this one that can be gone on from; this one, if there is none."""
        for step in reversed([step for step in self._store.steps() if step < stuck.step]):
            try:
                found = decode(contents := self._store.load(step))
            except CheckpointError:
                continue
            if not found.is_stuck:
                text = (
                    f"{self.path} stopped within an epoch, at step {stuck.step}, where data without a state_dict "
                    f"cannot go on. It goes on from step {step}, with data that have to begin an epoch there."
                )
                self._run.log(text)
                warnings.warn(text, stacklevel=3)
                found.saved = stuck.step
                return contents, found
        return stuck, state

    def begin(self, info: Info, nbytes: int) -> None:
        with suppress(OSError):  # whatever a save that was cut short has left
            self._store.clean()
        self._run.probe(2 * nbytes)
        _add_later(info.history.rows, self._run.rows_until(min(self._rows_until, info.step), info.samples))
        self._overtakes = info.resumed if info.step < info.resumed else -1

    def started(self, info: Info, data: str) -> None:
        self._refusable = False
        self._run.drop_later()
        self._run.configure(self._config)
        if info.best is not None and not self._run.tells_best(info.best.step):
            self._tell_best(info.best)
        self._run.log(f"going on from step {info.step}" if info.resumed else "started")
        self._run.log(data)

    def due(self, info: Info) -> bool:
        assert self.every is not None
        if self.every.unit == "minutes":
            return time.perf_counter() - self._saved_at >= 60 * self.every.count
        return self.every.fires(info.counters)

    def wait(self) -> None:
        self._saver.wait()

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        self._run.report(row, minutes)

    def save(self, state: State | None, info: Info, again: bool = False) -> None:
        assert state is not None
        self._saver.wait()
        self._saved_at = time.perf_counter()
        parts = parts_of(state)
        large = {part: parts.pop(part) for part in LARGE}  # encoded in the thread
        contents = encode(info.step, parts)
        tensors: dict[Any, Tensor] = {(f, n): t for f, found in contents.tensors.items() for n, t in found.items()}
        many = dict(tensors_in(large))
        copies, keys = self._copier(tensors | many), {id(tensor): key for key, tensor in many.items()}
        if not state.is_stuck:
            self._good = [info.step]
        self._best_steps[info.step] = [*info.kept, *self._good]
        if len(self._best_steps) > (self._keep.last or 1):
            del self._best_steps[min(self._best_steps)]
        best_steps = [step for steps in self._best_steps.values() for step in steps]
        complete = partial(fill, contents, large, copies, keys, self._texts(info.history.rows))
        self._saver.start(partial(self._write, contents, complete, info.best, best_steps, again))
        if self._wait:
            self._saver.wait()

    def mark_best(self, model: nn.Module) -> None:
        pass  # the checkpoint of this step is kept

    def restore(self, best: Best, model: nn.Module) -> None:
        self._saver.wait()
        try:
            contents = self._store.load(best.step, lambda name: name == MODEL)
        except CheckpointError as error:
            warnings.warn(
                f"the model stays as it is after the last step, not as it was at its best: {error}", stacklevel=2
            )
            return
        load_model(model, contents.tensors_of(MODEL), strict=False)

    def log(self, text: str) -> None:
        self._run.log(text)

    def end(self, why: str) -> None:
        self._saver.wait()
        self._run.log(f"ended: {why}")

    def _write(
        self,
        contents: Contents,
        complete: Callable[[], None],
        best: Best | None,
        best_steps: Sequence[int],
        again: bool,
    ) -> None:
        """In the saver's thread: reports are on the disk before the checkpoint that has seen them.

        What any of the checkpoints that stay calls the best, stays.
        """
        complete()
        try:
            self._run.sync()
            self._store.save(contents, best_steps, again=again, overtakes=contents.step < self._overtakes)
            self._overtakes = -1
            if best is not None and best.step == contents.step:
                self._tell_best(best)
        except RunError:
            raise
        except OSError as error:
            raise failure(error, f"saving step {contents.step}", self.path, contents.nbytes) from error

    def _tell_best(self, best: Best) -> None:
        """The best weights go where a person looks for them, if they are there still."""
        weights = self._store.at(best.step) / MODEL
        if weights.is_file():
            self._run.best(weights, {"step": best.step, best.key: best.value})

    def _marked_by(self, step: int, read: Contents) -> list[int]:
        """The steps that a checkpoint wants to be kept; none where it cannot be read. One has been `read` already."""
        try:
            found = read if step == read.step else self._store.load(step, lambda name: name == TRAINER)
            marks = codec.decode(found.document(TRAINER).get("marks"), {})
            return [kept for mark in check(marks, PARTS["marks"], "marks").values() for kept in mark["keep"]]
        except CheckpointError:
            return []

    def _check_settings(
        self, saved: config.Config, now: config.Config, saved_limits: config.Config, limits: config.Config
    ) -> list[str]:
        """Raises on settings that differ, unless they are meant to; those that do. Limits may differ."""
        found = config.differences(saved, now)
        if found and not self._override:
            listed = "\n  ".join(found)
            raise CheckpointError(
                f"{self.path} was trained with other settings:\n  {listed}\n"
                "Set them as they were, name another run, or go on with the new ones: override=True (--override)."
            )
        for difference in found:
            self._run.log(f"overridden: {difference}")
        for difference in config.differences(saved_limits, limits):
            self._run.log(f"limit in {difference}")
        return found


def make_checkpointer(
    run: str | Path | Runs | None, resume: str, every: str | Length, keep: int | str, override: bool, wait: bool
) -> Checkpointer:
    """What keeps a training: a run directory where one is named, or a directory of runs."""
    if resume not in RESUME:
        raise ConfigError(unknown("resume", resume, RESUME))
    if run is not None and (not isinstance(run, str | Path | Runs) or not str(run)):
        raise ConfigError(f"run= is the path of a directory, got {run!r}.", argument="run")
    length, kept = Length.parse(every, "checkpoint_every"), Keep.of(keep)
    if run is not None:
        path = run_path(run.path if isinstance(run, Runs) else run)
        if not isinstance(run, Runs):
            run = Runs(path) if Runs.are_at(run) else path
        return RunCheckpointer(run, resume, length, kept, override, wait)
    if resume == "must":
        raise ConfigError("resume='must' needs the run to go on from: run='runs/name'.", argument="resume")
    return Checkpointer()


def _add_later(history: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
    """What was reported at the last step after its checkpoint, as the scores of a test are."""
    for row in rows:
        if history and row["step"] == history[-1]["step"]:
            history[-1].update({key: value for key, value in row.items() if key not in history[-1]})
