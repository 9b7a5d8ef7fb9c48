"""The communicator and the center of a virtual worker, both in virtual time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from torch import Tensor

from ..data.source import Shard
from ..errors import ConfigError
from ..workers.center import Center, NothingYet, Push, Reply
from ..workers.center_state import CenterState
from ..workers.comm import Comm, Op, Pending
from .collective import Collective, Packed
from .virtual_cluster import VirtualCluster


class SimComm(Comm):
    """The other virtual workers of a cluster, as one of them sees them."""

    def __init__(self, world: VirtualCluster, worker: int) -> None:
        self.world, self._worker = world, worker
        self.shard = Shard(worker, world.count)
        self._center: SimCenter | None = None

    @property
    def center(self) -> Center:
        self._center = self._center or SimCenter(self.world, self._worker)
        return self._center

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        self.start(vector, op).wait()

    def start(self, vector: Tensor, op: Op = "sum") -> Pending:
        return self._begin(op, vector)

    def broadcast(self, vector: Tensor) -> None:
        self._begin("broadcast", vector).wait()

    def gather(self, value: Any) -> list[Any] | None:
        found: list[Any] | None = self._exchange("gather", Packed.of(value))
        return found

    def all_gather(self, value: Any) -> list[Any]:
        found: list[Any] = self._exchange("all_gather", Packed.of(value))
        return found

    def share(self, value: Any = None) -> Any:
        return self._exchange("share", Packed.of(value) if self.leader else None)

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        if self.leader and (values is None or len(values) != self.count):
            got = "none" if values is None else len(values)
            raise ConfigError(f"worker 0 hands out one value for each of the {self.count} workers, got {got}.")
        return self._exchange("hand_out", [Packed.of(value) for value in values or ()])

    def worked(self, rows: int) -> None:
        self.world.worked(self._worker, rows)

    def now(self) -> float:
        return self.world.turns.now[self._worker]

    def at(self, step: int, doing: str) -> None:
        self.world.stands(self._worker, step, doing)

    def tell(self, error: BaseException) -> None:
        self.world.tell(self._worker, error)

    def _begin(self, kind: str, vector: Tensor) -> "_SimReduction":
        like = (vector.shape, vector.dtype, vector.device)
        return _SimReduction(self.world, self._worker, self.world.begin(self._worker, kind, like, vector.detach()))

    def _exchange(self, kind: str, packed: Any) -> Any:
        return self.world.wait(self._worker, self.world.begin(self._worker, kind, (), packed))


class _SimReduction:
    """A reduction that others have still to join, or that takes its time."""

    def __init__(self, world: VirtualCluster, worker: int, collective: Collective) -> None:
        self._world, self._worker, self._collective = world, worker, collective

    def wait(self) -> None:
        self._world.wait(self._worker, self._collective)


class SimCenter(Center):
    """Every call is a message to the center and one back; weights pass its link one after the other, as they come."""

    def __init__(self, world: VirtualCluster, worker: int) -> None:
        super().__init__(worker)
        world.held = world.held or CenterState(timeout_s=inf)  # who is dead is known, and nobody else is ever silent
        self._held: CenterState = world.held
        self._world = world
        self._seen = 0

    def call(self, name: str, *given: Any) -> Any:
        world, worker = self._world, self.worker
        if name == "state_dict":  # at no time: who saves changes nothing of what comes
            return _own(self._held.state_dict())
        changes = name in ("join", "exchange", "ask_to_stop", "load_state_dict")
        if name == "join":
            world.centers[worker] = partial(self._held.leave, worker)
        elif name == "leave":
            known = self._held.status(0.0)["workers"].get(worker)
            changes = bool(known and known["inside"])
        found = self._send(lambda now: self._held.serve(worker, now, name, *given), _size(given), changes)
        if name == "leave" or (name == "join" and found is None):
            world.centers.pop(worker, None)
        return found

    def wait(self, why: NothingYet) -> None:
        self._world.wait_for_change(self.worker, self._seen)

    def _send(self, serve: Callable[[float], Any], sent: int, changes: bool) -> Any:
        """Sends so many bytes, is served when they have come, and gets a reply. What has none waits for no link."""
        world, worker = self._world, self.worker
        begun, latency = world.turns.now[worker], world.timing.latency_s
        world.check(worker)
        world.until(worker, begun + latency)
        if sent:
            world.until(worker, world.inward.through(begun + latency, sent))
        now = world.turns.now[worker]
        found = _own(serve(now))
        if changes and not isinstance(found, NothingYet):
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
    if isinstance(value, Push):
        return _size(value.vectors) + _size(value.exact)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 0
