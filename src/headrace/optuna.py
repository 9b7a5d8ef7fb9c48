"""Optuna pruning: ends a training whose trial Optuna gives up, and leaves its run whole."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

try:
    import optuna
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'headrace.optuna needs Optuna, which is not installed: pip install "headrace[optuna]"', name=missing.name
    ) from missing

from .errors import ConfigError
from .watch.callback import Callback
from .watch.info import warn_if_it_never_came, watched
from .watch.monitor import check_mode, number_of

if TYPE_CHECKING:
    from .watch.info import Info


class Pruning(Callback):
    """Reports a number to an Optuna trial whenever it is measured, and ends the training if the trial is to be pruned.

    `fit` then raises `optuna.TrialPruned`, but only when everything is over: the last checkpoint is written, the best
    model restored, the run can go on. `monitor`: a key of the history, as "val/loss"; `mode`: "min", "max", or "auto"
    where the metric tells which, as with `BestModel`: it has to be what the study wants. Steps are counted by
    measurements, the first is 1: with a validation after each epoch they are epochs. After a resume nothing is
    reported twice.
    """

    everywhere = False

    def __init__(self, trial: Any, monitor: str = "val/loss", *, mode: str = "auto") -> None:
        check_mode(mode)
        self.trial, self.monitor, self.mode = trial, monitor, mode
        self._study = getattr(trial, "study", None)  # a FixedTrial has none

    def on_fit_start(self, info: Info) -> None:
        mode = watched("Pruning", self.monitor, self.mode, info)
        self._reported: set[int] = set()
        if self._study is None:
            return
        wanted = [direction.name.lower() for direction in self._study.directions]
        if len(wanted) > 1:
            raise ConfigError(f"Optuna prunes where a study has one objective; this one has {len(wanted)}.")
        if mode not in ("auto", wanted[0][:3]):
            raise ConfigError(
                f"{self.monitor!r} is to be {'small' if mode == 'min' else 'large'}, and the study is to {wanted[0]}. "
                f"Create it with direction='{mode}imize', or say mode=."
            )
        own = (each for each in self._study.get_trials(deepcopy=False) if each.number == self.trial.number)
        self._reported = {step for each in own for step in each.intermediate_values}  # before an interruption

    def on_report(self, info: Info, row: Mapping[str, Any]) -> None:
        value = number_of("Pruning", self.monitor, row)
        if value is None:
            return
        step = len(info.history[self.monitor])
        if step in self._reported:
            return
        self._reported.add(step)
        self.trial.report(value, step)
        if self._should_prune(value):
            why = f"pruned by Optuna: {self.monitor} {value:.6g} at its step {step}"
            info.stop(why)
            info.raise_at_end = optuna.TrialPruned(why)

    def on_fit_end(self, info: Info) -> None:
        warn_if_it_never_came("Pruning", self.monitor, info)

    def _should_prune(self, value: float) -> bool:
        """What the pruner says; NumPy would warn it of numbers that are none, which it knows to prune."""
        if not math.isnan(value):
            return bool(self.trial.should_prune())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return bool(self.trial.should_prune())
