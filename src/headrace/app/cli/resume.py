"""`headrace resume RUN`: goes on with a run that a recipe has made."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RunError
from .options import OF_A_NEW_RUN

if TYPE_CHECKING:
    from .parser import Parser


def add(parser: "Parser") -> None:
    parser.takes_all = True


def run(options: argparse.Namespace) -> int:
    from ..of_run import recipe_file
    from .fit import train
    from .flags import fail, read, refused
    from .values import taken

    words: list[str] = options.words
    if "-h" in words or "--help" in words:
        read("resume", ["--help"])
    if not words or words[0].startswith("-"):
        fail("resume", "RUN comes first: the directory of a run.")
    at = next((k for k, word in enumerate(words) if word.partition("=")[0] == "--recipe"), len(words))
    words, after = words[:at], words[at:]
    with refused("resume"):
        recipe = taken(after, "--recipe", "file.py")
    words += after
    if any(word.partition("=")[0].removeprefix("--") in OF_A_NEW_RUN for word in words if word.startswith("--")):
        fail("resume", "it goes on with RUN, from its last checkpoint: leave --run and --resume out.")
    where = words.pop(0)
    if words and not words[0].startswith("-"):
        fail("resume", f"{words[0]!r} is too much: RUN comes first, then options. Another recipe is --recipe file.py.")
    file = recipe_file(Path(where), recipe)
    known = [*([recipe] if recipe else []), *(["--config", str(file)] if file else [])]
    if not any(Path(where, "checkpoints").glob("step-*")):
        again = shlex.join(["headrace", "fit", *known, "--run", where])
        raise RunError(f"{where} has no checkpoint yet. Start it: {again}")
    return train(read("resume", [*known, *words, "--run", where, "--resume", "must"]))
