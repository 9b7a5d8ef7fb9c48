"""A cut through virtual time: everything that is a worker's own at one moment, to begin again there."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .clock import Account

if TYPE_CHECKING:
    from .world import World


class Records:
    """How the state of each worker is taken, whoever asks for it.

    Who cuts has the baton. All others stand still in calls of the center that have not been served, so the center
    knows nothing of them; once more begun at the time at which they were, they have the same end. Who waits for rows
    asks for them once more, and is told the same. Of a worker that has left the center, what it was then is kept.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._owns: dict[int, Callable[[], Any]] = {}
        self._inside: set[int] = set()
        self._last: dict[int, tuple[Any, float]] = {}

    def record(self, worker: int, own: Callable[[], Any]) -> None:
        self._owns[worker] = own
        self._last.pop(worker, None)

    def joins(self, worker: int) -> None:
        """It is at the center now: until then it had nothing that it would not have once more."""
        self._inside.add(worker)

    def forget(self, worker: int) -> None:
        """It is dead: what was its own is lost."""
        self._owns.pop(worker, None)
        self._inside.discard(worker)

    def leaves(self, worker: int) -> None:
        """It is about to leave the center."""
        if worker in self._owns and worker in self._inside:
            self._last[worker] = (copy.deepcopy(self._owns.pop(worker)()), self._world.turns.now[worker])

    def cut(self, worker: int) -> tuple[list[Any], dict[str, Any]]:
        """What is the other workers' own, and what `resume` is to be told, as plain values."""
        world, clocks = self._world, list(self._world.begun)
        owns: list[Any] = []
        for other in range(world.count):
            if other == worker:
                owns.append(None)
                clocks[other] = world.turns.now[other]
            elif other in self._last:
                own, clocks[other] = self._last[other]
                owns.append(own)
            elif other in self._owns and other in self._inside:
                with world.turns.lent(other):
                    owns.append(self._owns[other]())
            else:
                owns.append(None)
        return owns, {
            "clocks_s": clocks,
            "links_s": [world.inward.passed_s, world.outward.free_s, world.ring.free_s],
            "accounts": [asdict(account) for account in world.accounts],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Time goes on from where it was cut, for all workers; unless it goes on already, and this one was lost."""
        world = self._world
        if self._inside:
            return
        world.inward.free_s, world.outward.free_s, world.ring.free_s = state["links_s"]
        world.accounts[:] = [Account(**account) for account in state["accounts"]]
        for worker, time in enumerate(state["clocks_s"]):
            world.begun[worker] = time
            world.turns.set_clock(worker, time)
            world.spare(worker, time)
