"""The communicator over torch.distributed, for workers that torchrun, `launch` or Ray has started."""

import atexit
import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.shard import Shard
from ..errors import ConfigError
from ..store import system
from .comm import Comm, Op
from .heartbeat import GRACE_S, Heartbeat
from .join import attempt_of, join_others, joined_group, started_by_agent, timeout_of_environment
from .shared import Shared
from .wire import pack, unpack

Result = TypeVar("Result")

_NUDGE = getattr(signal, "SIGRTMIN", 0) + 11  # a signal that nobody else is likely to use


class TorchComm(Comm):
    """The communicator of a worker that torch.distributed knows.

    Vectors on the host go through memory that workers share where they are on one host, else over the host's network;
    those on a device over the network that is theirs. Values go over the host's network: whoever has them needs no
    memory of a device. A call that cannot be finished is a `WorkerError` that says which worker is the cause.
    """

    def __init__(
        self, vectors: dist.ProcessGroup, values: dist.ProcessGroup, timeout_s: float, has_joined: bool
    ) -> None:
        self.shard = Shard(dist.get_rank(), dist.get_world_size())
        self._vectors, self._values, self.has_joined = vectors, values, has_joined
        self._options = {"sum": _options(dist.ReduceOp.SUM), "max": _options(dist.ReduceOp.MAX)}
        store = attempt_of(dist.distributed_c10d._get_default_store()).clone()  # type: ignore[attr-defined]
        keeper = None if started_by_agent() else 0
        self._process, self._closed = os.getpid(), False
        self._nudged_by = _NUDGE if _can_be_nudged() else None
        self._heartbeat = Heartbeat(store, self.shard, timeout_s, keeper, self._nudge)
        self._uncaught_before = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self._leave)
        if self._nudged_by is not None:
            signal.signal(self._nudged_by, lambda *_: self._heartbeat.interrupt())
        self._shared = self._on_one_host(timeout_s) if self.count > 1 else None
        self.timeout_s = timeout_s
        self.overlaps = self._shared is None or torch.cuda.is_available()

    @classmethod
    def of_environment(cls) -> "TorchComm":
        """The worker that this process was started as; joins the others first, unless the program has done so."""
        has_joined = not dist.is_initialized()
        if has_joined:
            join_others(timeout_of_environment())
        vectors, values, timeout_s = joined_group()
        comm = cls(vectors, values, timeout_s, has_joined)
        if torch.cuda.is_available():
            comm._check_devices()
        return comm

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        if self._shared is not None and vector.device.type == "cpu":
            self._call(self._shared.all_reduce, vector, op)
        elif op == "tree":
            self._call(self._added_in_tree, vector)
        else:
            self._call(self._reduced, vector, op)

    def start(self, vector: Tensor, op: Op = "sum") -> Callable[[], object]:
        if self._shared is not None and vector.device.type == "cpu":
            return super().start(vector, op)
        pending: Any = self._call(self._group(vector).allreduce, [vector], self._options[op])
        return partial(self._call, pending.wait, since_s=time.monotonic())

    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        self._call(self._broadcast, vector, worker)

    def gather(self, value: Any) -> list[Any] | None:
        message = pack(value)
        if self.leader:
            return self._call(self._receive_all, message)
        self._call(self._send, message, 0)
        return None

    def share(self, value: Any = None) -> Any:
        return unpack(self._call(self._share, pack(value) if self.leader else None))

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        if not self.leader:
            return unpack(self._call(self._receive, 0))
        assert values is not None
        self._call(self._send_all, values)
        return unpack(pack(values[0]))

    def attempt(self, call: Callable[..., Result], *arguments: Any) -> Result:
        with self._explained(OSError, EOFError):
            return call(*arguments)

    def at(self, step: int, doing: str) -> None:
        status = self._heartbeat.status
        status.step, status.doing = step, doing

    def explain(self, error: Exception) -> Exception:
        return self._heartbeat.explain(error, 0.0)

    def report_error(self, error: BaseException) -> None:
        if isinstance(error, Exception):  # whoever was asked to end does not fail
            self._heartbeat.report(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._leave)
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._uncaught_before
        self._heartbeat.leave()
        if self._nudged_by is not None:
            signal.signal(self._nudged_by, signal.SIG_IGN)  # one may be on its way
        if self._shared is not None:
            self._shared.close()
        del self._vectors, self._values
        if self.has_joined and dist.is_initialized():
            dist.destroy_process_group()

    # --- calls that need the others

    def _on_one_host(self, timeout_s: float) -> Shared | None:
        with self._explained(OSError, ValueError, struct.error):  # another worker may be lost meanwhile
            return Shared.connect(self.shard, self.all_gather, timeout_s)

    @contextmanager
    def _explained(self, *errors: type[Exception], since_s: float | None = None) -> Iterator[None]:
        """Has these errors say which worker is their cause."""
        if self._heartbeat.reported is not None:
            raise self._heartbeat.reported_error()
        begun_s = time.monotonic() if since_s is None else since_s
        try:
            yield
        except torch.OutOfMemoryError:  # no loss of anybody, though it is a RuntimeError
            raise
        except errors as error:
            raise self._heartbeat.explain(error, time.monotonic() - begun_s) from error

    def _call(self, call: Callable[..., Result], *arguments: Any, since_s: float | None = None) -> Result:
        status = self._heartbeat.status
        status.calls += 1
        status.waiting = True
        try:
            with self._explained(RuntimeError, since_s=since_s):
                result = call(*arguments)
            status.met = status.step
            return result
        finally:
            status.waiting = False

    def _group(self, vector: Tensor) -> dist.ProcessGroup:
        """The network that carries such a vector: one of accelerators need not know what is on the host."""
        return self._values if vector.device.type == "cpu" else self._vectors

    def _reduced(self, vector: Tensor, op: Op) -> None:
        self._group(vector).allreduce([vector], self._options[op]).wait()

    def _added_in_tree(self, vector: Tensor) -> None:
        """Two and two workers exchange what they have; of a sum of two, the order does not matter."""
        group, theirs, distance = self._group(vector), torch.empty_like(vector), 1
        while distance < self.count:
            other = self.shard.index ^ distance
            calls = [partial(group.send, [vector], other, 0), partial(group.recv, [theirs], other, 0)]
            for pending in [call() for call in (calls if other > self.shard.index else reversed(calls))]:
                pending.wait()
            vector.add_(theirs)
            distance *= 2

    def _broadcast(self, vector: Tensor, worker: int = 0) -> None:
        self._group(vector).broadcast(vector, worker).wait()

    def _share(self, message: Tensor | None) -> Tensor:
        size = _size(message)
        self._broadcast(size)
        message = torch.empty(int(size), dtype=torch.uint8) if message is None else message
        self._broadcast(message)
        return message

    def _receive_all(self, message: Tensor) -> list[Any]:
        return [unpack(message), *(unpack(self._receive(worker)) for worker in range(1, self.count))]

    def _send_all(self, values: Sequence[Any]) -> None:
        for worker in range(1, self.count):
            self._send(pack(values[worker]), worker)

    def _receive(self, worker: int) -> Tensor:
        size = _size(None)
        self._values.recv([size], worker, 0).wait()
        message = torch.empty(int(size), dtype=torch.uint8)
        self._values.recv([message], worker, 0).wait()
        return message

    def _send(self, message: Tensor, worker: int) -> None:
        self._values.send([_size(message)], worker, 0).wait()
        self._values.send([message], worker, 0).wait()

    def _check_devices(self) -> None:
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        devices = self.all_gather(f"{device.name} {device.uuid} of {socket.gethostname()}")
        for worker, other in enumerate(devices):
            if (first := devices.index(other)) < worker:
                raise ConfigError(
                    f"workers {first} and {worker} have the same accelerator, {other}. Start no more workers than "
                    "there are accelerators, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
                )

    # --- the end

    def _nudge(self) -> None:
        """Interrupts the program by a signal, whose handler raises the reported error."""
        if self._nudged_by is not None:
            system.interrupt(self._nudged_by)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.report_error(error)
        self._uncaught_before(kind, error, trace)

    def _leave(self) -> None:
        """Closes the communicator at exit; after an error the process ends even if torch's threads wait for others."""
        if os.getpid() != self._process:  # a fork of the worker
            return
        self._heartbeat.leave()
        if self._heartbeat.reported is not None:
            faulthandler.dump_traceback_later(GRACE_S, exit=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        self.close()


def _can_be_nudged() -> bool:
    return (
        hasattr(signal, "SIGRTMIN")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(_NUDGE) in (signal.SIG_DFL, signal.SIG_IGN)
    )


def _options(op: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def _size(message: Tensor | None) -> Tensor:
    return torch.tensor([0 if message is None else len(message)])
