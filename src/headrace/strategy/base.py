"""The strategy's contract, and the one that has nothing to do."""

from typing import Protocol

from torch import Tensor

from ..arena import Arena
from ..comm import Comm, Null


class Strategy(Protocol):
    """What a way of working together does around an update."""

    comm: Comm

    def weight(self, weight: Tensor) -> Tensor:
        """The weight of the whole update, given this worker's."""
        ...

    def reduce(self, arena: Arena) -> None:
        """After the backward pass, before the update: gradients become those of the whole batch."""
        ...

    def after_update(self, arena: Arena, rows: int) -> None:
        """After an update that used `rows` rows here."""
        ...


class Single:
    """One worker: its gradients are those of the whole batch."""

    def __init__(self) -> None:
        self.comm: Comm = Null()

    def weight(self, weight: Tensor) -> Tensor:
        return weight

    def reduce(self, arena: Arena) -> None:
        pass

    def after_update(self, arena: Arena, rows: int) -> None:
        pass
