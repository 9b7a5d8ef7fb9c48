"""The engine of virtual workers, which run in this process, one at a time, in virtual time."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..data.shard import Shard
from ..data.source import Source
from ..errors import ConfigError
from ..watch.callback import Callback
from ..workers.center import Center, NothingYet, Push, Reply
from ..workers.center_state import CenterState
from ..workers.comm import Comm, Op, Pending
from ..workers.here import use_comm
from ..workers.strategy import Strategy
from .job import Job, Result, models_of, own, work
from .network import Collective, Network, Packed, broadcast_from
from .virtual_cluster import VirtualCluster


class SimComm(Comm):
    """The communicator of a virtual worker."""

    def __init__(self, cluster: VirtualCluster, worker: int) -> None:
        self.cluster, self._worker = cluster, worker
        self.shard = Shard(worker, cluster.count)
        self._center: SimCenter | None = None

    @property
    def memory(self) -> dict[int, list[Tensor]]:
        return self.cluster.memory

    @property
    def center(self) -> Center:
        self._center = self._center or SimCenter(self.cluster, self._worker)
        return self._center

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        self.start(vector, op).wait()

    def start(self, vector: Tensor, op: Op = "sum") -> Pending:
        return self._begin(op, vector)

    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        self._begin(broadcast_from(worker), vector).wait()

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
        self.cluster.worked(self._worker, rows)

    def now(self) -> float:
        return self.cluster.baton.now[self._worker]

    def at(self, step: int, doing: str) -> None:
        self.cluster.at(self._worker, step, doing)

    def report_error(self, error: BaseException) -> None:
        self.cluster.report_error(self._worker, error)

    def _begin(self, kind: str, vector: Tensor) -> "_SimReduction":
        like = (vector.shape, vector.dtype, vector.device)
        return _SimReduction(self.cluster, self._worker, self.cluster.begin(self._worker, kind, like, vector.detach()))

    def _exchange(self, kind: str, packed: Any) -> Any:
        return self.cluster.wait(self._worker, self.cluster.begin(self._worker, kind, (), packed))


class _SimReduction:
    """A reduction that others have still to join, or that takes its time."""

    def __init__(self, cluster: VirtualCluster, worker: int, collective: Collective) -> None:
        self._cluster, self._worker, self._collective = cluster, worker, collective

    def wait(self) -> None:
        self._cluster.wait(self._worker, self._collective)


class SimCenter(Center):
    """The client of a virtual center. Each call is a message and a reply, which share the center's link with others."""

    def __init__(self, cluster: VirtualCluster, worker: int) -> None:
        super().__init__(worker)
        cluster.held = cluster.held or CenterState(
            timeout_s=inf
        )  # who is dead is known, and nobody else is ever silent
        self._held: CenterState = cluster.held
        self._cluster = cluster
        self._seen = 0

    def call(self, name: str, *given: Any) -> Any:
        cluster, worker = self._cluster, self.worker
        if name == "state_dict":  # at no time: who saves changes nothing of what comes
            return _own(self._held.state_dict())
        changes = name in ("join", "exchange", "ask_to_stop", "load_state_dict")
        if name == "join":
            cluster.centers[worker] = partial(self._held.leave, worker)
        elif name == "leave":
            known = self._held.status(0.0)["workers"].get(worker)
            changes = bool(known and known["inside"])
        found = self._send(lambda now: self._held.serve(worker, now, name, *given), _size(given), changes)
        if name == "leave" or (name == "join" and found is None):
            cluster.centers.pop(worker, None)
        return found

    def wait(self, why: NothingYet) -> None:
        self._cluster.wait_for_change(self.worker, self._seen)

    def _send(self, serve: Callable[[float], Any], sent: int, changes: bool) -> Any:
        """Sends so many bytes, is served when they have come, and gets a reply; without tensors it skips the link."""
        cluster, worker = self._cluster, self.worker
        begun, latency = cluster.baton.now[worker], cluster.network.latency_s
        cluster.check(worker)
        cluster.until(worker, begun + latency)
        if sent:
            cluster.until(worker, cluster.inward.through(begun + latency, sent))
        now = cluster.baton.now[worker]
        found = _own(serve(now))
        if changes and not isinstance(found, NothingYet):
            cluster.changed(now)
        self._seen = cluster.changes
        back = _size(found)
        done = (cluster.outward.through(now, back) if back else now) + latency
        cluster.accounts[worker].sent_bytes += sent
        cluster.accounts[worker].communicating_s += done - begun
        cluster.go_on(worker, done)
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


def run(job: Job) -> Result:
    """Runs the job's workers to their end."""
    _must_be_copied(job.main)
    cluster = VirtualCluster(job.workers, job.network or Network(), job.timeout_s)

    def live(worker: int) -> Result:
        with use_comm(SimComm(cluster, worker)):
            try:
                main, arguments = own(job.main, job.arguments)
            except Exception as error:
                raise ConfigError(
                    f"every virtual worker needs the arguments for itself, and they cannot be copied: {error}. "
                    "Pass what can be, and make the rest in the function."
                ) from error
            return work(main, arguments)

    result: Result = cluster.run(live)[0]
    return result


def _must_be_copied(main: Callable[..., Any]) -> None:
    """What the function finds by itself is the same object for all workers."""
    for name, value in _found_by(main, set()):
        if isinstance(value, ModuleType | type):
            continue
        if isinstance(value, Optimizer | Strategy | Callback | Source) or models_of(value, [value]):
            raise ConfigError(
                f"{name!r} ({type(value).__name__}) would be shared by all workers, and each needs its own: "
                f"pass it as an argument, launch(main, {name}, ...), or make it in the function."
            )


def _found_by(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What a function refers to without being given it, by name; functions of the same file are looked into."""
    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    defaults = function.__defaults__ or ()
    named = list(
        zip(function.__code__.co_varnames[function.__code__.co_argcount - len(defaults) :], defaults, strict=False)
    )
    named += list((function.__kwdefaults__ or {}).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            named.append((name, cell.cell_contents))
        except ValueError:  # not yet there
            continue
    named += [(name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__]
    for name, value in named:
        yield name, value
        if isinstance(value, Mapping | list | tuple):
            items = value.values() if isinstance(value, Mapping) else value
            yield from ((name, item) for item in items)
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            yield from _found_by(value, seen)
