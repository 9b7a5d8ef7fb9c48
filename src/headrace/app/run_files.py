"""What a run keeps so that it explains itself: the source of its recipe, and what its data files held."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import CorruptError, RunError
from ..formats.described import Described
from ..store import disk
from ..store.document import LARGE_BYTES, read_document

RECIPE_FILE, SOURCE, DATA = "recipe.json", "recipe.py", "data.json"
"""Where a run keeps what its recipe is and what it was given, its source, and what its data files held."""


def keep_recipe(run: Path, recipe: str, files: Sequence[Described]) -> None:
    """Writes the file of a recipe, and the descriptions of the files that it opened, into the directory of a run."""
    source = Path(recipe.partition(":")[0]).read_bytes()
    if Path(recipe.partition(":")[0]).absolute() != (run / SOURCE).absolute():
        disk.write_file(run / SOURCE, source)
    disk.write_file(run / DATA, json.dumps({"files": [each.document() for each in files]}).encode() + b"\n")


def kept_source(run: Path, recipe: str) -> str:
    """The recipe as the run has kept it, by the name of its function in the file as it was trained."""
    file = run / SOURCE
    if not file.is_file() or file.is_symlink():
        raise RunError(
            f"{run} has kept no source of its recipe: it has no {SOURCE}. Name the recipe: --recipe file.py."
        )
    _, colon, function = recipe.partition(":")
    return f"{file}{colon}{function}"


def kept_files(run: Path) -> list[Described]:
    """The descriptions of the files that the recipe of a run opened; none if a script made the run."""
    if not (run / DATA).is_file():
        return []
    try:
        found: Any = read_document(run / DATA, LARGE_BYTES)
        return [Described.read(each) for each in found["files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise RunError(f"{run / DATA} cannot be read: {error}. Remove it, and put the data back.") from None


def pass_on(run: Path, new: Path) -> None:
    """Gives a run that was made from another the recipe of that one, so that its weights can be used."""
    for name in (RECIPE_FILE, SOURCE, DATA):
        if (run / name).is_file():
            disk.write_file(new / name, (run / name).read_bytes())
