"""What a worker can say to the others. One worker alone has nobody to talk to, and a null object says so."""

from typing import Protocol

from torch import Tensor

from .data.source import WHOLE, Shard


class Comm(Protocol):
    """The others, seen from one worker."""

    shard: Shard
    """Which part of every batch is this worker's."""
    leader: bool
    """Whether this is the one worker that writes and prints."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor, in place."""
        ...


class Null:
    """A worker alone."""

    shard = WHOLE
    leader = True

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor
