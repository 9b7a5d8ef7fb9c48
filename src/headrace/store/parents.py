"""The runs that a run goes on from: which they are, and how a checkpoint of one comes into a new run."""

from pathlib import Path
from typing import Any

from ..errors import ConfigError, RunError
from . import disk
from .checkpoints import Store
from .contents import TRAINER
from .document import read_document
from .named import run_path
from .run import CHECKPOINTS, RUN, RunFiles, rows_in, run_id
from .shape import COUNT, TEXT, check, maybe

_PARENTS = [{"run": TEXT, "id": TEXT, "step": COUNT}]
Parent = dict[str, Any]
"""The run, its id, and the step from which another run goes on."""


def step_of(text: object) -> tuple[Path, int]:
    """A step of a run, as in "runs/a@600"."""
    run, _, step = str(text).rpartition("@")
    if not run or not step.isdecimal():
        raise ConfigError(
            f"parent= is a run and a step that it has a checkpoint of, as in 'runs/a@600'; got {text!r}.",
            argument="parent",
        )
    return run_path(run), int(step)


def parents_of(run: Path) -> list[Parent]:
    """What a run goes on from, the nearest first; nothing for a run that began by itself."""
    document = check(read_document(run / RUN), {"parents": maybe(_PARENTS)}, str(run / RUN))
    found: list[Parent] = document.get("parents") or []
    return found


def lineage(run: Path, step: int) -> list[Parent]:
    """The parents of a run that goes on from a step of this one."""
    return [{"run": str(run.absolute()), "id": run_id(run), "step": step}, *parents_of(run)]


def open_fork(path: Path, run: Path, step: int, source: Path | None = None) -> RunFiles:
    """Opens a run that goes on from a step of another, whose checkpoint and reports a new one gets.

    One that was killed while it got them gets them again. One that has them does not need its parent any more.
    `source`: a run that has the checkpoint, if the parent itself does not.
    """
    files = RunFiles(path, () if (path / RUN).is_file() else lineage(run, step))
    try:
        _check_parent(path, run, step)
        if not Store(files.checkpoints, files.id).steps():
            _inherit(files, run, step, source or run)
    except BaseException:
        files.close()
        raise
    return files


def _inherit(files: RunFiles, run: Path, step: int, source: Path) -> None:
    if run_id(run) != parents_of(files.path)[0]["id"]:
        raise RunError(f"{files.path} began from another run than the one that is at {run} now. Name a new run.")
    store = Store(source / CHECKPOINTS, run_id(source))
    if step not in store.steps():
        there = ", ".join(map(str, store.steps())) or "none"
        raise RunError(
            f"{source} has no checkpoint of step {step}; it has those of {there}. Name one of them, or train up to the "
            "step: hr.Record(run).fork(new, step, trainer, data)."
        )
    contents = store.load(step)
    with disk.failing(f"beginning {files.path} from {source}", files.path, contents.nbytes):
        files.start_with([row for row in rows_in(run) if row["step"] <= step])
    contents.document(TRAINER)["history"] |= files.reported
    Store(files.checkpoints, files.id).save(contents)


def _check_parent(path: Path, run: Path, step: int) -> None:
    """Raises if a run is there already and goes on from something else."""
    known = next(iter(parents_of(path)), None)
    if known is None or (known["run"], known["step"]) != (str(run.absolute()), step):
        has = "began by itself" if known is None else f"goes on from {known['run']}@{known['step']}"
        raise RunError(
            f"{path} is there already, and {has}, not from {run}@{step}. Name a new run, or leave parent= out to go on "
            "with this one."
        )
