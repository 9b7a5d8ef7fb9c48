"""A model as a strategy sees it: what is trained and what is measured, as a few long vectors."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from .arena import Arena
from .optimizer import forget
from .own_optimizers import parts_of
from .sharding import as_shard, fitted, is_sharded, local
from .vectors import plain_name, view


class Replica:
    """One worker's copy of the model, in place: whatever is written to its tensors is the model's.

    `tensors` are what workers agree on: `values`, the parameters as they are stored, flat where they could be, then
    `statistics`, the floating-point buffers. `counts` are the other buffers, counters mostly. A list "like" one of
    these has a tensor of the same shape for each.
    """

    def __init__(self, model: nn.Module, arenas: Callable[[], Sequence[Arena]]) -> None:
        self._model, self._arenas = model, arenas

    @property
    def values(self) -> list[Tensor]:
        """Parameters: vectors, and those that could not be stored in one."""
        vectors = [vector.values for arena in self._arenas() for vector in arena.vectors]
        return vectors + [local(param.detach()) for arena in self._arenas() for param in arena.loose]

    @property
    def statistics(self) -> list[Tensor]:
        """Floating-point buffers, as those of batch normalisation."""
        return [buffer for buffer in self._model.buffers() if _is_measured(buffer)]

    @property
    def counts(self) -> list[Tensor]:
        """Buffers that count."""
        return [buffer for buffer in self._model.buffers() if not _is_measured(buffer)]

    @property
    def tensors(self) -> list[Tensor]:
        return self.values + self.statistics

    def by_name(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Tensors like `tensors`, or like `values`, by the names of parameters and buffers, as views."""
        remaining = iter(tensors)
        found: dict[str, Tensor] = {}
        for arena in self._arenas():
            for vector in arena.vectors:
                flat = next(remaining)
                found |= {slot.name: view(flat, slot.value, slot.start) for slot in vector.slots}
        for arena in self._arenas():
            found |= {arena.names[p]: _like(next(remaining), p) for p in arena.loose}
        return found | dict(zip(self._statistics_names(), remaining, strict=False))

    @property
    def resting(self) -> set[str]:
        """Names of what may stay as it is for a round: parameters that are frozen, and buffers."""
        frozen = {n for arena in self._arenas() for p, n in arena.names.items() if not p.requires_grad}
        return frozen | {*self._statistics_names()}

    def joined(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        """Tensors like `tensors`, or like `values` where there are no others, of what `by_name` gave."""
        like = self.tensors if any(name in named for name in self._statistics_names()) else self.values
        found = [torch.zeros_like(tensor) for tensor in like]
        for name, place in self.by_name(found).items():
            if name not in named:
                raise CheckpointError(f"the strategy's state lacks {name!r}, which the model has.")
            place.copy_(fitted(named[name], place))
        return found

    def write(self, tensors: Sequence[Tensor]) -> None:
        """The model becomes what tensors like `tensors`, or like `values`, say."""
        torch._foreach_copy_(self.tensors[: len(tensors)], list(tensors))

    def reset_optimizer(self) -> None:
        """What the optimizers remember of earlier updates is forgotten."""
        for arena in self._arenas():
            for part in parts_of(arena.optimizer):
                forget(part)

    def _statistics_names(self) -> list[str]:
        return [plain_name(name) for name, buffer in self._model.named_buffers() if _is_measured(buffer)]


def _like(value: Tensor, param: Tensor) -> Tensor:
    """A tensor of `values` as its parameter is: a shard of a sharded one."""
    return as_shard(value, param) if is_sharded(param) else value


def _is_measured(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()
