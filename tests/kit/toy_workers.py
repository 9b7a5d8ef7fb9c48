"""Workers in threads that speak by meeting: enough to try strategies on real arenas, without a trainer."""

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import headrace as hr
from headrace import Strategy
from headrace.arena.arena import Arena
from headrace.arena.replica import Replica
from headrace.length import Counters
from headrace.store.codec import decode, encode
from headrace.workers.comm import Comm, Null, Op

LIMIT_S = 30.0


class Meeting:
    """Where all workers leave what they bring, and find what the others have brought."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=LIMIT_S)
        self.brought: list[Any] = [None] * count
        self.sizes: list[int] = []
        """Elements of every message so far."""


class ToyComm(Comm):
    """Sums are made in the order of the workers, so that they are the same on all and in every run."""

    def __init__(self, meeting: Meeting, index: int) -> None:
        self.shard = hr.Shard(index, len(meeting.brought))
        self.meeting = meeting

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        all_of_them = self._exchange(vector.clone())
        assert len({(v.dtype, v.shape) for v in all_of_them}) == 1, "messages differ"
        if self.leader:
            self.meeting.sizes.append(vector.numel())
        result = all_of_them[0].clone()
        for other in all_of_them[1:]:
            result = result + other if op == "sum" else torch.maximum(result, other)
        vector.copy_(result)

    def broadcast(self, vector: Tensor) -> None:
        vector.copy_(self._exchange(vector.clone())[0])

    def gather(self, value: Any) -> list[Any] | None:
        found = self._exchange(copy.deepcopy(value))
        return found if self.leader else None

    def share(self, value: Any = None) -> Any:
        return copy.deepcopy(self._exchange(value)[0])

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        return copy.deepcopy(self._exchange(values)[0][self.shard.index])

    def _exchange(self, value: Any) -> list[Any]:
        self.meeting.brought[self.shard.index] = value
        self.meeting.barrier.wait()
        found = list(self.meeting.brought)
        self.meeting.barrier.wait()
        return found


def together(count: int, work: Callable[[Comm], Any], meeting: Meeting | None = None) -> list[Any]:
    """What the work gives in each of so many workers."""
    if count == 1:
        return [work(Null())]
    meeting = meeting or Meeting(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = work(ToyComm(meeting, index))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
        assert not thread.is_alive(), "a worker does not end"
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors
    return results


class Worker:
    """One worker's model, optimizer and strategy; batches are slices of the data in order."""

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
        for _ in range(steps):
            x, y = self.data
            stops = [min(self.at + self.batch * (r + 1), len(x)) for r in range(self.comm.count)]
            starts = [self.at, *stops[:-1]]
            start, stop = starts[self.comm.shard.index], stops[self.comm.shard.index]
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

    def save(self) -> dict[str, Any]:
        """Everything, as a checkpoint has it: own state and that of all."""
        return {
            "shared": through_codec(self.strategy.state_dict(self.replica)),
            "own": through_codec(self.strategy.own_state()),
            "model": self.weights,
            "optimizer": copy.deepcopy(self.arena.state_dict()),
            "counters": copy.copy(self.counters),
            "at": self.at,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        from headrace.arena.optimizer import load_state

        self.arena.release()
        self.model.load_state_dict(state["model"])
        load_state(self.optimizer, self.arena.names, state["optimizer"])
        self.arena = Arena(self.model, self.optimizer)
        self.counters, self.at = copy.copy(state["counters"]), state["at"]
        self.strategy.load_state_dict(self.replica, state["shared"], state["own"])


def through_codec(state: Any) -> Any:
    """What a checkpoint gives back."""
    tensors: dict[str, Tensor] = {}
    kept = encode(state, tensors, "state", strict=True)
    return decode(kept, {name: tensor.detach().clone() for name, tensor in tensors.items()})


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two sets of weights."""
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
