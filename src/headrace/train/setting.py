"""Settings of a trainer as attributes, which are checked when they are set, and remembered with a run."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..length import as_count
from ..loss.metrics import Metrics
from ..loss.objective import measured_by
from ..step import check, config
from ..workers.strategy import Strategy
from .schedule import check_schedule

if TYPE_CHECKING:
    from .trainer import Trainer


MADE_WITH = (
    *("model", "loss", "optimizer", "precision", "strategy", "device", "inputs", "target", "compile", "nonfinite"),
    *("eval_loss", "recompute", "arena", "threads", "tape", "objectives", "optimizers", "eval_objectives"),
)
"""What stays as it was given."""
OF_TRAINER = (
    *("updates", "workers", "signals", "use", "last_training", "all_modules", "resume_settings"),
    *("is_made", "batch_sizes", "find_workers", "work_with", "has_own_train_step", "has_own_evaluate_step"),
)
"""Names of a trainer's own parts, by which others find them."""


class BetweenTrainings:
    """A setting of a trainer that may be changed between two trainings."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Trainer | None, owner: type | None = None) -> Any:
        return self if trainer is None else vars(trainer)[self.name]

    def __set__(self, trainer: Trainer, value: Any) -> None:
        if not trainer.is_made:
            vars(trainer)[self.name] = value
            return
        if trainer.use.trainings:
            hint = "Say batch_size={0: 32, '5 epochs': 64}." if self.name == "batch_size" else "Set it before fit()."
            raise ConfigError(f"{self.name} cannot be changed while a training is under way. {hint}")
        check_setting(self.name, value)
        _remember(trainer, self.name, value)
        if self.name == "metrics":
            value = value if isinstance(value, Metrics) else Metrics(value)
            trainer.updates.measure(value.output_getters(measured_by(trainer.objectives, trainer.target)))
        vars(trainer)[self.name] = value


class OfUpdates(BetweenTrainings):
    """A setting of a trainer that holds from the next update on. A training under way keeps it in its state."""

    def __get__(self, trainer: Trainer | None, owner: type | None = None) -> Any:
        return self if trainer is None else getattr(trainer.updates.settings, self.name)

    def __set__(self, trainer: Trainer, value: Any) -> None:
        check_setting(self.name, value)
        if self.name == "microbatch":
            check.can_split(trainer.objectives, value)
            value = as_count(value) or value
        else:
            value = check.plain_number(value)
        with trainer.use.during(f"setting {self.name}"):
            trainer.updates.change(**{self.name: value})
            if not trainer.use.trainings:
                _remember(trainer, self.name, value)


def check_change(name: str) -> None:
    """Raises on an attribute that a trainer, once it is made, does not let anybody set."""
    if name in MADE_WITH:
        raise ConfigError(f"{name} is what a trainer is made with, and stays as it is. Make another Trainer with it.")
    check_names([name])


def check_names(names: Iterable[str]) -> None:
    """Raises on attributes that give a part of `Trainer` another meaning."""
    if taken := [name for name in names if name in OF_TRAINER]:
        raise ConfigError(f"{taken[0]!r} is a part of every trainer, which it works with. Choose another name.")


def _remember(trainer: Trainer, name: str, value: Any) -> None:
    """A run that begins from now on is resumed with this value."""
    if name in trainer.resume_settings:
        vars(trainer)["resume_settings"] = trainer.resume_settings | {name: config.plain(value)}


def note_hyperparameters(trainer: Trainer) -> None:
    """A run is resumed with what has been set since the trainer was made, or since its last training."""
    left, now = trainer.last_training.groups, config.of_groups(trainer.optimizers)
    settings = copy.deepcopy(trainer.resume_settings["optimizer"])
    each = [settings] if "" in trainer.optimizers else settings.values()
    for group, before, after in zip((g for one in each for g in one["groups"]), left, now, strict=False):
        group |= {name: value for name, value in after.items() if name not in before or before[name] != value}
    trainer.last_training.groups = now
    vars(trainer)["resume_settings"] = trainer.resume_settings | {"optimizer": settings}  # they are plain by now


def check_setting(name: str, value: Any) -> None:
    """Raises on a setting that nothing could work with."""
    if name == "schedule":
        check_schedule(value)
    else:
        check.setting(name, value)


def check_strategy(strategy: Any, now: Any) -> None:
    """Raises if a trainer is to shard its model, and was made without that."""
    if isinstance(strategy, Strategy) and strategy.shards and strategy is not now:
        raise ConfigError(
            "hr.Sharded divides the model between processes when the trainer is made, and this one has been made "
            "without it. Give it as Trainer(strategy=); a rehearsal on virtual workers has no such processes."
        )
