"""Writes the state of a training into a run and reads it back; without a run it keeps only the best weights."""

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from torch import Tensor, nn

from ..arena.sharding import local
from ..errors import CheckpointError, RunError
from ..length import Length
from ..step import config
from ..step.weights import extra_of, load_model, weights_of
from ..store.checkpoints import Store, checked_keep
from ..store.contents import MODEL, Contents
from ..store.disk import failure
from ..store.named import NoMirror, mirror_of, url_of
from ..store.parents import open_fork, step_of
from ..store.run import CHECKPOINTS, RUN, RunFiles, run_id
from ..store.snapshot import Copier, Saver
from ..watch.info import Best, Info
from ..watch.report.read import overview_of
from ..watch.rows import was_interrupted
from ..workers.comm import Null
from ..workers.strategy import Strategy
from .checkpoint import LARGE, Checkpoint, WorkerState, complete, decode, encode, tensors_in
from .resume import Resumed, complete_model, divide, joined_rows, marked_by, readable
from .runs import Run, Runs, named
from .shard_files import STAYS, load_part, newest_together, restore_together, resumed_from, write_together
from .vote import Result, by_leader

if TYPE_CHECKING:
    from ..store.mirror import Mirror

Given = ParamSpec("Given")


def by_worker_0(
    method: Callable[Concatenate["Checkpointer", Given], Result],
) -> Callable[Concatenate["Checkpointer", Given], Result | None]:
    """Worker 0 runs the method, and all workers get its result or its error. Without a run nothing is done.

    Once a training with a center has begun, its workers wait for nobody: then only worker 0 calls it.
    """

    @wraps(method)
    def shared(self: "Checkpointer", *args: Given.args, **options: Given.kwargs) -> Result | None:
        if not self.keeps or (self._is_apart and not self._writes):
            return None
        return by_leader(Null() if self._is_apart else self._comm, lambda: method(self, *args, **options))

    return shared  # type: ignore[return-value]


class Checkpointer:
    """Saves a training in a run, and finds what it continues from. Worker 0 reads and writes, for all workers."""

    def __init__(self, strategy: Strategy, run: Run) -> None:
        self._strategy, self._comm = strategy, strategy.comm
        self._named = named(run.path) if run.path is not None else Path()
        self._resume, self._override, self._wait = run.resume, run.override, run.wait
        self._keep, self._parent = checked_keep(run.keep), run.parent
        self.keeps = run.path is not None
        """Whether a training can go on from here."""
        self.every = Length.parse(run.every, "every") if self.keeps else None
        """How often a checkpoint is written."""
        self.saves_base = run.checkpoint == "complete"
        """Whether parameters that are frozen from the beginning are saved."""
        self.path: Path | None = None
        """The directory of the run, once it is chosen."""
        self.overdue = False
        """Whether a checkpoint is due by the clock of worker 0, which the others do not know."""
        self._url = None if run.path is None else url_of(str(run.path))
        self._mirror: Mirror | NoMirror = NoMirror()
        self._writes = self.keeps and self._comm.leader
        self._is_apart = False  # whether the training has begun, and workers no longer wait for each other
        self._shares = self.keeps and strategy.shards  # whether every worker writes and reads a part
        self._best: dict[str, Any] = {}  # if there is no run
        self._run: RunFiles
        self._store: Store
        self._reason = ""  # for a new run
        self._saver, self._copier, self._saves = Saver(), Copier(), 0  # so many have begun
        self._saved_at = time.perf_counter()
        self._best_steps: dict[int, list[int]] = {}  # that the last checkpoints, by their step, want to be kept
        self._config: config.Config = {}
        self._overtakes = -1  # a checkpoint that the training has gone back from; the next one replaces it
        self._refusable = False  # whether it has been trained in this run, and this training has not begun
        self._good: list[int] = []  # the step of the last checkpoint that can be gone on from, if it is known
        self._rows_until = -1  # the last step whose reports are those of the checkpoint to go on from

    def choose(self, model: nn.Module, settings: config.Config) -> None:
        """Finds the run of this model and these settings, where a directory of runs was named."""
        path = self._choose(model, settings)
        self.path = None if path is None else Path(path)

    @by_worker_0
    def _choose(self, model: nn.Module, settings: config.Config) -> str:
        path = self._named
        if isinstance(path, Runs):
            path, self._reason = path.choose(model, settings, self._resume, self._override)
        return str(path.absolute())

    def __enter__(self) -> "Checkpointer":
        self._open()
        if self._shares and not self._writes:
            assert self.path is not None
            self._store = Store(self.path / CHECKPOINTS, run_id(self.path), self._keep)
        return self

    @by_worker_0
    def _open(self) -> None:
        assert self.path is not None
        self._mirror = mirror_of(self._url, self.path, overview_of)
        with ExitStack() as opened:
            opened.callback(self._mirror.abandon)
            if self._resume == "must" and not (self.path / RUN).is_file():
                named = self._url or self.path
                raise RunError(f"resume='must', and {named} is no run. Use resume='auto' to start one.")
            self._run = RunFiles(self.path) if self._parent is None else open_fork(self.path, *step_of(self._parent))
            first = self._mirror.first_serial
            self._store = Store(self._run.checkpoints, self._run.id, self._keep, first_serial=first)
            opened.pop_all()
        if self._reason:
            self._run.log(self._reason)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits for what is being written; a failure there is raised unless there is another already."""
        if not self._writes:
            with nullcontext() if error is None else suppress(Exception):
                self._saver.wait()
            return
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
            self._mirror.close(error)

    def find(self, model: nn.Module, settings: config.Config, limits: config.Config) -> Resumed | None:
        """What this worker goes on with, once it is known to fit this model and these settings."""
        workers: list[WorkerState] = []
        read = newest_together(self._store, self._strategy, self.log) if self._shares else None
        found = self._find(model, settings, limits, workers, read)
        if found is None:
            return None
        if read is not None:
            return resumed_from(self._store, self._strategy, found, read, model)
        mine = self._comm.hand_out(workers)
        if progress := mine["replica"].get("progress"):
            step = found["common"]["step"] | progress["step"] | {"optimizers": mine["replica"]["optimizers"]}
            found["common"] |= progress | {"step": step}
        return Resumed(mine=mine, **found)

    @by_worker_0
    def _find(
        self,
        model: nn.Module,
        settings: config.Config,
        limits: config.Config,
        workers: list[WorkerState],
        read: Contents | None,
    ) -> dict[str, Any] | None:
        """The fields of `Resumed` that are the same for all workers; `workers` gets what each of them goes on with.

        What all workers have `read` is not returned: only its step, and the history.
        """
        steps = self._store.steps()
        self._refusable = bool(steps)
        if self._resume == "never" and steps:
            raise RunError(
                f"resume='never', and {self.path} has {len(steps)} checkpoints, the last of step {steps[-1]}. "
                "Name another run, or resume this one."
            )
        self._config = {**settings, "limits": limits}
        with self._run.logging_warnings():
            contents = read if self._shares else self._store.newest()
        if contents is None:
            if self._resume == "must":
                raise RunError(f"resume='must', and {self.path} has no checkpoint. Use resume='auto' to start it.")
            self._run.refuse_without_checkpoints()
            return None
        newest, checkpoint = contents.step, decode(contents)
        if checkpoint.is_stuck:
            contents, checkpoint = self._before(contents, checkpoint)
        complete_model(checkpoint.common, model, None if self._shares else self._strategy)
        self._good = [] if checkpoint.is_stuck else [contents.step]
        overridden = self._check_settings(checkpoint.common, settings, limits)
        self._rows_until = contents.step - ("row" not in checkpoint.common["done"])
        with self._run.logging_warnings():
            self._run.check_reported(saved := checkpoint.common["history"], contents.step)
        reported = self._run.rows_until(self._rows_until, checkpoint.common["counters"]["samples"])
        checkpoint.common["history"] = joined_rows(reported, saved["last"])
        for step in [step for step in steps if step <= contents.step][-(self._keep or 1) :]:
            self._best_steps[step] = marked_by(self._store, step, contents)
        about = {"newest": newest, "override": self._override, "overridden": overridden}
        common = {"step": contents.step, "history": checkpoint.common["history"]}
        if not self._shares:
            with readable():
                common, each = divide(checkpoint, self._strategy, self._comm.count)
            workers += each
        return {"common": common, "count": len(checkpoint.workers), **about}

    def _before(self, stuck: Contents, checkpoint: Checkpoint) -> tuple[Contents, Checkpoint]:
        """The last checkpoint before this one that can be gone on from; this one, if there is none."""
        for step in reversed([step for step in self._store.steps() if step < stuck.step]):
            try:
                found = decode(contents := load_part(self._store, self._strategy, step))
            except CheckpointError:
                continue
            if not found.is_stuck:
                text = (
                    f"{self.path} stopped within an epoch, at step {stuck.step}, where data without a state_dict "
                    f"cannot go on. It goes on from step {step}, with data that have to begin an epoch there."
                )
                self._run.log(text)
                warnings.warn(text, stacklevel=3)
                return contents, found
        return stuck, checkpoint

    @by_worker_0
    def begin(self, info: Info, nbytes: int) -> None:
        """The training is about to begin, or to go on."""
        with suppress(OSError):  # whatever a save that was cut short has left
            self._store.clean()
        self._run.probe(2 * nbytes)
        self._run.rows_until(min(self._rows_until, info.step), info.samples)
        self._overtakes = info.resumed if info.step < info.resumed else -1

    def started(self, info: Info, data: str) -> None:
        """Called after `on_fit_start`, when nothing has refused the training."""
        self._started(info, data)
        self._is_apart = self._strategy.centered

    @by_worker_0
    def _started(self, info: Info, data: str) -> None:
        self._refusable = False
        self._run.drop_later()
        self._run.configure(self._config)
        if info.best is not None and not self._run.tells_best(info.best.step):
            self._tell_best(info.best)
        self._run.log(f"going on from step {info.step}" if info.resumed else "started")
        self._run.log(data)

    def due(self, info: Info) -> bool:
        """Whether a checkpoint is to be written now."""
        if self.every is None:
            return False
        if self.every.unit != "minutes":
            return self.every.fires(info.counters)
        due = self._writes and time.perf_counter() - self._saved_at >= 60 * self.every.count
        self.overdue = due and self._comm.count > 1 and not self._is_apart
        return due and not self.overdue

    @by_worker_0
    def wait(self) -> None:
        """Returns once everything that was saved is on the disk; raises if it could not be."""
        self._saver.wait()

    def wait_for_first(self) -> None:
        """Waits for the first checkpoint, which precedes all reports. Several workers have waited as they began."""
        if self._saves == 1 and self._comm.count == 1:
            self.wait()  # a disk that has failed meanwhile is an error only now; `begin` has tried to write

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        """A row of the history is complete, after so many minutes of training."""
        if self._writes:
            self._run.report(row, minutes)
            self._mirror.reported()

    def save(self, checkpoint: Checkpoint | None, info: Info, again: bool = False) -> None:
        """Copies a checkpoint, and writes it in a thread; `again`: there is one of this step, which knows less."""
        if not (self._writes or self._shares) or checkpoint is None:
            return
        self._saver.wait()
        self._saves += 1
        self._saved_at = time.perf_counter()
        parts = dict(checkpoint.common)
        large = {part: parts.pop(part) for part in LARGE}  # encoded in the thread
        parts["history"] = {} if not self._writes else {**self._run.reported, "last": parts["history"][-1:]}
        contents = encode(info.step, parts, checkpoint.workers)
        tensors: dict[Any, Tensor] = {(file, n): t for file, of in contents.tensors.items() for n, t in of.items()}
        tensors |= dict(tensors_in(large))
        copies = self._copier({key: local(tensor) for key, tensor in tensors.items()})
        keys = {id(tensor): key for key, tensor in tensors.items()}
        if not checkpoint.is_stuck:
            self._good = [info.step]
        self._best_steps[info.step] = [*info.kept, *self._good]
        if len(self._best_steps) > (self._keep or 1):
            del self._best_steps[min(self._best_steps)]
        best_steps = [step for steps in self._best_steps.values() for step in steps]
        fill = partial(complete, contents, large, copies, keys)
        self._saver.start(partial(self._write, contents, fill, info.best, best_steps, again))
        if self._wait:
            self._saver.wait()

    def mark_best(self, model: nn.Module) -> None:
        """The model is the best so far; a run keeps the checkpoint of this step."""
        if not self.keeps and (self._comm.leader or self._strategy.shards):
            self._best = {k: v.clone() if isinstance(v, Tensor) else v for k, v in model.state_dict().items()}

    def restore(self, best: Best, model: nn.Module) -> None:
        """The model of worker 0, or this worker's part of a sharded one, becomes the best again."""
        if self._shares:
            self.wait()
            restore_together(self._store, self._strategy, best.step, model)
        else:
            self._restore(best, model)
        if self._best:
            model.load_state_dict(self._best, strict=False)

    @by_worker_0
    def _restore(self, best: Best, model: nn.Module) -> None:
        self._saver.wait()
        try:
            contents = weights_of(self._store, best.step)
        except CheckpointError as error:
            warnings.warn(STAYS.format(error), stacklevel=2)
            return
        load_model(model, contents.tensors_of(MODEL) | extra_of(contents), strict=False)

    def log(self, text: str) -> None:
        """Writes a line into the run's log."""
        if self._writes:
            self._run.log(text)

    @by_worker_0
    def end(self, why: str) -> None:
        """The training has ended well."""
        self._saver.wait()
        self._run.log(f"ended: {why}")

    def announce(self, step: int, complete: bool, why: str) -> None:
        """Prints, after a signal, whether the run is complete. If it is not, says from which step it can go on."""
        then = "to go on" if not why or was_interrupted(why) else "to complete it"
        saved = f"saved at step {step:,} in {self._url or self._named}; run again {then}"
        text = "the training had reached its end, and its run is complete" if complete else saved
        if self._writes:
            print(f"headrace: {text}", file=sys.stderr)

    def _write(
        self,
        contents: Contents,
        fill: Callable[[], None],
        best: Best | None,
        best_steps: Sequence[int],
        again: bool,
    ) -> None:
        """In the saver's thread: reports are on the disk before the checkpoint that has seen them.

        What any of the checkpoints that stay calls the best, stays.
        """
        fill()
        options: Any = {"again": again, "overtakes": contents.step < self._overtakes}
        try:
            if self._writes:
                self._run.sync()
            if self._shares:
                commit = partial(self._store.commit, workers=contents.workers, best=best_steps, **options)
                write_together(self._store, contents, self._strategy, commit)
            else:
                self._store.save(contents, best_steps, **options)
            self._overtakes = -1
            if not self._shares and best is not None and best.step == contents.step:
                self._tell_best(best)
            self._mirror.upload()
        except RunError:
            raise
        except OSError as error:
            raise failure(error, f"saving step {contents.step}", self._store.path, contents.nbytes) from error

    def _tell_best(self, best: Best) -> None:
        """The best weights go where a person looks for them, if they are there still."""
        if best.step in self._store.steps() and (weights := self._store.at(best.step) / MODEL).is_file():
            self._run.best(weights, {"step": best.step, best.key: best.value})

    def _check_settings(self, saved: Mapping[str, Any], now: config.Config, limits: config.Config) -> list[str]:
        """Raises on settings that differ, unless they are meant to; those that do. Limits may differ."""
        found = config.differences(saved["config"], now)
        if found and not self._override:
            listed = "\n  ".join(found)
            raise CheckpointError(
                f"{self.path} was trained with other settings:\n  {listed}\n"
                "Set them as they were, name another run, or go on with the new ones: override=True (--override)."
            )
        for difference in found:
            self._run.log(f"overridden: {difference}")
        for difference in config.differences(saved["limits"], limits):
            self._run.log(f"limit in {difference}")
        return found
