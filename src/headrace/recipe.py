"""A recipe: everything that a training needs, put together by one typed function."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import config
from .crew import make_crew
from .errors import ConfigError, unknown
from .history import History
from .strategy import Strategy
from .trainer import Trainer

LIMITS = ("epochs", "steps", "samples", "minutes")


@dataclass(slots=True)
class Recipe:
    """A trainer, its data, and what to pass to `fit`."""

    trainer: Trainer
    train: Any
    val: Any = None
    test: Any = None
    fit: Mapping[str, Any] = field(default_factory=dict)

    def run(self, **options: Any) -> History:
        """Trains; `options` go before the recipe's own."""
        return self.trainer.fit(self.train, self.val, self.test, **{**self.fit, **options})


def load_recipe(name: str) -> Recipe:
    """Runs the recipe of a file: the function that is named, or the only one that says it returns a Recipe."""
    path, _, wanted = name.partition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"{path} is not a Python file with a recipe.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = {
        key: value
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__annotations__", {}).get("return") in (Recipe, "Recipe", "hr.Recipe")
    }
    if wanted and wanted not in found:
        raise ConfigError(unknown("recipe", wanted, found))
    if not wanted and len(found) != 1:
        raise ConfigError(
            f"{path} has {len(found)} functions that return a Recipe: {', '.join(found)}. Say {path}:name."
        )
    made = found[wanted or next(iter(found))]()
    if not isinstance(made, Recipe):
        raise ConfigError(f"{name} returned a {type(made).__name__}, not a Recipe.")
    return made


def located(name: str) -> str:
    """The name of a recipe, wherever the workers are at home."""
    path, colon, wanted = name.partition(":")
    return f"{Path(path).absolute()}{colon}{wanted}"


def run_recipe(name: str, strategy: Strategy | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """In a worker: trains the recipe of a file, by another strategy if one is given; the last value of every key."""
    made = load_recipe(name)
    if strategy is not None:
        follow(made.trainer, strategy)
    made.fit = merged(made.fit, options)
    return made.run().last


def merged(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """What to pass to `fit`: what is asked goes before a recipe's own, and one limit replaces all of them."""
    limited = any(name in asked for name in LIMITS)
    return {name: value for name, value in own.items() if not (limited and name in LIMITS)} | dict(asked)


def follow(trainer: Trainer, strategy: Strategy) -> None:
    """From now on the trainer is as if it had been made with this strategy."""
    crew = make_crew(strategy)
    crew.device = trainer.device
    trainer._wanted, trainer._crew, trainer.strategy, trainer._step.strategy = strategy, crew, strategy, strategy
    trainer._config = trainer._config | {"strategy": config.plain(strategy)}
