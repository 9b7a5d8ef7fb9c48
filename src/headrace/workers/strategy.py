"""The base class of strategies, and the strategy of a single worker."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..arena.arena import Arena
from ..arena.replica import Replica
from ..data.shard import Shard
from ..length import Counters
from ..store.shards import WHOLE as WHOLE_TENSORS
from ..store.shards import RowPart
from .comm import Comm, Null

State = dict[str, Any]


class Strategy:
    """Trains one model with several workers. It gets only vectors, a communicator and counts of rows.

    With a `joint` strategy, the workers make one update from one batch, whose rows they share: override `reduce`.
    With any other, every worker updates its own replica with its own batches, and the replicas are combined
    from time to time: override `begin`, `after` and `consensus`. With a `centered` strategy, workers do not wait for
    each other: see `Centered`.
    """

    joint: ClassVar[bool] = False
    centered: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    """Whether every worker has a part of the model."""
    parts: int = 0
    """The number of parts of a batch whose sums are the same on any number of workers; 0 if there are none."""
    comm: Comm = Null()
    """The communicator of this worker, once it has joined."""

    def join(self, comm: Comm) -> None:
        """Sets the communicator of this worker; called before all other methods."""
        self.comm = comm

    @property
    def kind(self) -> str:
        """Its name in a checkpoint: strategies of one kind can continue each other's trainings."""
        return type(self).__name__

    @property
    def setting(self) -> "Strategy":
        """A strategy with the same results, for the comparison of a run's settings."""
        return self

    @property
    def note(self) -> str:
        """A note for the last line of a training and its log; empty for most strategies."""
        return ""

    @property
    def part(self) -> RowPart:
        """Which rows of sharded tensors this worker has."""
        return WHOLE_TENSORS

    @property
    def writes_shards(self) -> bool:
        """Whether this worker writes its part of sharded tensors: several may have the same."""
        return True

    def all_gather_aside(self, value: Any) -> list[Any]:
        """As `Comm.all_gather`, for the thread that saves; plain values only."""
        return [value]

    def wrap(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of this shape, of which this worker has read the rows that `part` says."""
        return rows

    def place_model(self, model: nn.Module, device: torch.device, optimizer: Any) -> nn.Module:
        """Called when a trainer is made: moves the model to its device. `optimizer` is the trainer's argument."""
        return model.to(device)

    @property
    def shard(self) -> Shard:
        """This worker's part of every batch."""
        return replace(self.comm.shard, parts=self.parts)

    @property
    def shares_updates(self) -> bool:
        """Whether several workers make every update together."""
        return self.joint and self.comm.count > 1

    def totals(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """The weights of terms for the complete batch, from those of this worker's part."""
        numbers = torch.tensor([float(weight) for weight in weights.values()], dtype=torch.float64)
        self.comm.all_reduce(numbers)
        return dict(zip(weights, numbers.tolist(), strict=True))

    def most(self, count: int) -> int:
        """The largest of the counts that workers give, where they make passes together."""
        return count

    def accumulate(self) -> None:
        """Called before a backward pass of an update that is not its last one."""

    def listen(self, arena: Arena) -> None:
        """Called before the last backward pass of an update: gradients may be sent as they become ready."""

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        """Called after the backward pass: adds up gradients and numbers over all workers.

        `reached` says which parameters have gradients here. The result says which have one on any worker.
        """
        return reached, numbers

    def everywhere(self, number: float) -> float:
        """A number of this worker's part of the model, added up over all workers that have other parts."""
        return number

    def join_names(self, names: list[str]) -> list[str]:
        """Joins the names of this worker's part of the model with those of all others."""
        return names

    def add_up(self, sharded: int, common: int) -> int:
        """A count of this worker's part of the model, over all parts, and one of what all workers have."""
        return sharded + common

    def passing(self) -> AbstractContextManager[Any]:
        """A context for passes of the model."""
        return nullcontext()

    def release(self) -> None:
        """Called when the model leaves its arenas: drops all references to them."""

    def begin(self, replica: Replica) -> None:
        """Called when a training begins, with the same weights on all workers."""

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        """Called after an update from `rows` rows here, `total` on all workers; returns whether the weights agree."""
        return True

    def finish(self, replica: Replica) -> None:
        """Called after a training has ended and been saved: shares what this worker has not shared yet."""

    def leave(self) -> None:
        """Called when a training ends, also with an error: this worker takes no further part in it."""

    def consensus(self, replica: Replica) -> list[Tensor]:
        """The common weights of all workers at this moment, like `replica.tensors`; changes nothing."""
        return replica.tensors

    def state_dict(self, replica: Replica) -> State:
        """The state that is the same on all workers, by names of parameters."""
        return {}

    def own_state(self) -> State:
        """The state of this worker, without its weights and its optimizer."""
        return {}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Restores a state. With `own=None`, the number of workers has changed, and the round begins again.

        The replica already has the weights of this worker, or those of the beginning of the round if it begins again.
        """


class Single(Strategy):
    """The strategy of a single worker, whose gradients are those of the complete batch."""

    joint = True
