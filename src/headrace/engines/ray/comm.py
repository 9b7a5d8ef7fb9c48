"""The communicators of workers on Ray: through torch.distributed, or through the driver's store at a center."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from ...data.shard import Shard
from ...errors import WorkerError
from ...workers.center import Center
from ...workers.comm import Comm, Null, Op
from ...workers.heartbeat import BEAT_S, WorkerStatus, write_status
from ...workers.join import attempt_of, connect
from ...workers.shared import in_tree
from ...workers.torch_comm import TorchComm
from ...workers.wire import pack, unpack
from .center import RayCenter, patience_s

PIECE_BYTES = 4 << 20
"""A store takes no more than 8 MiB at a time."""


class NeedsCenter(BaseException):
    """Raised where workers in step turn out to need a center: all of them are started again, with one."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker finds the others: its number, the store of the driver, and the center."""

    shard: Shard
    start: int
    """How often workers have been started before: names this start's part of the store."""
    host: str
    port: int
    """Where the driver's store listens."""
    local: Shard
    """This worker among those of its machine."""
    node: int
    """The number of its machine."""
    center: Any
    """The actor of the center; `None` for workers that go in step."""
    timeout_s: float

    def join(self) -> Comm:
        """In the worker's process: its communicator."""
        os.environ |= {"TORCHELASTIC_RESTART_COUNT": str(self.start), "HEADRACE_TIMEOUT_S": f"{self.timeout_s:g}"}
        if self.center is not None:
            return RayComm(self)
        if self.shard.count == 1:
            return RayNull(self)
        os.environ |= {
            "RANK": str(self.shard.index),
            "WORLD_SIZE": str(self.shard.count),
            "LOCAL_RANK": str(self.local.index),
            "LOCAL_WORLD_SIZE": str(self.local.count),
            "NODE_RANK": str(self.node),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        return RayTorchComm.of_environment()

    def store(self) -> Store:
        """The part of the driver's store that belongs to this start."""
        return attempt_of(connect(self.host, self.port, self.timeout_s), self.start)


class StatusWriter:
    """Writes a worker's status into the driver's store every half second, in a thread of its own."""

    def __init__(self, store: Store, worker: int) -> None:
        self.step, self.doing = 0, "starting"
        self._store, self._worker, self._ended = store, worker, threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-pulse", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(BEAT_S)

    def _run(self) -> None:
        beat, ended = 0, False
        with suppress(RuntimeError):  # the driver is gone: Ray ends its workers
            while not ended:
                beat, ended = beat + 1, self._ended.wait(BEAT_S if beat else 0.0)
                write_status(self._store, self._worker, WorkerStatus(beat, self.step, self.doing, left=ended))


class RayTorchComm(TorchComm):
    """The communicator of workers in step."""

    @property
    def center(self) -> Center:
        raise NeedsCenter


class RayNull(Null):
    """The communicator of a worker alone, which writes its status for the driver."""

    def __init__(self, place: WorkerPlace) -> None:
        super().__init__(place.timeout_s)
        self._status = StatusWriter(place.store(), 0)

    def at(self, step: int, doing: str) -> None:
        self._status.step, self._status.doing = step, doing

    def close(self) -> None:
        self._status.end()


class RayComm(Comm):
    """The communicator of workers at a center, which may be started again one by one; it uses the driver's store.

    Exchanges among all are numbered, and few: at the beginning of a training, and at its end. A worker that begins
    anew goes through those of the others once more, and finds what they have found.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self.shard = place.shard
        self._patience_s, self._rounds = patience_s(place.timeout_s), 0
        self._status = StatusWriter(place.store(), self.shard.index)
        self._store = PrefixStore("rounds", connect(place.host, place.port, place.timeout_s))
        self._center = RayCenter(place.center, self.shard.index, place.start, place.timeout_s)

    @property
    def center(self) -> Center:
        return self._center

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        number = self._begin(op)
        self._give(f"{number}/{self.shard.index}", pack(vector))
        total, *others = (unpack(self._take(f"{number}/{worker}")) for worker in range(self.count))
        if op == "tree":
            total = in_tree([total, *others])
        for other in others if op != "tree" else ():  # in the order of workers: the same bits for all
            total = torch.maximum(total, other) if op == "max" else total + other
        vector.copy_(total)

    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        number = self._begin(f"broadcast {worker}")
        if self.shard.index == worker:
            self._give(f"{number}", pack(vector))
        else:
            vector.copy_(unpack(self._take(f"{number}")))

    def gather(self, value: Any) -> list[Any] | None:
        number = self._begin("gather")
        self._give(f"{number}/{self.shard.index}", pack(value))
        return [unpack(self._take(f"{number}/{worker}")) for worker in range(self.count)] if self.leader else None

    def share(self, value: Any = None) -> Any:
        number = self._begin("share")
        if not self.leader:
            return unpack(self._take(f"{number}"))
        self._give(f"{number}", mine := pack(value))
        return unpack(mine)  # a leader that begins anew goes on with what is new

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        number = self._begin("hand_out")
        for worker, value in enumerate(values or ()):
            self._give(f"{number}/{worker}", pack(value))
        return unpack(self._take(f"{number}/{self.shard.index}"))

    def at(self, step: int, doing: str) -> None:
        self._status.step, self._status.doing = step, doing

    def close(self) -> None:
        self._status.end()

    def _begin(self, kind: str) -> int:
        """The number of the exchange that begins, which is to be of the same kind for all."""
        number, self._rounds = self._rounds, self._rounds + 1
        found = self._store.compare_set(f"kind of {number}", "", f"{self.shard.index} {kind}").decode()
        first, _, theirs = found.partition(" ")
        if theirs != kind:
            raise WorkerError(
                f"workers do different things: worker {first} {theirs}, worker {self.shard.index} {kind}."
            )
        return number

    def _give(self, key: str, message: Tensor) -> None:
        if self._store.check([key]):  # by an earlier start of this worker
            return
        pieces = message.split(PIECE_BYTES)
        for number, piece in enumerate(pieces):
            self._store.set(f"{key}/piece {number}", piece.numpy().tobytes())
        self._store.set(key, str(len(pieces)))

    def _take(self, key: str) -> Tensor:
        end = time.monotonic() + self._patience_s
        try:
            self._store.wait([key], timedelta(seconds=self._patience_s))
            pieces = range(int(self._store.get(key)))
            data = bytearray(b"".join(self._store.get(f"{key}/piece {number}") for number in pieces))
        except RuntimeError:
            if time.monotonic() < end - BEAT_S:
                raise WorkerError("the process that started the workers is gone, or does not answer.") from None
            raise WorkerError(
                f"worker {self.shard.index} has waited for the others for {self._patience_s:g} s, "
                f"at step {self._status.step} ({self._status.doing}). If they may take longer, raise timeout_s."
            ) from None
        return torch.frombuffer(data, dtype=torch.uint8)
