"""`headrace fit RECIPE` and `headrace resume RUN`: train a recipe, whose parameters are options too."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RunError
from ...store.named import run_path
from .of_recipe import Files, Given, OfRecipe
from .options import INTERRUPTED, PREEMPTED, Options
from .output import numbers, print_line, print_result, print_text

if TYPE_CHECKING:
    from ..recipe import Trained, Training


def _fit(recipe: str, /, given: Given, *, config: Files = (), print_config: bool = False) -> int:
    """Trains the recipe, or prints what it would be trained with.

    Args:
        recipe: file.py or file.py:function, which returns a Recipe; what the function takes are options, too
        config: options from a file, YAML or JSON; may be given several times
        print_config: print all options as --config takes them, and end
    """
    training = given.training()
    if print_config:
        import yaml

        print_text(yaml.safe_dump(dict(training.document), sort_keys=False))
        return 0
    return _train(given.recipe, given.options, training)


def _resume(
    run: str,
    /,
    given: Given,
    *,
    recipe: str | None = None,
    trust: bool = False,
    config: Files = (),
    print_config: bool = False,
) -> int:
    """Goes on with a run; options are as the run has them, unless others are given.

    Args:
        run: the directory of a run
        recipe: file.py or file.py:function, which the run was trained with
        trust: instead of --recipe: execute the copy of the recipe in the run, which is code
        config: options from a file, YAML or JSON; may be given several times
        print_config: print all options as --config takes them, and end
    """
    options = replace(given.options, run=run, resume="must")
    return _fit(run, replace(given, options=options), print_config=print_config)


def _fork(
    parent: str,
    new: str,
    /,
    given: Given,
    *,
    recipe: str | None = None,
    trust: bool = False,
    config: Files = (),
) -> int:
    """Begins a run with a step of another, and trains on; options are as that run has them, unless others are given.

    Args:
        parent: a step of a run, as in runs/a@600
        new: the directory of the new run
        recipe: file.py or file.py:function, which the run was trained with
        trust: instead of --recipe: execute the copy of the recipe in the run, which is code
        config: options from a file, YAML or JSON; may be given several times
    """
    from ...record.record import Record
    from ...store.parents import step_of
    from ..recipe import changed_arguments, made_again

    run, step = step_of(parent)
    if step not in (record := Record(run)).checkpoints and not Path(new).exists():
        made = made_again(run, recipe, trust)
        record.fork(new, step, made.trainer, made.train, **made.fit)
    override = given.options.override or bool(changed_arguments(run, given.arguments))
    given = replace(given, options=replace(given.options, run=new, override=override))
    training = given.training()
    return _train(given.recipe, given.options, replace(training, options={**training.options, "parent": parent}))


# --- which recipe ------------------------------------------------------------------------------------------


def find_named(name: str, words: Sequence[str]) -> Given:
    """The recipe of this name."""
    from ..find import find_recipe

    return Given(name, find_recipe(name))


def _find_of_run(run: str, words: Sequence[str]) -> Given:
    """The recipe of a run, and the options of the run."""
    from ..find import RECIPE_FILE, find_recipe, recipe_of

    folder = run_path(run)
    recipe, _ = recipe_of(folder, _value_of(words, "--recipe"), "--trust" in words)
    file = folder / RECIPE_FILE
    files = (str(file),) if file.is_file() else ()
    if not any((folder / "checkpoints").glob("step-*")):
        known = [recipe, *(word for name in files for word in ("--config", name))]
        raise RunError(
            f"{run} has no checkpoint yet. Start it: {shlex.join(['headrace', 'fit', *known, '--run', run])}"
        )
    return Given(recipe, find_recipe(recipe), files)


def _find_of_parent(parent: str, words: Sequence[str]) -> Given:
    """As `_find_of_run`, of the run that has this step."""
    from ...store.parents import step_of

    return _find_of_run(str(step_of(parent)[0]), words)


def _value_of(words: Sequence[str], flag: str) -> str | None:
    """The last value that words give an option."""
    found = None
    for word, after in pairwise([*words, "--"]):
        name, equals, value = word.partition("=")
        if name == flag and (equals or not after.startswith("--")):
            found = value if equals else after
    return found


# --- training ----------------------------------------------------------------------------------------------


def _train(recipe: str, options: Options, training: "Training") -> int:
    """Trains what was asked for, and prints how it ended."""
    from ...engines.launch import launch
    from ...workers.here import here
    from ..recipe import run_recipe

    try:
        trained: Trained = launch(run_recipe, training, workers=options.workers, engine=options.engine)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != PREEMPTED:
            raise
        # where the training is saved, or that it is complete, has been printed
        print_line("headrace: interrupted", sys.stderr)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else PREEMPTED
    if here().leader:  # under torchrun, this is one of the workers
        report = _report(trained) if options.report else None
        document = trained.last | {"run": trained.run, "report": report, "why": trained.why}
        print_result(options.json, document, _result(recipe, trained, report))
    return 0


def _resume_command(run: str, recipe: str) -> str:
    """The command that goes on with a run."""
    return shlex.join(["headrace", "resume", run, "--recipe", recipe])


def _report(trained: "Trained") -> str | None:
    from ...watch.report import write

    return None if trained.run is None else str(write(trained.run))


def _result(recipe: str, trained: "Trained", report: str | None) -> str:
    """The text that is printed at the end: the last numbers, the run, and the next commands."""
    last = trained.last
    data = next((name for name in ("test/", "val/") if any(key.startswith(name) for key in last)), "train/")
    lines = numbers({key: value for key, value in last.items() if key in ("epoch", "step") or key.startswith(data)})
    if trained.run is None:
        return "\n".join([*lines, "", "nothing is kept: --run DIR keeps weights, curves and what a report is made of"])
    after = [f"{_resume_command(trained.run, recipe)} --{trained.limit} N"]
    lines += ["", f"run     {trained.run}"]
    if report:
        lines.append(f"report  {report}")
    else:
        after.insert(0, shlex.join(["headrace", "report", trained.run]))
    return "\n".join([*lines, "next    " + "    ".join(after)])


fit = OfRecipe(_fit, find_named)
resume = OfRecipe(_resume, _find_of_run, without=("run", "resume"))
fork = OfRecipe(_fork, _find_of_parent, without=("run", "resume"))
