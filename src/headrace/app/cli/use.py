"""What uses a run: `validate`, `test`, `predict`, and `checkpoint list`, `verify`, `export`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import CheckpointError, ConfigError
from .options import UsageError, check_count, check_ending
from .output import iso_time, numbers, print_result, short_time

if TYPE_CHECKING:
    from ...data.arrays import ArrayTable
    from ...store.checkpoints import Store

ENDINGS = (".arrow", ".csv", ".npy", ".parquet")
"""Those of files that predictions are written to."""


def score(
    run: Path,
    data: str | None = None,
    *,
    name: Literal["val", "test"],
    which: str | None = None,
    recipe: str | None = None,
    trust: bool = False,
    batch_size: int | None = None,
    json: bool = False,
) -> int:
    """Prints scores of the weights of a run, on the data that the recipe calls `name` or on a file.

    Args:
        data: a file, instead of the recipe's own data
    """
    check_count(batch_size, "--batch-size")
    from ..predict import like_training
    from ..recipe import load

    made = load(run, recipe=recipe, which=_which(which), trust=trust)
    own = {"val": made.val, "test": made.test}
    scored = own[name] if data is None else like_training(made.trainer, made.train, data, name)
    if scored is None:
        others = [other for other, held in own.items() if held is not None]
        hint = f" It has {', '.join(others)} data." if others else ""
        command = "validate" if name == "val" else "test"
        raise ConfigError(f"the recipe has no {name} data.{hint} Name a file: headrace {command} RUN DATA.")
    scores = made.trainer.validate(scored, name, batch_size=batch_size)
    text = "\n".join([f"the weights of step {made.step}", *numbers(scores)])
    print_result(json, {"step": made.step, **scores}, text)
    return 0


def _which(text: str | None) -> str | int | None:
    if text is not None and text not in ("best", "last") and not text.isdigit():
        raise UsageError(f"--which: expected best, last or a step, got {text!r}.")
    return int(text) if text is not None and text.isdigit() else text


# --- predictions -------------------------------------------------------------------------------------------


def predict(
    run: Path,
    data: str,
    *,
    out: Path,
    which: str | None = None,
    recipe: str | None = None,
    trust: bool = False,
    batch_size: int | None = None,
    json: bool = False,
) -> int:
    """Writes the model's predictions for every row of a file.

    Args:
        data: a file: .npy .npz .arrow .parquet .csv .ctf; targets may be missing
        out: what to write: .arrow .csv .npy .parquet
    """
    check_count(batch_size, "--batch-size")
    check_ending(out, ENDINGS, "--out")
    from ...formats.write import check_place

    check_place(out)
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ConfigError(f"--out {out} is the file to be read. Name another.")
    from ...adapters.compose import head
    from ..predict import like_training, outputs_in
    from ..recipe import load

    made = load(run, recipe=recipe, which=_which(which), trust=trust)
    rows = like_training(made.trainer, made.train, data, "predict", targets=False)
    if len(rows):
        with tempfile.TemporaryDirectory() as room:  # what such a file cannot hold is known by the first row
            _write(made.predict(head(rows, 1)), Path(room, f"first{out.suffix}"))
    found = made.predict(rows, batch_size=batch_size)
    _write(found, out)
    columns = outputs_in(found) if out.suffix.lower() == ".npy" else [stream.name for stream in found.streams]
    document = {"file": str(out), "rows": len(rows), "step": made.step, "columns": columns}
    text = f"{out}: {', '.join(columns)} of {len(rows):,} rows, by the weights of step {made.step}"
    print_result(json, document, text)
    return 0


def _write(found: "ArrayTable", out: Path) -> None:
    from ...formats.write import whole, write_table
    from ..predict import write_csv, write_npy

    ending = out.suffix.lower()
    if ending in (".arrow", ".parquet"):
        return write_table(found, out)
    with whole(out) as beside, open(beside, "wb") as file:
        (write_npy if ending == ".npy" else write_csv)(found, file)


# --- checkpoints -------------------------------------------------------------------------------------------


def list_checkpoints(run: Path, *, json: bool = False) -> int:
    """Lists the checkpoints of a run."""
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


def verify(run: Path, *, json: bool = False) -> int:
    """Reads every byte of the checkpoints of a run."""
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
    run: Path,
    *,
    out: Path | None = None,
    to: Literal["safetensors", "onnx", "torch"] = "safetensors",
    which: str | None = None,
    recipe: str | None = None,
    trust: bool = False,
    json: bool = False,
) -> int:
    """Writes the weights of a checkpoint for other programs.

    Args:
        out: the file to write (RUN/model.safetensors, .onnx or .pt2)
        to: the kind of file
        recipe: file.py or file.py:function, which makes the model for .onnx and .pt2
    """
    chosen = _which(which)
    from .. import export as exporting
    from ..find import check_run

    check_run(run)
    out = out or run / f"model{exporting.SUFFIXES[to]}"
    step = exporting.export(run, out, to=to, which=chosen, recipe=recipe, trust=trust)
    print_result(json, {"file": str(out), "step": step}, f"{out}: the weights of step {step}")
    return 0


def _store(run: Path) -> "Store":
    from ...store.checkpoints import Store
    from ...store.run import CHECKPOINTS, run_id
    from ..find import check_run

    check_run(run)
    return Store(run / CHECKPOINTS, run_id(run))


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
