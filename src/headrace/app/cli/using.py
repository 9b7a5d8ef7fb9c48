"""What commands that use a run share: its recipe, its weights, and data like those it was trained on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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


def trained(options: argparse.Namespace) -> "Recipe":
    """The recipe of a run, its model with the weights that were asked for."""
    from ..recipe import Recipe

    return Recipe.of_run(options.run, which=options.which, recipe=options.recipe)
