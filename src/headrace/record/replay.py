"""Trains again, from a checkpoint of a run, in a folder of its own: the run itself is never touched."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..engines.launch import launch
from ..errors import RunError
from ..step import config
from ..store import codec, rng
from ..store.checkpoints import Store
from ..store.contents import TRAINER
from ..store.run import CHECKPOINTS, METRICS, RUN, run_id
from ..train.checkpoint import Checkpoint
from ..train.plan import train_source
from ..train.runs import Run
from ..train.trainer import Trainer
from ..watch.callback import Callback
from ..watch.info import Info
from ..workers.here import here

if TYPE_CHECKING:
    from .record import Record

T = TypeVar("T")
NEVER = "1000000000 steps"


def in_workers(record: Record, step: int, trainer: Trainer, call: Callable[..., T], *arguments: Any) -> T:
    """Calls a function; in as many virtual workers as made the update, where the bits belong to their number."""
    workers = len(record.checkpoint(record.before(step)).workers)
    if workers == 1 or here().count > 1 or trainer.strategy.parts:
        return call(*arguments)
    found: T = launch(call, *arguments, workers=workers)
    return found


@contextmanager
def replaying(
    record: Record, step: int, trainer: Trainer, train: Any, fit: Mapping[str, Any], override: bool = False
) -> Iterator[tuple[Generator[Info], Path]]:
    """The loop of a training that goes on from the last checkpoint up to a step, and the folder in which it does.

    When it is closed, its state is saved there. `override`: with the settings of the trainer, as a fork may.
    """
    run, step = record.path, record.before(step)
    checkpoint = record.checkpoint(step)
    say_where_not_exact(checkpoint, trainer, fit)
    common = checkpoint.common
    override |= changed_after(run, step, common, trainer, train)
    every = {name: common["config"][name] for name in ("log_every", "validate_every") if name in common["config"]}
    comm = here()
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as room:
        place = Path(comm.share(room), "run")
        if comm.leader:
            copy_checkpoint(run, step, place)
        comm.share()  # now it is there
        options = {**common["limits"], **every, **fit}
        kept = Run(place, resume="must", every=NEVER, keep="all", override=override, logs=False)
        loop = trainer.steps(train, run=kept, **options)
        try:
            yield loop, place
            loop.close()
            comm.share()  # nobody needs the folder any more
        finally:
            loop.close()


def changed_after(run: Path, step: int, common: Mapping[str, Any], trainer: Trainer, train: Any) -> bool:
    """Whether the run went on from this checkpoint with other settings or data, as a fork may.

    Raises unless the trainer and the data are those with which it went on.
    """
    store = Store(run / CHECKPOINTS, run_id(run))
    later = next((each for each in store.steps() if each > step), None)
    if later is None:
        return False
    document = store.load(later, lambda name: name == TRAINER).document(TRAINER)
    found, cursor = (codec.decode(document[part], {}) for part in ("config", "source"))
    prints = [_fingerprint(each["cursor"]) for each in (common["source"], cursor)]
    if not config.differences(common["config"], found) and prints[0] == prints[1]:
        return False
    known = {name: value for name, value in trainer.resume_settings.items() if name in found}
    wrong = config.differences({name: found[name] for name in known}, known)
    source = train_source(trainer, train, resumes=True)
    if prints[1] is not None and _fingerprint(source.state_dict()) != prints[1]:
        wrong.append("the data are not those that it went on with")
    if wrong:
        raise RunError(f"{run} went on from step {step} in another way: {'; '.join(wrong)}. Give what it had then.")
    return True


def _fingerprint(cursor: Any) -> Any:
    return cursor.get("fingerprint") if isinstance(cursor, Mapping) else None


class _LoadedError(Exception):
    """The state has been loaded, and no update is wanted."""


class _Stop(Callback):
    def on_fit_start(self, info: Info) -> None:
        raise _LoadedError


def load_state(record: Record, step: int, trainer: Trainer, train: Any, fit: Mapping[str, Any]) -> None:
    """The trainer gets the state of a checkpoint; nothing is trained."""
    fit = {**fit, "callbacks": [*fit.get("callbacks", ()), _Stop()]}
    with replaying(record, step, trainer, train, fit) as (loop, _), suppress(_LoadedError):
        next(loop)
    rng.restore(record.checkpoint(step).workers[here().shard.index]["rng"], trainer.device)


def advance(loop: Generator[Info], step: int) -> Info:
    """Trains up to a step, and gives what the loop shows there."""
    for info in loop:
        if info.step == step:
            return info
    raise RunError(f"the training ended before step {step}.")


def copy_checkpoint(run: Path, step: int, place: Path) -> None:
    """Makes a run that has one checkpoint of another; its files are shared where the file system allows that."""
    name = Store(run / CHECKPOINTS, run_id(run)).at(step).name
    target = place / CHECKPOINTS / name
    target.mkdir(parents=True)
    for file in (run / RUN, run / METRICS):
        shutil.copyfile(file, place / file.name)
    for file in sorted((run / CHECKPOINTS / name).iterdir()):
        with suppress(OSError):
            os.link(file, target / file.name)
            continue
        shutil.copyfile(file, target / file.name)


def say_where_not_exact(checkpoint: Checkpoint, trainer: Trainer, fit: Mapping[str, Any]) -> None:
    """Warns before a replay that may give other bits than the run had."""
    common, workers, count = checkpoint.common, len(checkpoint.workers), here().count
    reasons = []
    if not trainer.strategy.parts and (workers != count or workers > 2):
        reasons.append(
            f"{workers} workers made the updates, and {count} make them again, which add up in the order in which "
            "processes of one machine do on its processor. Only hr.Synchronous(parts=...) gives the same bits otherwise"
        )
    given = {type(callback).__name__ for callback in fit.get("callbacks", ())}
    known = [name.partition(" ")[0].partition(":")[0] for name in common["callbacks"]]
    if missing := sorted({name for name in known if name not in given}):
        reasons.append(f"the run had the callbacks {', '.join(missing)}, which are not given")
    for reason in reasons:
        warnings.warn(f"this replay may not be exact: {reason}.", stacklevel=5)
