"""Rounds: every worker trains by itself for a while, then all agree on where to go on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from ..arena.replica import Replica
from ..errors import ConfigError, unknown
from ..length import Counters, Length
from .mean import largest, mean
from .outer import OuterStep
from .round_start import Start
from .strategy import State, Strategy

Weights = Literal["rows", "equal"]
_WEIGHTS = ("rows", "equal")


class Rounds(Strategy, ABC):
    """Local updates from θ₀ on; at the end of a round all workers go on where `ending` says.

    A round ends whenever `every` is due, by counters that are the same on all workers; with `None` there is only one.
    Parameters and floating-point buffers are averaged, each worker weighing as many rows as it has used in the round
    (`weights="rows"`) or as much as any other ("equal"); of other buffers, such as counters, all take the largest.
    What the workers' optimizers remember stays their own, or is forgotten at the end of a round (`reset_inner`).

    Saved in the middle of a round, it goes on exactly with as many workers; another number of them begins the round
    anew from θ₀. A worker that is lost ends the others.
    """

    def __init__(
        self,
        every: Length | None,
        *,
        weights: Weights = "rows",
        reset_inner: bool = False,
        start_after: str | Length | None = None,
    ) -> None:
        super().__init__(start_after=start_after)
        if weights not in _WEIGHTS:
            raise ConfigError(unknown("weights", weights, _WEIGHTS))
        self.every, self.weights, self.reset_inner = every, weights, reset_inner
        self._rows, self._total = 0, 0
        """Rows of this round: of this worker, of all."""
        self._saved: tuple[Mapping[str, Any], Mapping[str, Any] | None] | None = None

    @abstractmethod
    def ending(self, start: Start) -> OuterStep:
        """How rounds end that begin there."""

    def due(self, counters: Counters, total: int, ends_epoch: bool) -> bool:
        """Whether the update just counted, of `total` rows on all workers, ends a round."""
        return self.every is not None and self.every.fires(counters, total, ends_epoch)

    def begin(self, replica: Replica) -> None:
        self._rows, self._total = 0, 0
        self._start = Start(replica)
        self._outer_step = self.ending(self._start)
        if self._saved is not None:
            self._go_back(*self._saved)

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        self._saved = None
        self._rows, self._total = self._rows + rows, self._total + total
        if not self.due(counters, total, ends_epoch):
            return False
        if self._total:
            replica.write(self._outer_step.step(replica, self._start, self._means, self._total))
            largest(self.comm, replica.counts)
            self._start.take(replica)
            if self.reset_inner:
                replica.reset_optimizer()
        self._rows, self._total = 0, 0
        return True

    def agreed(self, replica: Replica) -> list[Tensor]:
        return self._means(replica.tensors) if self._total else replica.tensors

    def state_dict(self, replica: Replica) -> State:
        return {"start": self._start.named, "outer": self._outer_step.state_dict()}

    def own_state(self) -> State:
        return {"rows": self._rows, "total": self._total}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        self._saved = state, own  # a training may still begin with it
        self.begin(replica)

    def leave(self) -> None:
        self._saved = None

    def _go_back(self, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        self._outer_step.load_state_dict(state["outer"])
        if own is not None:
            self._start.load(state["start"])
            self._rows, self._total = int(own["rows"]), int(own["total"])

    def _means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return mean(self.comm, tensors, self._rows if self.weights == "rows" else 1)
