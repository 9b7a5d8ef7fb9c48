"""What a run says of its recipe, and the recipe again, with the weights that the run has kept."""

from pathlib import Path
from typing import Any

from ..errors import ConfigError, RunError
from ..step.weights import best_of, load_weights
from ..store.checkpoints import Store
from ..store.contents import TRAINER
from ..store.run import CHECKPOINTS, run_id
from .recipe import RECIPE_FILE, Recipe, load_recipe

PARTS = ("arguments", "fit")
"""What a file of options may put under keys of their own, as a run does."""


def load_run(run: Path, which: str | int | None, recipe: str | None) -> Recipe:
    """The recipe of a run, its model with the weights that were asked for."""
    name, arguments = recipe_of(run, recipe)
    made = load_recipe(name, arguments)
    made.step = load_weights(made.trainer.model, run, which=chosen(run, which))
    return made


def chosen(run: Path, which: str | int | None) -> str | int:
    """The weights that were asked for: if none were, the best if anything told good from bad, else the last."""
    if which is not None:
        return which
    newest = Store(run / CHECKPOINTS, run_id(run)).newest(lambda name: name == TRAINER)
    has_best = newest is not None and best_of(newest) is not None
    return "best" if has_best else "last"


def check_run(run: Path) -> None:
    """Raises unless there is a directory that may be a run."""
    if run.exists() and not run.is_dir():
        raise RunError(f"{run} is a file; name the directory of a run.")
    if not run.is_dir():
        raise RunError(f"there is no run {run}.")


def recipe_file(run: Path, given: str | None = None) -> Path | None:
    """The file in which a run says what its recipe is; there may be none if the recipe is given."""
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


def read_file(file: str) -> dict[str, Any]:
    """A file of options: keys with values, and `recipe:`, `arguments:` and `fit:` as a run has them."""
    import yaml

    try:
        found = yaml.safe_load(Path(file).read_text())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no YAML: {' '.join(str(error).split())}.") from None
    parts = [found.get(part) or {} for part in PARTS] if isinstance(found, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise ConfigError(f"{file} does not hold keys with values. Write lr: 0.1 and the like, a line for each.")
    return dict(found)
