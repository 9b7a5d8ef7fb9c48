"""The strategy's contract, and the one that has nothing to do."""

from typing import Protocol

from ..arena import Arena
from ..comm import Comm, Null


class Strategy(Protocol):
    """What a way of working together does around an update."""

    comm: Comm

    def reduce(self, arena: Arena) -> None:
        """After the backward pass, before the update: gradients become those of the whole batch."""
        ...


class Single:
    """One worker: its gradients are those of the whole batch."""

    def __init__(self) -> None:
        self.comm: Comm = Null()

    def reduce(self, arena: Arena) -> None:
        pass
