"""`headrace checkpoint list`, `verify` and `export`: what a run has saved."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import CheckpointError
from ...store.named import run_path
from .options import DEFAULT_WEIGHTS, Weights
from .output import iso_time, print_result, short_time

if TYPE_CHECKING:
    from ...store.checkpoints import Store


def list_checkpoints(run: str, /, *, json: bool = False) -> int:
    """Lists the checkpoints of a run.

    Args:
        run: the directory of a run
        json: print JSON, for a program to read
    """
    from ...store import disk

    store = _store(run)
    facts = [_facts(store, step) for step in store.steps()]
    there = store.steps()
    found = [each for each in facts if not each["note"] or each["step"] in there]  # else: let go by a trainer meanwhile
    lines = [
        f"{each['name']}  {disk.size(each['bytes']):>8}  {short_time(each['written'])}  {each['note']}"
        for each in found
    ]
    print_result(json, found, "\n".join(lines) or f"{run} has no checkpoints")
    return 0


def verify(run: str, /, *, json: bool = False) -> int:
    """Reads every byte of the checkpoints of a run.

    Args:
        run: the directory of a run
        json: print JSON, for a program to read
    """
    store = _store(run)
    problems, steps = {}, store.steps()
    for step in list(steps):
        try:
            store.verify(step)
        except CheckpointError as error:
            if step in store.steps():
                problems[step] = str(error)
            else:  # whoever is at work in the run has let it go meanwhile
                steps.remove(step)
    found = [{"step": step, "sound": step not in problems, "problem": problems.get(step)} for step in steps]
    lines = [f"{store.at(step).name}  {problems.get(step, 'sound')}" for step in steps]
    print_result(json, found, "\n".join(lines) or f"{run} has no checkpoints")
    return 1 if problems or not steps else 0


def export(
    run: str,
    /,
    *,
    out: Path | None = None,
    to: Literal["safetensors", "onnx", "torch"] = "safetensors",
    weights: Weights = DEFAULT_WEIGHTS,
    json: bool = False,
) -> int:
    """Writes the weights of a checkpoint for other programs.

    Args:
        run: the directory of a run
        out: the file to write (RUN/model.safetensors, .onnx or .pt2)
        to: the kind of file; .onnx and .pt2 hold the model, which the recipe makes
        json: print JSON, for a program to read
    """
    from .. import export as exporting
    from ..find import check_run

    folder = run_path(run)
    check_run(folder)
    out = out or folder / f"model{exporting.SUFFIXES[to]}"
    step = exporting.export(folder, out, to=to, which=weights.which, recipe=weights.recipe, trust=weights.trust)
    print_result(json, {"file": str(out), "step": step}, f"{out}: the weights of step {step}")
    return 0


def _store(run: str) -> "Store":
    from ...store.checkpoints import Store
    from ...store.run import CHECKPOINTS, run_id
    from ..find import check_run

    folder = run_path(run)
    check_run(folder)
    return Store(folder / CHECKPOINTS, run_id(folder))


def _facts(store: "Store", step: int) -> dict[str, Any]:
    """What a list shows of a checkpoint, from its manifest alone."""
    path = store.at(step)
    facts = {"step": step, "name": path.name, "bytes": 0, "written": "", "note": ""}
    try:
        manifest = store.manifest(step)
        facts["bytes"] = sum(written.size for written in manifest.files)
        facts["written"] = iso_time(path.stat().st_mtime)
    except (CheckpointError, OSError) as error:
        facts["note"] = f"not usable: {error}"
    return facts
