"""`headrace fit RECIPE` and `headrace resume RUN`: train a recipe, whose parameters are options too."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...store.named import run_path
from .of_recipe import Found, OfRecipe
from .options import Files
from .output import numbers, print_result, print_text

if TYPE_CHECKING:
    from ..recipe import Trained, Training


def _fit(recipe: str, /, training: "Training", *, config: Files = (), print_config: bool = False) -> int:
    """Trains the recipe, or prints what it would be trained with.

    Args:
        recipe: file.py or file.py:function, which returns a Recipe; what the function takes are options, too
        config: options from a file, YAML or JSON; may be given several times
        print_config: print all options as --config takes them, and end
    """
    if print_config:
        import yaml

        print_text(yaml.safe_dump(training.document, sort_keys=False))
        return 0
    return _train(training)


def _resume(
    run: str,
    /,
    training: "Training",
    *,
    recipe: str | None = None,
    trust: bool = False,
    config: Files = (),
) -> int:
    """Continues a run from its last checkpoint, or begins if it has none; options are as the run has them by default.

    Args:
        run: the directory of a run
        recipe: file.py or file.py:function, which the run was trained with
        trust: instead of --recipe: execute the copy of the recipe in the run, which is code
        config: options from a file, YAML or JSON; may be given several times
    """
    return _train(_with(training, run=run, resume="auto"))


def _fork(
    parent: str,
    new: str,
    /,
    training: "Training",
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
    if changed_arguments(run, training.arguments):
        training = _with(training, override=True)
    return _train(_with(training, run=new, parent=parent))


def _with(training: "Training", **options: object) -> "Training":
    return replace(training, options={**training.options, **options})


# --- which recipe ------------------------------------------------------------------------------------------


def find_named(name: str, words: Sequence[str]) -> Found:
    """The recipe of this name."""
    from ..find import find_recipe

    return Found(name, find_recipe(name))


def _find_of_run(run: str, words: Sequence[str]) -> Found:
    """The recipe of a run, and the options of the run."""
    from ..find import RECIPE_FILE, find_recipe, recipe_of

    folder = run_path(run)
    recipe, _ = recipe_of(folder, _value_of(words, "--recipe"), "--trust" in words)
    options = folder / RECIPE_FILE
    return Found(recipe, find_recipe(recipe), (str(options),) if options.is_file() else ())


def _find_of_parent(parent: str, words: Sequence[str]) -> Found:
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


def _train(training: "Training") -> int:
    """Trains what was asked for, and prints how it ended."""
    from ...workers.here import here
    from ..recipe import launch_recipe

    trained = launch_recipe(training)
    if here().leader:  # under torchrun, this is one of the workers
        document = trained.last | {"run": trained.run, "why": trained.why}
        print_result("json" in training.options, document, _result(training.recipe, trained))
    return 0


def _result(recipe: str, trained: "Trained") -> str:
    """The text that is printed at the end: the last numbers, the run, and the next commands."""
    last = trained.last
    data = next((name for name in ("test/", "val/") if any(key.startswith(name) for key in last)), "train/")
    lines = numbers({key: value for key, value in last.items() if key in ("epoch", "step") or key.startswith(data)})
    if trained.run is None:
        return "\n".join([*lines, "", "nothing is kept: --run DIR keeps weights, curves and what a report is made of"])
    recipe = recipe.removeprefix(f"{Path.cwd()}{os.sep}")
    report, resume = ["headrace", "report", trained.run], ["headrace", "resume", trained.run, "--recipe", recipe]
    after = f"{shlex.join(report)}    {shlex.join(resume)} --{trained.limit} N"
    return "\n".join([*lines, "", f"run     {trained.run}", f"next    {after}"])


fit = OfRecipe(_fit, find_named)
resume = OfRecipe(_resume, _find_of_run, without=("run", "resume"))
fork = OfRecipe(_fork, _find_of_parent, without=("run", "resume"))
