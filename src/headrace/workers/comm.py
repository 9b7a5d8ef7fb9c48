"""How a worker exchanges vectors and values with the others, and means over all of them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ..data.shard import WHOLE, Shard
from .center import Center
from .connection import CenterClient, open_center
from .join import TIMEOUT_S

Op = Literal["sum", "max", "tree"]
"""How vectors become one. "tree", of 2, 4, 8, … workers: two and two are added, and their sums again."""
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Turns:
    """What the workers of one process have in common, who run one at a time."""

    memory: dict[int, list[Tensor]] = field(default_factory=dict)
    """Blocks by their size, for what each keeps while it has its turn."""
    forms: dict[Any, Any] = field(default_factory=dict)
    """The forms of operations that the tapes of all have found: a search takes longer than an update."""
    touches: int = 0
    """How often one of them has called code of the user's outside of passes; it may have changed what all use."""
    first: Any = None
    """Who records passes first; the others learn from it what that costs."""
    cost_s: float = 0.0
    gain_s: float = 0.0
    """What the first recording took, and what a replay of it saves; 0 as long as that is not known."""

    def pays(self, who: Any, passes: int, latest: int) -> bool:
        """Whether to record now, after so many passes: once replays of them would have saved what a recording costs.

        So a worker never loses more than that. As long as the costs are not known, the first one records alone.
        """
        self.first = self.first or who
        known = self.gain_s > 0
        return self.first is who or (passes * self.gain_s >= self.cost_s if known else passes > latest)

    def learn(self, cost_s: float, gain_s: float) -> None:
        """What the first recording has cost, and what a replay saves."""
        if not self.gain_s:
            self.cost_s, self.gain_s = cost_s, max(gain_s, 0.0)


class Comm(ABC):
    """The communicator of one worker: how it exchanges vectors and values with the others.

    All workers call the same methods in the same order, but for `attempt`, `worked`, `at` and `report_error`. Vectors
    are dense and contiguous, on the host or on the worker's device, alike on all workers; what is reduced is the same
    on each of them to the last bit. Values are what `codec` knows: plain values and tensors, in lists and dicts; they
    come back as copies, tensors on the host.

    A worker that is lost, or that keeps the others waiting for too long, is a `WorkerError` on all others.
    """

    shard: Shard = WHOLE
    """This worker among all: its part of what they share."""

    timeout_s = TIMEOUT_S
    """How long workers wait for each other."""
    overlaps = False
    """Whether a reduction that was begun goes on while the worker computes."""
    turns: Turns | None = None
    """What this worker shares with those who take turns with it, if workers do."""

    @property
    def count(self) -> int:
        """How many workers there are."""
        return self.shard.count

    @property
    def leader(self) -> bool:
        """Whether this is worker 0, which alone writes, prints and reads the clock."""
        return self.shard.index == 0

    def open_center(self, center: Center | None) -> CenterClient:
        """How this worker calls the center of a training, which worker 0 gives."""
        return open_center(self, center)

    def attempt(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Makes a call that fails if another worker is lost; the error then says which one."""
        return call(*arguments)

    @abstractmethod
    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        """The vector becomes the sum, or the maximum, of those of all workers."""

    def start(self, vector: Tensor, op: Op = "sum") -> Callable[[], object]:
        """Begins an `all_reduce`; call what it returns to wait for the result. Leave the vector alone until then."""
        self.all_reduce(vector, op)
        return lambda: None

    @abstractmethod
    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        """The vector becomes that of one worker."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """What every worker gave, in order, for worker 0; `None` for the others."""

    @abstractmethod
    def share(self, value: Any = None) -> Any:
        """What worker 0 gave, for all."""

    @abstractmethod
    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        """Of what worker 0 gave, one value for each worker, this worker's."""

    def all_gather(self, value: Any) -> list[Any]:
        """What every worker gave, in order, for all."""
        values: list[Any] = self.share(self.gather(value))
        return values

    def worked(self, rows: int) -> None:
        """Counts an update of so many rows: a virtual clock moves on."""

    def now(self) -> float:
        """Seconds, on this worker's clock."""
        return time.perf_counter()

    def at(self, step: int, doing: str) -> None:
        """Notes where this worker stands, for errors about workers that keep others waiting."""

    def explain(self, error: Exception) -> Exception:
        """Why torch's own exchange with other workers has failed."""
        return error

    def report_error(self, error: BaseException) -> None:
        """Tells the other workers why this one is about to end."""

    def close(self) -> None:
        """Ends the communication."""


class Null(Comm):
    """The communicator of a worker alone."""

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        pass

    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        pass

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def share(self, value: Any = None) -> Any:
        return value

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        assert values is not None
        return values[0]


# --- what all workers have, as one ------------------------------------------------------------------------


def mean(comm: Comm, tensors: Sequence[Tensor], weight: float) -> list[Tensor]:
    """Σ weightᵢ·tensorᵢ / Σ weightᵢ over the workers, for each tensor; where all weights are 0, they stay as they are.

    One message for all tensors of a device; those of half precision are added up in single precision. A worker
    alone is given its own tensors, to the bit; otherwise nothing that is given shares memory with what came.
    """
    means = list(tensors)
    if comm.count == 1:
        return means
    for places in _alike(tensors):
        message, parts = _packed([tensors[k] for k in places])
        message.mul_(weight)
        comm.all_reduce(message)
        total = float(message[-1])
        if total:
            message.div_(total)
            for k, part in zip(places, parts, strict=True):
                means[k] = _like(tensors[k], part)
        else:
            for k in places:
                means[k] = tensors[k].clone()
    return means


def largest(comm: Comm, tensors: Sequence[Tensor]) -> None:
    """Every element becomes the largest that any worker has, in place: counters, flags."""
    for device in {tensor.device for tensor in tensors} if comm.count > 1 else ():
        here = [tensor for tensor in tensors if tensor.device == device]
        message = torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in here])
        comm.all_reduce(message, "max")
        for tensor, part in zip(here, message.split([tensor.numel() for tensor in here]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def _alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Which tensors go into one message."""
    groups: dict[tuple[torch.device, bool], list[int]] = {}
    for k, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, _is_double(tensor)), []).append(k)
    return list(groups.values())


def _packed(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One vector of all of them and a 1, which becomes the sum of the weights; and the tensors' places in it."""
    real = [_real(tensor) for tensor in tensors]
    sizes = [tensor.numel() for tensor in real]
    dtype = torch.float64 if _is_double(tensors[0]) else torch.float32
    message = torch.empty(sum(sizes) + 1, dtype=dtype, device=tensors[0].device)
    message[-1] = 1
    parts = [part.view(tensor.shape) for part, tensor in zip(message[:-1].split(sizes), real, strict=True)]
    torch._foreach_copy_(parts, real)
    return message, parts


def _is_double(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.complex128)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor's place in a message, as one of its kind."""
    return (torch.view_as_complex(part.clone()) if tensor.is_complex() else part).to(tensor.dtype)
