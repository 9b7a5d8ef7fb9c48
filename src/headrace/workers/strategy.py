"""The base class of strategies, and the strategy of a worker alone."""

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
    """How several workers make one model. It sees vectors, a communicator and row counts, nothing else.

    A `joint` strategy makes one update of one batch, whose rows the workers share: override `totals` and `reduce`.
    Otherwise every worker updates its own replica with a batch of its own, and they agree from time to time:
    override `begin`, `after` and `consensus`. A `centered` one never waits for others: see `Centered`.
    """

    joint: ClassVar[bool] = False
    centered: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    """Whether every worker has a part of the model."""
    parts: int = 0
    """Into how many parts a batch is cut, whose sums are the same whoever computes them; 0: into none."""

    def __init__(self) -> None:
        self.comm: Comm = Null()

    def join(self, comm: Comm) -> None:
        """Before anything else: the worker that this is."""
        self.comm = comm

    @property
    def kind(self) -> str:
        """What a checkpoint calls it: strategies of one kind continue each other's trainings."""
        return type(self).__name__

    @property
    def setting(self) -> "Strategy":
        """A strategy of the same results, by which the settings of a run are compared."""
        return self

    @property
    def note(self) -> str:
        """What a training's last line and its log say of it; nothing where models are as usual."""
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
        """A trainer is made: the model goes to its device. `optimizer` is what the trainer is given."""
        return model.to(device)

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

    def most(self, count: int) -> int:
        """The largest of the counts that workers give, where they make passes together."""
        return count

    def accumulate(self) -> None:
        """A backward pass of an update is about to begin that is not the last one."""

    def listen(self, arena: Arena) -> None:
        """The last backward pass of an update is about to begin: gradients may travel as they become ready."""

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        """After the backward pass: gradients become those of the whole batch, and numbers the sums over all workers.

        `reached` says which parameters have gradients; what comes back, which of them have some on any worker.
        """
        return reached, numbers

    def everywhere(self, number: float) -> float:
        """A number of this worker's part of the model, added up over all workers that have other parts."""
        return number

    def join_names(self, names: list[str]) -> list[str]:
        """Names of this worker's part of the model, and of all others."""
        return names

    def add_up(self, sharded: int, common: int) -> int:
        """A count of this worker's part of the model, over all parts, and one of what all workers have."""
        return sharded + common

    def passing(self) -> AbstractContextManager[Any]:
        """What passes of the model are made within."""
        return nullcontext()

    def release(self) -> None:
        """The model leaves its arenas, for good or for a while: what was held of them is let go."""

    def begin(self, replica: Replica) -> None:
        """A training begins, with the same weights on all workers."""

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        """An update was made: of `rows` rows here, `total` on all workers. Whether all agree on the weights now."""
        return True

    def finish(self, replica: Replica) -> None:
        """The training has ended, and been saved: what this worker has not shared yet is shared."""

    def leave(self) -> None:
        """However a training ends, also by an error: this worker is no longer in it."""

    def consensus(self, replica: Replica) -> list[Tensor]:
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
