"""Finds recipes: the function that the name of a file means, and what a run says of its own."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from site import getsitepackages, getusersitepackages
from types import CodeType, ModuleType
from typing import Any

from ..errors import ConfigError, RunError, unknown
from ..store import disk
from ..store.document import SMALL_BYTES, parse_document, read_document
from ..store.run import RUN, refuse_file, run_id
from ..store.shape import DICT, TEXT, check
from .parameters import from_yaml

RECIPE_FILE, SOURCE = "recipe.json", "recipe.py"
"""Where a run keeps the name and the arguments of its recipe, and its source."""
_RECIPE = {"recipe": TEXT, "arguments": DICT, "fit": DICT}
PARTS = ("arguments", "fit")
"""What a file of options may put under keys of their own, as a run does."""
_MADE = ("Recipe", "hr.Recipe", "headrace.Recipe")
"""What a recipe's function says it returns, where annotations are text."""


def find_recipe(name: str) -> Callable[..., Any]:
    """The function that `file.py:function` names, or the only one of `file.py` that says it returns a Recipe."""
    path, _, wanted = name.partition(":")
    module = _module(Path(path))
    found: dict[str, Callable[..., Any]] = {key: each for key, each in vars(module).items() if _returns_recipe(each)}
    if not wanted:  # what it does not import from another module, if there is anything
        found = {key: value for key, value in found.items() if value.__module__ == module.__name__} or found
    if not found:
        stem = Path(path).stem
        raise ConfigError(f"{path} has no function that returns a Recipe: write def {stem}(...) -> hr.Recipe.")
    if not wanted and len(found) > 1:
        raise ConfigError(
            f"{path} has {len(found)} functions that return a Recipe: {', '.join(found)}. Say {path}:name."
        )
    if wanted and wanted not in found:
        raise ConfigError(unknown("recipe", wanted, found))
    return found[wanted or next(iter(found))]


def _returns_recipe(value: Any) -> bool:
    annotation = getattr(value, "__annotations__", {}).get("return")
    return callable(value) and (annotation in _MADE or getattr(annotation, "__qualname__", "") == "Recipe")


def located(name: str) -> str:
    """The name of a recipe, wherever the workers are at home."""
    path, colon, wanted = name.partition(":")
    return f"{Path(path).absolute()}{colon}{wanted}"


def check_run(run: Path) -> None:
    """Raises unless there is a run in this directory."""
    refuse_file(run)
    if not run.is_dir():
        raise RunError(f"there is no run {run}.")
    run_id(run)


def is_of_run(file: Path) -> bool:
    """Whether a file is in the directory of a run, or is a link to one that is."""
    places = {*file.absolute().parents, *file.resolve().parents}
    return any(os.path.exists(place / RUN) for place in places)


def recipe_of(run: Path, given: str | None, trust: bool) -> tuple[str, dict[str, Any]]:
    """The recipe to make the model of a run with, and its arguments: the recipe that the caller gives, or the run's.

    A run may come from anybody, and its recipe is code. This is the only function that takes the code of a run, and it
    does so only with `trust`. It takes the copy in the directory of the run; the path that the run names is not used.
    """
    check_run(run)
    document = read_recipe(run)
    arguments = dict(document["arguments"]) if document else {}
    if given is not None:
        return given, arguments
    if document is None:
        raise RunError(
            f"{run} does not say what its recipe is: a script has made it. Run the script again, "
            "or name the recipe: --recipe file.py."
        )
    if not trust:
        raise RunError(
            f"{run} names the recipe {document['recipe']!r:.200}. That is code, and a run may come from anybody. Name "
            f"the recipe yourself: recipe='file.py' (--recipe file.py). Or read {run / SOURCE}, and allow that it is "
            "executed: trust=True (--trust)."
        )
    return _saved_source(run, document["recipe"]), arguments


def read_recipe(run: Path) -> dict[str, Any] | None:
    """What a run says of its recipe: `recipe`, its name, `arguments` and `fit`; `None` if a script has made the run."""
    file = run / RECIPE_FILE
    try:
        found: dict[str, Any] = check(read_document(file), _RECIPE, str(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"what {run} says of its recipe cannot be read: {error}") from None
    return found


def save_source(run: Path, recipe: str) -> None:
    """Copies the file of a recipe into the directory of a run."""
    file = Path(recipe.partition(":")[0])
    if file.absolute() != (run / SOURCE).absolute():
        disk.write_file(run / SOURCE, file.read_bytes())


def _saved_source(run: Path, recipe: str) -> str:
    """The copy of the recipe in a run, with the name of its function."""
    file = run / SOURCE
    if not file.is_file() or file.is_symlink():
        raise RunError(
            f"{run} has kept no source of its recipe: it has no {SOURCE}. Name the recipe: --recipe file.py."
        )
    _, colon, function = recipe.partition(":")
    return f"{file}{colon}{function}"


def copy_recipe(run: Path, new: Path) -> None:
    """Gives a run that was made from another the recipe of that one, so that its weights can be used."""
    for name in (RECIPE_FILE, SOURCE):
        if (run / name).is_file():
            disk.write_file(new / name, (run / name).read_bytes())


def read_file(file: str) -> dict[str, Any]:
    """A file of options: keys with values, and `recipe`, `arguments` and `fit` as a run has them. JSON or YAML."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(SMALL_BYTES)
        found = parse_document(data) if file.lower().endswith(".json") else from_yaml(data.decode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        kind = "JSON" if file.lower().endswith(".json") else "YAML"
        raise ConfigError(f"{file} is no {kind}: {' '.join(str(error).split())}.") from None
    parts = [found.get(part) or {} for part in PARTS] if isinstance(found, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise ConfigError(f"{file} does not hold keys with values. Write lr: 0.1 and the like, a line for each.")
    return dict(found)


# --- a file as a module ------------------------------------------------------------------------------------


def _module(path: Path) -> ModuleType:
    """A file as a module, which may import what lies beside it, as a script may, unless it is the copy in a run."""
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_Source(path.stem, str(path)))
    if spec is None or spec.loader is None or path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"{path} is not a Python file with a recipe{'' if path.exists() else ': it does not exist'}.")
    if path.stem in sys.stdlib_module_names:
        raise ConfigError(f"{path} is called as a module of Python's own. Give the recipe another name.")
    if (other := _installed(path.stem)) is not None and not path.samefile(other):
        raise ConfigError(
            f"{path} has the same name as an installed module ({other}), which it would replace. Give the recipe "
            "another name."
        )
    beside = str(path.absolute().parent)
    if beside not in sys.path and not is_of_run(path):
        sys.path.append(beside)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[spec.name]
        if isinstance(error, ModuleNotFoundError) and is_of_run(path):
            error.add_note("A run keeps only the file of its recipe: name it where its modules are, --recipe file.py.")
        raise
    return module


class _Source(SourceFileLoader):
    """Compiles a file each time: a compiled file beside it may come from another source than a person has read."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _installed(name: str) -> str | None:
    """The file of the installed module of this name, if there is one; a directory that could be one has none."""
    if name == __package__.partition(".")[0]:
        return sys.modules[name].__file__
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *getsitepackages(), getusersitepackages()}
    found = PathFinder.find_spec(name, [*places])
    return None if found is None or not found.has_location else found.origin
