"""What a worker on Ray can say to the others."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from ...data.source import Shard
from ...errors import WorkerError
from ...workers.center import Center
from ...workers.comm import Comm, Op
from ...workers.torch_comm import TorchComm
from ...workers.wire import pack, unpack
from . import hall
from .center import RayCenter
from .flat import tensor_of
from .hall import Heart
from .parcel import NeedsCenter

BEAT_S = 1.0


@contextmanager
def hall_for(workers: int) -> Iterator[Any]:
    """An actor of its own for a job, on the machine of this process."""
    cloudpickle.register_pickle_by_value(hall)  # its process imports nothing of ours
    try:
        actor = ray.remote(hall.Hall).options(num_cpus=0, scheduling_strategy=on_this_machine()).remote(workers)
    finally:
        cloudpickle.unregister_pickle_by_value(hall)
    try:
        yield actor
    finally:
        ray.kill(actor)


def on_this_machine() -> Any:
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def hearts_in(actor: Any, timeout_s: float) -> dict[int, Heart]:
    """What the hall has heard of the workers."""
    try:
        found: dict[int, Heart] = ray.get(actor.hearts.remote(), timeout=timeout_s)
        return found
    except RayError as error:
        raise WorkerError("the process through which workers hear of each other is gone.") from error


class Pulse:
    """Tells the hall, from a thread of its own, that a worker lives, and where it stands."""

    def __init__(self, others: Any, worker: int, life: int) -> None:
        self.step, self.doing = 0, "starting"
        self._hall, self._worker, self._life = others, worker, life
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
    def among(cls, others: Any) -> "InStep":
        """This worker, which tells the hall where it stands."""
        comm = cls.of_environment()
        assert isinstance(comm, cls)
        comm._pulse = Pulse(others, comm.shard.index, time.time_ns())
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

    def __init__(self, shard: Shard, life: int, others: Any, center: Any, timeout_s: float) -> None:
        self.shard = shard
        self._hall, self._timeout_s, self._rounds = others, timeout_s, 0
        self._center = RayCenter(center, shard.index, life, timeout_s)
        self._pulse = Pulse(others, shard.index, life)

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
