"""Learners that several workers share, and what workers know of each other."""

import math
from typing import Any

import torch
from torch import Tensor

from ....errors import ConfigError
from ....workers.here import here
from ..learners.learner import Learner


class WorkerDescriptor:
    """A worker: its number, and where it runs."""

    def __init__(self, global_rank: int, host_id: str = "") -> None:
        self.global_rank, self.host_id = global_rank, host_id


class Communicator:
    """All workers, seen from one."""

    @property
    def comm(self) -> Any:
        """How this worker exchanges tensors with the others."""
        return here()

    def workers(self) -> list[WorkerDescriptor]:
        return [WorkerDescriptor(k) for k in range(self.comm.count)]

    def current_worker(self) -> WorkerDescriptor:
        return WorkerDescriptor(self.comm.shard.index)

    def is_main(self) -> bool:
        """Whether this is worker 0."""
        return bool(self.comm.leader)

    def barrier(self) -> None:
        self.comm.all_reduce(torch.zeros(1))

    @staticmethod
    def finalize() -> None:
        """The workers are done; whoever has started them ends them."""

    @staticmethod
    def num_workers() -> int:
        return here().count

    @staticmethod
    def rank() -> int:
        return here().shard.index


class DistributedLearner:
    """A learner whose gradients are added up over all workers, so that all make the same update.

    What is not here is that of the learner that it is made of.
    """

    widens = False
    """Whether a size is that of a worker's minibatch, not of all of them together."""

    def __init__(self, learner: Learner, distributed_after: int = 0) -> None:
        if isinstance(learner, DistributedLearner):
            raise ConfigError("a distributed learner is made of a plain one, got one that is distributed already.")
        self.learner, self.distributed_after = learner, distributed_after
        self._communicator = Communicator()
        self._spread = False

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["learner"], name)

    def communicator(self) -> Communicator:
        return self._communicator

    @property
    def active(self) -> bool:
        """Whether there are others, and the samples before which each works for itself have been seen."""
        seen: int = self.total_number_of_samples_seen
        return here().count > 1 and seen >= self.distributed_after

    def spread(self) -> None:
        """Worker 0's weights become everybody's, once."""
        if self._spread or self._communicator.comm.count == 1:
            return
        self._spread = True
        with torch.no_grad():
            for parameter in self.parameters:
                vector = parameter.tensor.detach().contiguous().view(-1)
                self._communicator.comm.broadcast(vector)
                parameter.tensor.copy_(vector.view_as(parameter.tensor))

    def exchange(self, gradients: list[Tensor], numbers: list[float]) -> list[float]:
        """Numbers of all workers together; gradients become those of all."""
        comm, together = self._communicator.comm, self._added_up(numbers)
        if not together[2]:
            return together
        vector = torch.cat([gradient.reshape(-1) for gradient in gradients])
        comm.all_reduce(vector)
        for gradient, part in zip(gradients, vector.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        return together

    def _added_up(self, numbers: list[float]) -> list[float]:
        vector = torch.tensor(numbers, dtype=torch.float64)
        self._communicator.comm.all_reduce(vector)
        found: list[float] = vector.tolist()
        return found

    def agree(self, finished: bool) -> None:
        """After an update; `finished`: before a checkpoint, or at the end."""

    def load_state_dict(self, state: Any) -> None:
        self._spread = True
        self.learner.load_state_dict(state)


class BlockMomentumLearner(DistributedLearner):
    """Every worker updates its own weights; after each block they are drawn together, with a momentum.

    With the sum G of what the workers' weights have moved, v = m·v + (1 - m)·rate·G, and w = w₀ - v. See Chen and Huo,
    Scalable training of deep learning machines by incremental block training, 2016.
    """

    widens = True

    def __init__(
        self,
        learner: Learner,
        block_size: int,
        time_constant: float | None,
        nesterov: bool,
        resets: bool,
        rate: float,
        distributed_after: int,
    ) -> None:
        super().__init__(learner, distributed_after)
        if block_size < 1:
            raise ConfigError(f"block_size= is a number of samples of all workers, at least 1, got {block_size}.")
        self.block_size, self._constant, self._nesterov = block_size, time_constant, nesterov
        self._resets, self._rate_of_block = resets, rate
        self._before: list[Tensor] = []
        self._velocity: list[Tensor] = []
        self._in_block = self._seen = 0
        self._local = 0

    @property
    def total_number_of_samples_seen(self) -> int:
        return self._seen

    def exchange(self, gradients: list[Tensor], numbers: list[float]) -> list[float]:
        self._local = int(numbers[2])
        return self._added_up(numbers)

    def apply(self, gradients: list[Tensor], count: int, sweep_end: bool) -> bool:
        is_only_worker = not self.active
        self._seen += count
        if is_only_worker:
            return self.learner.apply(gradients, count, sweep_end)
        if not self._before:
            self._before = [p.tensor.detach().clone() for p in self.parameters]
            self._velocity = [torch.zeros_like(w) for w in self._before]
        self._in_block += self._local
        return self.learner.apply(gradients, self._local, sweep_end) if self._local else True

    def agree(self, finished: bool) -> None:
        if not self._before:
            return
        comm = self._communicator.comm
        filled = torch.tensor([float(self._in_block >= max(1, self.block_size // comm.count) or finished)])
        comm.all_reduce(filled, "max")
        if float(filled):
            self._meet(comm)

    def _meet(self, comm: Any) -> None:
        most = torch.tensor([float(self._in_block)])
        comm.all_reduce(most, "max")
        if not float(most):
            return
        momentum = self._momentum(comm.count, float(most))
        with torch.no_grad():
            for parameter, before, velocity in zip(self.parameters, self._before, self._velocity, strict=True):
                moved = (before - parameter.tensor).reshape(-1)
                comm.all_reduce(moved)
                velocity.mul_(momentum).add_(moved.view_as(velocity), alpha=(1 - momentum) * self._rate_of_block)
                before.sub_(velocity)
                parameter.tensor.copy_(before)
                if self._nesterov:
                    parameter.tensor.sub_(velocity, alpha=momentum)
        if self._resets:
            self.learner.reset_smoothed_gradients()
        self._in_block = 0

    def _momentum(self, workers: int, samples: float) -> float:
        constant = self._constant
        if constant is None:
            constant = -self.block_size / math.log(1 - 1 / workers)
        return math.exp(-samples / (constant / workers)) if constant else 0.0

    def state_dict(self) -> dict[str, Any]:
        kept = {"before": self._before, "velocity": self._velocity, "seen": self._seen}
        return {**self.learner.state_dict(), "block": kept}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        block = state["block"]
        self._before, self._velocity = list(block["before"]), list(block["velocity"])
        self._seen, self._in_block = block["seen"], 0


def data_parallel_distributed_learner(
    learner: Learner,
    distributed_after: int = 0,
    num_quantization_bits: int = 32,
    use_async_buffered_parameter_update: bool = False,
) -> DistributedLearner:
    """A learner whose gradients are added up over all workers; they travel in full, whatever the number of bits."""
    if use_async_buffered_parameter_update:
        raise ConfigError("use_async_buffered_parameter_update= is not offered. Natively strategy=hr.Elastic(...).")
    if not 1 <= num_quantization_bits <= 32:
        raise ConfigError(f"num_quantization_bits= is from 1 to 32, got {num_quantization_bits}.")
    return DistributedLearner(learner, distributed_after)


def block_momentum_distributed_learner(
    learner: Learner,
    block_size: int,
    block_momentum_as_time_constant: float | None = None,
    use_nestrov_momentum: bool = True,
    reset_sgd_momentum_after_aggregation: bool = True,
    block_learning_rate: float = 1.0,
    distributed_after: int = 0,
) -> BlockMomentumLearner:
    """A learner of each worker's own weights, which are drawn together after every block of so many samples."""
    settings = use_nestrov_momentum, reset_sgd_momentum_after_aggregation, block_learning_rate, distributed_after
    return BlockMomentumLearner(learner, block_size, block_momentum_as_time_constant, *settings)
