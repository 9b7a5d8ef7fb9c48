"""The center as a virtual worker sees it: at the other end of a link that everybody shares."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, TypeVar

from torch import Tensor

from ..workers.center import Lease, Push, Reply, Rule, Terms, Vectors, Wait
from ..workers.center_state import CenterState
from .virtual_cluster import VirtualCluster

Found = TypeVar("Found")


class SimCenter:
    """Every call is a message to the center and one back; weights pass its link one after the other, as they come."""

    def __init__(self, world: VirtualCluster, worker: int) -> None:
        world.held = world.held or CenterState(timeout_s=inf)  # who is dead is known, and nobody else is ever silent
        self._held: CenterState = world.held
        self._world, self._worker = world, worker
        self._seen = self._requests = self._trainings = 0

    def join(
        self,
        rule: Rule,
        terms: Terms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> Reply | None:
        world, worker, number = self._world, self._worker, self._trainings + 1
        world.centers[worker] = partial(self._held.leave, worker)

        def ask(now: float) -> Reply | Wait | None:
            return self._held.join(worker, now, rule, terms, weights, state, said, number)

        reply: Reply | Wait | None
        while isinstance(reply := self._call(ask, _size(weights) + _size(state), changes=True), Wait):
            self.wait(reply)
        self._trainings = number
        if reply is None:
            del world.centers[worker]
        return reply

    def lease(self) -> Lease | Wait | None:
        self._requests += 1
        return self._call(lambda now: self._held.lease(self._worker, now, self._requests))

    def meet(self, push: Push) -> Reply:
        sent = _size(push.vectors) + _size(push.exact)
        return self._call(lambda now: self._held.meet(self._worker, now, push), sent, changes=True)

    def pull(self) -> Reply:
        return self._call(lambda now: self._held.pull(self._worker, now))

    def ask_to_stop(self, why: str) -> None:
        self._call(lambda now: self._held.ask_to_stop(why), changes=True)

    def wait(self, why: Wait) -> None:
        self._world.wait_for_change(self._worker, self._seen)

    def leave(self) -> None:
        known = self._held.status(0.0)["workers"].get(self._worker)
        self._call(lambda now: self._held.leave(self._worker), changes=bool(known and known["inside"]))
        self._world.centers.pop(self._worker, None)

    def status(self) -> dict[str, Any]:
        return self._call(lambda now: self._held.status(now))

    def state_dict(self) -> dict[str, Any]:
        """At no time: who saves changes nothing of what comes."""
        state: dict[str, Any] = _own(self._held.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call(lambda now: self._held.load_state_dict(state), _size(state), changes=True)

    def _call(self, serve: Callable[[float], Found], sent: int = 0, changes: bool = False) -> Found:
        """Sends so many bytes, is served when they have come, and gets a reply. What has none waits for no link."""
        world, worker = self._world, self._worker
        begun, latency = world.turns.now[worker], world.timing.latency_s
        world.check(worker)
        world.until(worker, begun + latency)
        if sent:
            world.until(worker, world.inward.through(begun + latency, sent))
        now = world.turns.now[worker]
        found: Found = _own(serve(now))
        if changes and not isinstance(found, Wait):
            world.changed(now)
        self._seen = world.changes
        back = _size(found)
        done = (world.outward.through(now, back) if back else now) + latency
        world.accounts[worker].sent_bytes += sent
        world.accounts[worker].communicating_s += done - begun
        world.go_on(worker, done)
        return found


def _own(found: Any) -> Any:
    """What a worker gets is a copy: others go on changing the center."""
    if isinstance(found, Tensor):
        return found.clone()
    if isinstance(found, Reply):
        return replace(found, vectors=_own(found.vectors))
    if isinstance(found, Mapping):
        return {name: _own(value) for name, value in found.items()}
    return found


def _size(value: Any) -> int:
    """Bytes of the tensors in it."""
    if isinstance(value, Tensor):
        return int(value.nbytes)
    if isinstance(value, Reply):
        return _size(value.vectors)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0
