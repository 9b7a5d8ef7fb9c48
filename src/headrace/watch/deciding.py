"""Callbacks that decide how a training goes on: the best model, early stopping, frozen parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..length import Length, as_count, interval
from ..step.frozen import matching
from .callback import Callback
from .info import warn_if_it_never_came, watched
from .monitor import check_mode, number_of, side_of

if TYPE_CHECKING:
    from .info import Info


class BestModel(Callback):
    """Keeps the weights of the best steps by a number that is measured.

    Args:
        monitor: a key of the history, as "val/loss".
        mode: "min" or "max". "auto" takes that of the metric: its `higher_is_better`, or its name.
        k: how many steps are kept.
        restore: whether the model ends with the best weights.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        *,
        mode: str = "auto",
        k: int = 1,
        restore: bool = False,
    ) -> None:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ConfigError(f"k= is a number of models, at least 1, got {k!r}.")
        self.monitor, self.k, self.restore = monitor, k, restore
        check_mode(mode)
        self._asked = mode
        self.mode = side_of(monitor) if mode == "auto" else mode
        """Before a training what the name tells, or nothing; from then on "min" or "max"."""
        self.ranking: list[tuple[float, int]] = []
        """Value and step of the best so far, the best first."""
        self._seen = -1

    @property
    def _sign(self) -> float:
        """The factor that makes less better."""
        return -1.0 if self.mode == "max" else 1.0

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self.ranking[0][0] if self.ranking else None

    def _check(self, info: Info) -> None:
        watched(type(self).__name__, self.monitor, self._asked, info)

    def on_fit_start(self, info: Info) -> None:
        ranked, self.mode = self.mode, watched(type(self).__name__, self.monitor, self._asked, info)
        if self.ranking and self.mode != ranked:  # the other side was better when it was saved
            self.forget()
        if self.ranking:
            self._mark(info)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        value = number_of(type(self).__name__, self.monitor, row)
        if value is not None and self._seen != info.step:
            self._seen = info.step
            self._look(info, value)

    def on_fit_end(self, info: Info) -> None:
        warn_if_it_never_came(type(self).__name__, self.monitor, info)

    def is_about(self, state: dict[str, Any]) -> bool:
        """Whether a state was saved by a callback that watched the same number."""
        return bool(state["monitor"] == self.monitor and self._asked in ("auto", state["mode"]))

    def judged(self, info: Info, value: float) -> None:
        """The number has been measured."""

    def forget(self) -> None:
        self.ranking, self._seen = [], -1

    def state_dict(self) -> dict[str, Any]:
        ranking = [list(entry) for entry in self.ranking]
        return {"monitor": self.monitor, "mode": self.mode, "ranking": ranking, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.is_about(state):
            return
        self.mode = str(state["mode"])
        self.ranking = [(float(value), int(step)) for value, step in state["ranking"][: self.k]]
        self._seen = int(state["seen"])

    def _look(self, info: Info, value: float) -> None:
        if not math.isnan(value):
            entries = [*self.ranking, (value, info.step)]
            self.ranking = sorted(entries, key=lambda entry: (self._sign * entry[0], entry[1]))[: self.k]
            if info.step in self._steps:
                self._mark(info)
        self.judged(info, value)

    def _mark(self, info: Info) -> None:
        info.mark_best(self.monitor, *self.ranking[0], keep=self._steps, restore=self.restore, owner=self._owner)

    @property
    def _steps(self) -> list[int]:
        return [step for _, step in self.ranking]


class EarlyStopping(BestModel):
    """Ends the training when a number has not improved for `patience` validations.

    Args:
        monitor: a key of the history, as "val/loss".
        patience: validations without an improvement before the training ends.
        min_delta: the smallest change that counts as an improvement.
        mode: "min" or "max". "auto" takes that of the metric.
        restore_best: whether the model ends with its best weights. The last checkpoint of a run stays the last.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        patience: int = 5,
        *,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = True,
    ) -> None:
        super().__init__(monitor, mode=mode, restore=restore_best)
        if not math.isfinite(min_delta) or min_delta < 0:
            raise ConfigError(f"min_delta= is 0 or more, got {min_delta!r}.")
        if as_count(patience) is None:
            raise ConfigError(f"patience= is a number of validations, at least 1, got {patience!r}.")
        self.patience, self.min_delta = int(patience), min_delta
        self.waited = 0
        """Validations since the number last got better, by more than `min_delta`."""
        self._reference: float | None = None

    def on_fit_start(self, info: Info) -> None:
        super().on_fit_start(info)
        self._stop_if_due(info)

    def judged(self, info: Info, value: float) -> None:
        self.waited += 1
        first = self._reference is None and not math.isnan(value)
        if first or (self._reference is not None and self._sign * (self._reference - value) > self.min_delta):
            self.waited, self._reference = 0, value
        self._stop_if_due(info)

    def forget(self) -> None:
        super().forget()
        self.waited, self._reference = 0, None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "waited": self.waited, "reference": self._reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if not self.is_about(state):
            return
        reference = state["reference"]
        self.waited, self._reference = int(state["waited"]), None if reference is None else float(reference)

    def _stop_if_due(self, info: Info) -> None:
        if self.waited >= self.patience:
            best = "NaN" if self._reference is None else f"{self._reference:.6g}"
            info.stop(f"{self.monitor} no better than {best} for {self.waited} validations")


class Freeze(Callback):
    """Freezes the parameters whose names match, `until` some length of the training, or to its end.

    `Freeze("features.*", until="3 epochs")`; with `after` they are frozen from there on. A layer all of whose
    parameters are frozen, as a batch normalisation, does not update its statistics. After the training they can be
    trained, as before it.
    """

    def __init__(self, *patterns: str, after: str | Length | None = None, until: str | Length | None = None) -> None:
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise ConfigError('Freeze takes names of parameters or patterns, as in Freeze("features.*").')
        self.patterns = patterns
        self.after = None if after is None else interval(after, "after")
        self.until = None if until is None else interval(until, "until")
        if self.after and self.until and self.after.unit == self.until.unit and self.after.count >= self.until.count:
            raise ConfigError(f"Freeze: after={str(self.after)!r} is not before until={str(self.until)!r}.")
        self._frozen = False

    def _check(self, info: Info) -> None:
        matching(info.trainer.model, self.patterns)

    def on_fit_start(self, info: Info) -> None:
        self._ask(info)

    def on_step_end(self, info: Info) -> None:
        if self._frozen != self._wants(info):
            self._ask(info)

    def _wants(self, info: Info) -> bool:
        begun = self.after is None or self.after.reached(info.counters)
        return begun and not (self.until is not None and self.until.reached(info.counters))

    def _ask(self, info: Info) -> None:
        self._frozen = self._wants(info)
        (info.freeze if self._frozen else info.thaw)(*self.patterns, owner=f"{self._owner} {' '.join(self.patterns)}")
