"""`headrace fit RECIPE`: trains a recipe, with one worker or several."""

import argparse
import sys
import tempfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from . import INTERRUPTED, PREEMPTED
from .say import numbers, put, say

if TYPE_CHECKING:
    from ..recipe import Trained
    from .flags import Asked
    from .parser import Parser


def add(parser: "Parser") -> None:
    parser.takes_all = True


def run(options: argparse.Namespace) -> int:
    from .flags import read

    return train(read("fit", options.words))


def train(asked: "Asked") -> int:
    """Trains what was asked for, and tells how it ended."""
    from ...engines.launch import launch
    from ...workers.here import here
    from ...workers.named import named
    from ..recipe import Training, run_recipe

    options = asked.options
    strategy = None if options.strategy is None else named(options.strategy)
    with tempfile.TemporaryDirectory(prefix="headrace-") as room:
        note = Path(room, "run")
        training = Training(
            asked.recipe, asked.arguments, options.of_fit(), strategy, asked.document, options.needs_run(), str(note)
        )
        try:
            trained: Trained = launch(run_recipe, training, workers=options.workers, engine=options.engine)
        except KeyboardInterrupt:
            return _ended_early(options.run, note, INTERRUPTED)
        except SystemExit as error:
            if error.code != PREEMPTED:
                raise
            return _ended_early(options.run, note, PREEMPTED)
    if here().leader:  # under torchrun, this is one of the workers
        report = _report(trained) if options.report else None
        say(options, trained.last | {"run": trained.run, "report": report, "why": trained.why}, _told(trained, report))
    return 0


def _ended_early(run: str | None, note: Path, status: int) -> int:
    """Tells whoever has ended a training early how it goes on; a run that the recipe names is in the note."""
    run = run or (note.read_text() if note.is_file() else None)
    goes_on = f": headrace resume {quote(run)} goes on from there" if run is not None and Path(run).is_dir() else ""
    put(f"headrace: ended early{goes_on}\n", sys.stderr)
    return status


def _report(trained: "Trained") -> str | None:
    from ...watch.report import write

    return None if trained.run is None else str(write(trained.run))


def _told(trained: "Trained", report: str | None) -> str:
    """The last numbers, where all of it is, and what may come next."""
    last = trained.last
    data = next((name for name in ("test/", "val/") if any(key.startswith(name) for key in last)), "train/")
    lines = numbers({key: value for key, value in last.items() if key in ("epoch", "step") or key.startswith(data)})
    if trained.run is not None:
        lines += ["", f"run     {trained.run}"]
        lines += [f"report  {report}"] if report else []
        named = quote(trained.run)
        after = [] if report else [f"headrace report {named}"]
        lines += ["next    " + "    ".join([*after, f"headrace resume {named} --{trained.limit} N"])]
    else:
        lines += ["", "nothing is kept: --run DIR keeps weights, curves and what a report is made of"]
    return "\n".join(lines)
