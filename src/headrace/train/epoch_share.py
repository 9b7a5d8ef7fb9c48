"""How much of a number of epochs has been used, which schedules by progress ask at every update."""

from collections.abc import Mapping
from typing import Any

from ..length import Counters


class EpochShare:
    """How much of a number of epochs has been used: by batches, else by rows, else by the epochs that are over."""

    def __init__(self, batches: int | None, rows: int | None) -> None:
        self._batches, self._rows = batches, rows
        self._steps, self._samples = 0, 0  # where the epoch at hand began
        self._before: int | None = batches  # how many batches an epoch had when the training was saved
        self._known = True  # whether it is known where the epoch began

    def begin(self, counters: Counters) -> None:
        """An epoch is over, and another begins here."""
        self._steps, self._samples, self._known = counters.steps, counters.samples, True

    def share(self, count: float, counters: Counters) -> float:
        """The part of `count` epochs that has been used."""
        batches, rows = self._batches, self._rows
        if not batches:
            return counters.samples / (count * rows) if rows else (counters.epochs + self._part(None, counters)) / count
        if not self._known:
            self._steps, self._known = counters.epochs * batches, True
        if self._before != batches:  # the training goes on with batches of another size
            self._steps = counters.steps - round(self._part(self._before, counters) * batches)
            self._before = batches
        return (counters.epochs * batches + min(batches, counters.steps - self._steps)) / (count * batches)

    def _part(self, batches: int | None, counters: Counters) -> float:
        """The part of the epoch at hand that has been used, which has so many batches; if nothing tells, one half."""
        if batches and not self._rows:
            return min(1.0, (counters.steps - self._steps) / batches)
        rows = self._rows or (self._known and counters.epochs and self._samples / counters.epochs)
        return min(1.0, (counters.samples - self._samples) / rows) if rows else 0.5

    def state_dict(self) -> dict[str, Any]:
        known = {"steps": self._steps, "samples": self._samples} if self._known else {}
        return {**known, "batches": self._before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._known = "steps" in state
        self._steps, self._samples = int(state.get("steps", 0)), int(state.get("samples", 0))
        self._before = state.get("batches", self._batches)
