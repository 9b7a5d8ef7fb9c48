"""A virtual worker's voice."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..data.source import Shard
from ..errors import ConfigError
from ..workers.center import Center
from ..workers.comm import Comm, Op, Pending
from ..workers.meeting import Meeting, Packed
from .sim_center import SimCenter
from .virtual_cluster import VirtualCluster


class SimComm(Comm):
    """Speaks to the other virtual workers of a world, in virtual time."""

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

    def _begin(self, kind: str, vector: Tensor) -> "_Started":
        like = (vector.shape, vector.dtype, vector.device)
        return _Started(self.world, self._worker, self.world.meet(self._worker, kind, like, vector.detach()))

    def _exchange(self, kind: str, packed: Any) -> Any:
        return self.world.wait(self._worker, self.world.meet(self._worker, kind, (), packed))


class _Started:
    """A reduction that others have still to join, or that takes its time."""

    def __init__(self, world: VirtualCluster, worker: int, meeting: Meeting) -> None:
        self._world, self._worker, self._meeting = world, worker, meeting

    def wait(self) -> None:
        self._world.wait(self._worker, self._meeting)
