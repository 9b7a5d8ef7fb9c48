"""`headrace fit RECIPE` and `headrace resume RUN`: train a recipe, whose parameters are options too."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError, RunError
from ...store.named import run_path
from .of_recipe import Files, Found, Given, OfRecipe
from .options import INTERRUPTED, PREEMPTED, Options, UsageError
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
    training = training_of(given)
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
    training = training_of(given)
    return _train(given.recipe, given.options, replace(training, options={**training.options, "parent": parent}))


def training_of(given: Given) -> "Training":
    """What is to be trained, with these values."""
    from ..find import located
    from ..parameters import plain
    from ..recipe import Training
    from ..strategies import parse_strategy

    options = given.options
    try:
        strategy = None if options.strategy is None else parse_strategy(options.strategy)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    arguments, name = {name: plain(value) for name, value in given.arguments.items()}, located(given.recipe)
    document = {"recipe": name, "arguments": arguments, "fit": options.to_repeat()}
    return Training(name, arguments, options.of_fit(), strategy, document, options.needs_run(), device=options.device)


# --- which recipe ------------------------------------------------------------------------------------------


def find_named(words: Sequence[str]) -> Found:
    """The recipe that the first word names."""
    if not words or words[0].startswith("-"):
        return Found()
    from ..find import find_recipe

    return Found(words[0], find_recipe(words[0]))


def _find_of_run(words: Sequence[str]) -> Found:
    """The recipe of the run that the first word names, and the options of the run."""
    if not words or words[0].startswith("-"):
        return Found()
    from ..find import RECIPE_FILE, find_recipe, recipe_of

    run, recipe = words[0], _value_of(words, "--recipe")
    folder = run_path(run)
    recipe, _ = recipe_of(folder, recipe, "--trust" in words)
    file = folder / RECIPE_FILE
    files = (str(file),) if file.is_file() else ()
    if not any((folder / "checkpoints").glob("step-*")):
        known = [recipe, *(word for name in files for word in ("--config", name))]
        raise RunError(
            f"{run} has no checkpoint yet. Start it: {shlex.join(['headrace', 'fit', *known, '--run', run])}"
        )
    return Found(recipe, find_recipe(recipe), files)


def _find_of_parent(words: Sequence[str]) -> Found:
    """As `_find_of_run`, of the run of which the first word names a step."""
    if not words or words[0].startswith("-"):
        return Found()
    from ...store.parents import step_of

    return _find_of_run([str(step_of(words[0])[0]), *words[1:]])


def _value_of(words: Sequence[str], flag: str) -> str | None:
    """The last value that words give an option."""
    found = None
    for word, after in zip(words, [*words[1:], "--"], strict=True):
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
        print_line("headrace: ended early", sys.stderr)  # the trainer has said where it saved
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
