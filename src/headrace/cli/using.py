"""What commands that use a run share: its recipe, its weights, and data like those it was trained on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RunError
from .parser import add_json, count

if TYPE_CHECKING:
    from ..recipe import Recipe


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run, and which of its weights."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of the run")
    add_which(parser)
    parser.add_argument("--recipe", metavar="RECIPE", help="file.py or file.py:function, if the run does not know it")
    parser.add_argument("--batch-size", type=count, metavar="ROWS", help="rows that the model sees at once")
    add_json(parser)


def add_which(parser: argparse.ArgumentParser) -> None:
    """Which of a run's weights."""
    parser.add_argument(
        "--which", type=_which, help="best, last or a step (best if anything told good from bad, else last)"
    )


def _which(text: str) -> str | int:
    if text not in ("best", "last") and not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected best, last or a step, got {text!r}.")
    return int(text) if text.isdigit() else text


def chosen(options: argparse.Namespace) -> str | int:
    """The weights that were asked for: if none were, the best if there are any, else the last."""
    if options.which is not None:
        return options.which  # type: ignore[no-any-return]
    return "best" if has_best(options.run) else "last"


def trained(options: argparse.Namespace) -> tuple["Recipe", int]:
    """The recipe of a run, its model with the weights that were asked for, and the step they are of."""
    from ..recipe import load_recipe
    from ..weights import load_weights

    name, arguments = recipe_of(options.run, options.recipe)
    made = load_recipe(name, arguments)
    return made, load_weights(made.trainer.model, options.run, which=chosen(options))


def has_best(run: Path) -> bool:
    """Whether anything in a run told good from bad."""
    from ..checkpoint import Store
    from ..checkpoint.contents import TRAINER
    from ..run import CHECKPOINTS, run_id
    from ..weights import best_of

    newest = Store(run / CHECKPOINTS, run_id(run)).newest(lambda name: name == TRAINER)
    return newest is not None and best_of(newest) is not None


def check_run(run: Path) -> None:
    """Raises unless there is a directory that may be a run."""
    if run.exists() and not run.is_dir():
        raise RunError(f"{run} is a file; name the directory of a run.")
    if not run.is_dir():
        raise RunError(f"there is no run {run}.")


def recipe_file(run: Path, given: str | None = None) -> Path | None:
    """The file in which a run says what its recipe is; there may be none if the recipe is given."""
    from ..recipe import RECIPE_FILE
    from ..run import run_id

    check_run(run)
    run_id(run)
    file = run / RECIPE_FILE
    if file.is_file():
        return file
    if given is None:
        raise RunError(
            f"{run} does not say what its recipe is: a script has made it. Run the script again, "
            "or name the recipe: --recipe file.py."
        )
    return None


def recipe_of(run: Path, given: str | None) -> tuple[str, dict[str, Any]]:
    """The recipe of a run and its arguments."""
    from .values import read_file

    file = recipe_file(run, given)
    if file is None:
        return str(given), {}
    try:
        found = read_file(str(file))
    except ConfigError as error:
        raise RunError(f"{error} Name the recipe: --recipe file.py.") from None
    name = given or found.get("recipe")
    if not isinstance(name, str):
        raise RunError(f"{file} names no recipe. Name it: --recipe file.py.")
    if not Path(name.partition(":")[0]).is_file():
        raise RunError(f"the recipe {name} is not there{'' if given else ' any more. Name it: --recipe file.py'}.")
    return name, found.get("arguments") or {}
