"""What a worker on Ray can say to the others."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from torch import Tensor

from ...comm.base import Comm, Op
from ...comm.center import Center
from ...comm.torch import TorchComm
from ...comm.wire import pack, unpack
from ...data.source import Shard
from ...errors import WorkerError
from .center import RayCenter
from .flat import tensor_of
from .parcel import NeedsCenter

BEAT_S = 1.0


class Pulse:
    """Tells the hall, from a thread of its own, that a worker lives, and where it stands."""

    def __init__(self, hall: Any, worker: int, life: int) -> None:
        self.step, self.doing = 0, "starting"
        self._hall, self._worker, self._life = hall, worker, life
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="headrace-pulse", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(BEAT_S)

    def _beat(self) -> None:
        while not self._ended.is_set():
            self._hall.beat.remote(self._worker, self._life, self.step, self.doing)
            self._ended.wait(BEAT_S)


class InStep(TorchComm):
    """A worker that Ray Train has placed."""

    _pulse: Pulse

    @classmethod
    def among(cls, hall: Any) -> "InStep":
        """This worker, which tells the hall where it stands."""
        comm = cls.of_environment()
        assert isinstance(comm, cls)
        comm._pulse = Pulse(hall, comm.shard.index, time.time_ns())
        return comm

    @property
    def center(self) -> Center:
        raise NeedsCenter

    def at(self, step: int, doing: str) -> None:
        super().at(step, doing)
        self._pulse.step, self._pulse.doing = step, doing

    def close(self) -> None:
        self._pulse.end()
        super().close()


class Apart(Comm):
    """A worker that may be started again by itself: what is said together goes through the hall.

    Rounds are few where workers meet at a center: at the beginning of a training, and at its end.
    """

    def __init__(self, shard: Shard, life: int, hall: Any, center: Any, timeout_s: float) -> None:
        self.shard = shard
        self._hall, self._timeout_s, self._rounds = hall, timeout_s, 0
        self._center = RayCenter(center, shard.index, life, timeout_s)
        self._pulse = Pulse(hall, shard.index, life)

    @property
    def center(self) -> Center:
        return self._center

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        total, *others = [tensor_of(array).view(vector.dtype) for array in self._meet(op, _bytes(vector))]
        for other in others:  # in the order of workers: the same bits for all
            total = torch.maximum(total, other) if op == "max" else total + other
        vector.copy_(total.view(vector.shape))

    def broadcast(self, vector: Tensor) -> None:
        array = self._meet("share", _bytes(vector) if self.leader else None)
        if not self.leader:
            vector.copy_(tensor_of(array).view(vector.dtype).view(vector.shape))

    def gather(self, value: Any) -> list[Any] | None:
        given = self._meet("gather", pack(value).numpy())
        return [unpack(tensor_of(array)) for array in given] if self.leader else None

    def share(self, value: Any = None) -> Any:
        mine = pack(value) if self.leader else None
        array = self._meet("share", None if mine is None else mine.numpy())
        return unpack(tensor_of(array) if mine is None else mine)  # a leader that begins anew says what is new

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        mine = [pack(value).numpy() for value in values or ()]
        array = self._meet("hand_out", mine if self.leader else None)
        return unpack(tensor_of(mine[0] if self.leader else array))

    def at(self, step: int, doing: str) -> None:
        self._pulse.step, self._pulse.doing = step, doing

    def tell(self, error: BaseException) -> None:
        self._center.fails = True

    def close(self) -> None:
        self._pulse.end()

    def _meet(self, kind: str, message: Any) -> Any:
        number, self._rounds = self._rounds, self._rounds + 1
        try:
            return ray.get(self._hall.meet.remote(number, kind, self.shard.index, message), timeout=self._timeout_s)
        except GetTimeoutError:
            raise WorkerError(
                f"worker {self.shard.index} has waited for the others for {self._timeout_s:g} s, "
                f"at step {self._pulse.step} ({self._pulse.doing}). If they may take longer, raise timeout_s."
            ) from None
        except RayTaskError as error:
            raise WorkerError(str(error.cause)) from None
        except RayActorError:
            raise WorkerError("the process through which workers hear of each other is gone.") from None


def _bytes(vector: Tensor) -> Any:
    return vector.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
