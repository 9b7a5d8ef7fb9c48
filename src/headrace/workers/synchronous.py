"""Synchronous training: the workers share one batch, add up their gradients and make the same update."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..arena.arena import Arena
from ..arena.replica import Replica
from ..errors import ConfigError, ModelError, unknown
from ..length import Length
from .comm import Comm, mean
from .gradient_buckets import GradientBuckets
from .strategy import Strategy

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Synchronous(Strategy):
    """g = Σᵢ gᵢ, one update: any number of workers makes the update that one would make of the whole batch.

    Gradients of large models travel in chunks while the backward pass still computes others. `compress` halves what
    travels, "bf16" or "fp16": every worker's gradients are rounded to it. Until `start_after` ("10000 samples",
    "1 epoch") every worker makes all updates by itself, from whole batches, and nothing travels.

    A worker that is lost ends the others; they go on from the last checkpoint.
    """

    joint: ClassVar[bool] = True

    def __init__(
        self, *, compress: Literal["bf16", "fp16"] | None = None, start_after: str | Length | None = None
    ) -> None:
        super().__init__(start_after=start_after)
        if compress is not None and compress not in _FORMATS:
            raise ConfigError(unknown("compress", compress, _FORMATS))
        self.compress = compress
        self._format = None if compress is None else _FORMATS[compress]
        self._chunks: dict[int, GradientBuckets] = {}
        self._agreed: dict[int, list[bool]] = {}

    def join(self, comm: Comm) -> None:
        super().join(comm)
        self._chunks, self._agreed = {}, {}

    def release(self) -> None:
        for chunks in self._chunks.values():
            chunks.forget()
        self._chunks, self._agreed = {}, {}

    def listen(self, arena: Arena) -> None:
        self._of(arena).listen()

    def totals(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        numbers = torch.tensor([float(weight) for weight in weights.values()], dtype=torch.float64)
        self.comm.all_reduce(numbers)
        return dict(zip(weights, numbers.tolist(), strict=True))

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        for param in arena.loose:
            if param.grad is not None and param.grad.is_sparse:
                raise ModelError(
                    f"{arena.names[param]!r} has sparse gradients, which workers cannot add up. Make it with "
                    "sparse=False, or use a strategy of local updates, as Periodic."
                )
        key = id(arena)
        agreed = self._agreed.get(key) or [True] * len(reached)
        differs = any(reached) and list(reached) != agreed  # who has reached nothing, for want of rows, has no opinion
        found = self._of(arena).finish(torch.cat([numbers, numbers.new_tensor([differs])]))
        looks = not found.is_cuda or key not in self._agreed  # later, to look would be to wait for the device
        if looks and bool(found[-1]):
            flags = torch.tensor(list(reached), dtype=torch.float32)
            self.comm.all_reduce(flags, "max")
            agreed = flags.bool().tolist()
        self._agreed[key] = agreed
        for param, hit in zip(arena.loose, agreed[len(agreed) - len(arena.loose) :], strict=True):
            param.grad = param.grad if hit else None
        return agreed, found[:-1]

    def agreed(self, replica: Replica) -> list[Tensor]:
        """Weights are the same everywhere; of what the workers have measured of their rows, the mean."""
        return [*replica.values, *mean(self.comm, replica.statistics, 1)]

    def _of(self, arena: Arena) -> GradientBuckets:
        """The messages of an arena; those of arenas that are no more are forgotten."""
        found = self._chunks.get(id(arena))
        if found is None or found.arena is not arena:
            for key in [key for key, held in self._chunks.items() if held.arena.optimizer is arena.optimizer]:
                self._chunks.pop(key).forget()
                self._agreed.pop(key, None)
            found = self._chunks[id(arena)] = GradientBuckets(arena, self.comm, self._format)
        return found
