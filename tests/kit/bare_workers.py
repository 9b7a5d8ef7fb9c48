"""Virtual workers without a trainer: each has a model, an optimizer and a strategy, and makes local updates."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import headrace as hr
from headrace import Strategy
from headrace.arena.arena import Arena
from headrace.arena.replica import Replica
from headrace.length import Counters
from headrace.store.codec import decode, encode
from headrace.workers.comm import Comm
from headrace.workers.here import here


def together(count: int, work: Callable[[Comm], Any]) -> list[Any]:
    """What a function returns in each of so many workers."""
    results: list[Any] = [None] * count

    def run() -> None:
        results[here().shard.index] = work(here())

    hr.launch(run, workers=count)
    return results


class Worker:
    """A worker's model, optimizer and strategy; batches are slices of the data in order."""

    def __init__(
        self,
        comm: Comm,
        strategy: Strategy,
        model: nn.Module,
        optimizer: Callable[[Any], Optimizer],
        data: tuple[Tensor, Tensor],
        batch: int,
        arena: bool = True,
    ) -> None:
        self.comm, self.strategy, self.data, self.batch = comm, strategy, data, batch
        self.model = copy.deepcopy(model)
        self.optimizer = optimizer(self.model.parameters())
        self.arena = Arena(self.model, self.optimizer, packed=arena)
        self.replica = Replica(self.model, lambda: [self.arena])
        self.counters = Counters()
        self.at = 0
        strategy.join(comm)
        strategy.begin(self.replica)

    def run(self, steps: int) -> Iterator[bool]:
        """Local updates, each with a batch of its own; yields whether all agree."""
        x, y = self.data
        for _ in range(steps):
            stops = [min(self.at + self.batch * (r + 1), len(x)) for r in range(self.comm.count)]
            start, stop = [self.at, *stops][self.comm.shard.index], stops[self.comm.shard.index]
            if stop > start:
                self.arena.begin()
                F.mse_loss(self.model(x[start:stop]), y[start:stop]).backward()
                self.arena.collect()
                self.optimizer.step()
            total, ends = stops[-1] - self.at, stops[-1] == len(x)
            self.at = 0 if ends else stops[-1]
            self.counters.steps += 1
            self.counters.samples += total
            self.counters.epochs += ends
            yield self.strategy.after(self.replica, self.counters, stop - start, total, ends)

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    @property
    def consensus(self) -> dict[str, Tensor]:
        return {n: t.clone() for n, t in self.replica.by_name(self.strategy.consensus(self.replica)).items()}

    def save(self) -> tuple[Any, Any]:
        """What a checkpoint gives back of the strategy: the state of all workers, and that of this one."""
        return through_codec(self.strategy.state_dict(self.replica)), through_codec(self.strategy.own_state())


def through_codec(state: Any) -> Any:
    """What a checkpoint gives back."""
    tensors: dict[str, Tensor] = {}
    kept = encode(state, tensors, "state", strict=True)
    return decode(kept, {name: tensor.detach().clone() for name, tensor in tensors.items()})


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of weights."""
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
