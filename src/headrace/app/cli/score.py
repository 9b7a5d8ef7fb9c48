"""`headrace validate RUN [DATA]` and `headrace test RUN [DATA]`: scores of a run's weights."""

import argparse

from ...errors import ConfigError
from .say import numbers, say
from .using import add_run

NAMES = {"validate": "val", "test": "test"}
"""What the data are called in a recipe, and in the scores."""


def add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("data", nargs="?", metavar="DATA", help="a file, instead of the recipe's own data")


def run(options: argparse.Namespace) -> int:
    from ..data import like_training
    from .using import trained

    name = NAMES[options.command]
    made = trained(options)
    own = {"val": made.val, "test": made.test}
    data = own[name] if options.data is None else like_training(made, options.data, name)
    if data is None:
        others = [other for other, held in own.items() if held is not None]
        hint = f" It has {', '.join(others)} data." if others else ""
        raise ConfigError(f"the recipe has no {name} data.{hint} Name a file: headrace {options.command} RUN DATA.")
    scores = made.trainer.validate(data, name, batch_size=options.batch_size)
    text = "\n".join([f"the weights of step {made.step}", *numbers(scores)])
    say(options, {"step": made.step, **scores}, text)
    return 0
