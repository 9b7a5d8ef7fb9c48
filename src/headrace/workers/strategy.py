"""The base class of strategies, and the strategy of a worker alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from ..arena.arena import Arena
from ..arena.replica import Replica
from ..data.shard import Shard
from ..length import Counters
from .comm import Comm, Null

State = dict[str, Any]


class Strategy:
    """How several workers make one model. It sees vectors, a communicator and row counts, nothing else.

    A `joint` strategy makes one update of one batch, whose rows the workers share: override `totals` and `reduce`.
    Otherwise every worker updates its own replica with a batch of its own, and they agree from time to time:
    override `begin`, `after` and `agreed`. A `centered` one never waits for others: it meets them at `comm.center`.
    """

    joint: ClassVar[bool] = False
    centered: ClassVar[bool] = False
    parts: int = 0
    """Into how many parts a batch is cut, whose sums are the same whoever computes them; 0: into none."""

    def __init__(self) -> None:
        self.comm: Comm = Null()

    def join(self, comm: Comm) -> None:
        """Before anything else: the worker that this is."""
        self.comm = comm

    @property
    def shard(self) -> Shard:
        """The part of every batch that is this worker's."""
        return replace(self.comm.shard, parts=self.parts)

    @property
    def shares_updates(self) -> bool:
        """Whether several workers make every update together."""
        return self.joint and self.comm.count > 1

    def totals(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """What the terms of this worker's part weigh, for the whole batch."""
        return dict(weights)

    def listen(self, arena: Arena) -> None:
        """The last backward pass of an update is about to begin: gradients may travel as they become ready."""

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        """After the backward pass: gradients become those of the whole batch, and numbers the sums over all workers.

        `reached` says which parameters have gradients; what comes back, which of them have some on any worker.
        """
        return reached, numbers

    def release(self) -> None:
        """The model leaves its arenas, for good or for a while: what was held of them is let go."""

    def begin(self, replica: Replica) -> None:
        """A training begins, with the same weights on all workers."""

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        """An update was made: of `rows` rows here, `total` on all workers. Whether all agree on the weights now."""
        return True

    def used(self, cursor: Mapping[str, Any] | None, tally: Mapping[str, Sequence[float]] | None = None) -> None:
        """Called before `after`, with the cursor of the batch that was used and the `LossSums.totals` of its losses."""

    def finish(self, replica: Replica) -> None:
        """The training has ended, and been saved: what this worker has not shared yet is shared."""

    def leave(self) -> None:
        """However a training ends, also by an error: this worker is no longer in it."""

    def agreed(self, replica: Replica) -> list[Tensor]:
        """What all workers together think that `replica.tensors` should be, at this moment; nothing is changed."""
        return replica.tensors

    def state_dict(self, replica: Replica) -> State:
        """What is the same on all workers, by names of parameters."""
        return {}

    def own_state(self) -> State:
        """What is this worker's own, beside its weights and its optimizer."""
        return {}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Goes back to a state. `own=None`: the number of workers is another, and the round begins anew.

        The replica holds this worker's weights already: those of the round's beginning where it begins anew.
        """


class Single(Strategy):
    """One worker: its gradients are those of the whole batch."""

    joint = True
