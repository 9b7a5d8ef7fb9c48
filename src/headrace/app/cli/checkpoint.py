"""`headrace checkpoint list|verify|export RUN`: what a run has saved."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointError
from .parser import add_json
from .say import moment, say, shown
from .using import add_which

if TYPE_CHECKING:
    from ...store.checkpoints import Store

FORMATS = ("safetensors", "onnx", "torch")  # those of `export`, which imports torch


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    listing = actions.add_parser("list", help="the checkpoints of a run")
    listing.set_defaults(action=_list)
    verifying = actions.add_parser("verify", help="whether every byte of them is as it was written")
    verifying.set_defaults(action=_verify)
    exporting = actions.add_parser("export", help="the weights of one, for other programs")
    exporting.set_defaults(action=_export)
    for action in (listing, verifying, exporting):
        action.add_argument("run", type=Path, metavar="RUN", help="the directory of the run")
        add_json(action)
    exporting.add_argument("--out", type=Path, help="the file to write (RUN/model.safetensors, .onnx or .pt2)")
    exporting.add_argument("--to", default="safetensors", choices=FORMATS, metavar="FORMAT", help="|".join(FORMATS))
    add_which(exporting)
    exporting.add_argument(
        "--recipe", help="file.py or file.py:function, which makes the model, if the run does not know it"
    )


def run(options: argparse.Namespace) -> int:
    status: int = options.action(options)
    return status


def _list(options: argparse.Namespace) -> int:
    from ...store import disk

    store = _store(options.run)
    found = []
    for step in store.steps():
        facts = _facts(store, step)
        if not facts["note"] or step in store.steps():  # else: whoever is at work in the run has let it go meanwhile
            found.append(facts)
    lines = [
        f"{entry['name']}  {disk.size(entry['bytes']):>8}  {shown(entry['written'])}  {entry['note']}"
        for entry in found
    ]
    say(options, found, "\n".join(lines) or f"{options.run} has no checkpoints")
    return 0


def _verify(options: argparse.Namespace) -> int:
    store = _store(options.run)
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
    say(options, found, "\n".join(lines) or f"{options.run} has no checkpoints")
    return 1 if problems or not steps else 0


def _export(options: argparse.Namespace) -> int:
    from ..export import SUFFIXES, export
    from ..of_run import check_run, chosen

    check_run(options.run)
    out = options.out or options.run / f"model{SUFFIXES[options.to]}"
    recipe, arguments = _recipe(options)
    step = export(
        options.run, out, to=options.to, which=chosen(options.run, options.which), recipe=recipe, arguments=arguments
    )
    say(options, {"file": str(out), "step": step}, f"{out}: the weights of step {step}")
    return 0


def _recipe(options: argparse.Namespace) -> tuple[str | None, dict[str, Any]]:
    """The recipe that makes the model, and its arguments: what is given, and what the run says."""
    from ..of_run import recipe_of
    from ..recipe import RECIPE_FILE

    known = options.recipe is not None or (options.run / RECIPE_FILE).is_file()
    return recipe_of(options.run, options.recipe) if known and options.to != "safetensors" else (None, {})


def _store(run: Path) -> "Store":
    from ...store.checkpoints import Store
    from ...store.run import CHECKPOINTS, run_id
    from ..of_run import check_run

    check_run(run)
    return Store(run / CHECKPOINTS, run_id(run))


def _facts(store: "Store", step: int) -> dict[str, Any]:
    """What a list shows of a checkpoint, from its manifest alone."""
    path = store.at(step)
    facts = {"step": step, "name": path.name, "bytes": 0, "written": "", "note": ""}
    try:
        manifest = store.manifest(step)
        facts["bytes"] = sum(written.size for written in manifest.files)
        facts["written"] = moment(path.stat().st_mtime)
    except (CheckpointError, OSError) as error:
        facts["note"] = f"not usable: {error}"
    return facts
