"""The engine of virtual workers, which run in this process, one at a time, in virtual time."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..data.shard import Shard
from ..data.source import Source
from ..errors import ConfigError
from ..watch.callback import Callback
from ..workers.center import Body, Center, HostWeights
from ..workers.comm import Comm, Op
from ..workers.connection import CenterClient
from ..workers.here import use_comm
from ..workers.strategy import Strategy
from ..workers.wire import pack
from .job import Job, Result, models_of, work
from .network import Network, broadcast_from
from .virtual_cluster import VirtualCluster


class SimComm(Comm):
    """The communicator of a virtual worker."""

    def __init__(self, cluster: VirtualCluster, worker: int) -> None:
        self.cluster, self._worker = cluster, worker
        self.shard = Shard(worker, cluster.count)
        self.timeout_s = cluster.timeout_s
        self.turns = cluster.turns

    def open_center(self, center: Center | None) -> CenterClient:
        if center is not None:
            self.cluster.center = center
        client = SimCenter(self.cluster, self._worker)
        self.share()  # nobody calls it before worker 0 has given it
        return client

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        self.start(vector, op)()

    def start(self, vector: Tensor, op: Op = "sum") -> Callable[[], object]:
        return self._begin(op, vector)

    def broadcast(self, vector: Tensor, worker: int = 0) -> None:
        self._begin(broadcast_from(worker), vector)()

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = self._exchange("gather", pack(value))
        return values

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = self._exchange("all_gather", pack(value))
        return values

    def share(self, value: Any = None) -> Any:
        return self._exchange("share", pack(value) if self.leader else None)

    def hand_out(self, values: Sequence[Any] | None = None) -> Any:
        if self.leader and (values is None or len(values) != self.count):
            got = "none" if values is None else len(values)
            raise ConfigError(f"worker 0 hands out one value for each of the {self.count} workers, got {got}.")
        return self._exchange("hand_out", [*map(pack, values or ())])

    def worked(self, rows: int) -> None:
        self.cluster.worked(self._worker, rows)

    def now(self) -> float:
        return self.cluster.baton.now[self._worker]

    def at(self, step: int, doing: str) -> None:
        self.cluster.at(self._worker, step, doing)

    def report_error(self, error: BaseException) -> None:
        self.cluster.report_error(self._worker, error)

    def _begin(self, kind: str, vector: Tensor) -> Callable[[], object]:
        like = (vector.shape, vector.dtype, vector.device)
        collective = self.cluster.begin(self._worker, kind, like, vector.detach())
        return functools.partial(self.cluster.wait, self._worker, collective)

    def _exchange(self, kind: str, packed: Any) -> Any:
        return self.cluster.wait(self._worker, self.cluster.begin(self._worker, kind, (), packed))


class SimCenter(CenterClient):
    """The client of a virtual center. Each call is a message and a reply, which share the center's link with others.

    Worker 0, which has the center, sends no message. Whoever else waits here is between two updates, and is saved with
    the time at which its call began: it makes the call again after a resume, and so finds what it would have found.
    """

    def __init__(self, cluster: VirtualCluster, worker: int) -> None:
        self._cluster, self._worker = cluster, worker
        self._began_s: float | None = None  # the call under way
        self._free_s: float | None = None  # when the link was free before this worker's message
        self._seen, self._waits = 0, False
        self._state: Callable[[], Any] = dict
        self._saved_clock: Body = {}
        cluster.clients[worker] = self

    def call(self, name: str, body: Body | None = None, weights: HostWeights | None = None) -> Body:
        cluster, worker = self._cluster, self._worker
        if self._waits and worker:  # after a resume
            self.wait({})
        center: Center = cluster.center
        begun, latency = cluster.baton.now[worker], 0.0 if worker == 0 else cluster.network.latency_s
        size = weights.flat.nbytes if weights is not None and worker else 0
        sent, back = size if name == "exchange" else 0, size
        cluster.check(worker)
        self._began_s = begun
        cluster.until(worker, begun + latency)
        if sent:
            self._free_s = cluster.inward.free_s
            cluster.until(worker, cluster.inward.through(begun + latency, sent))
        now = cluster.baton.now[worker]
        answer = center.serve(worker, name, body or {}, weights)
        if name in ("exchange", "stop", "leave"):
            cluster.changed(now)
        self._seen = cluster.changes
        done = (cluster.outward.through(now, back) if back else now) + latency
        cluster.accounts[worker].sent_bytes += sent
        cluster.accounts[worker].communicating_s += done - begun
        cluster.baton.now[worker] = done
        self._began_s = self._free_s = None
        return answer

    def wait(self, answer: Body) -> None:
        self._waits = True
        self._cluster.wait_for_change(self._worker, self._seen)
        self._waits = False

    def leave(self) -> None:
        self.call("leave")

    def begin(self, state: Callable[[], Any], clock: Mapping[str, Any]) -> None:
        self._state = state
        self._saved_clock = dict(clock) if len(clock.get("now", [])) == self._cluster.count else {}

    def gather_states(self, own: Any) -> list[Any]:
        cluster = self._cluster
        others = [cluster.clients[worker] for worker in range(1, cluster.count)]
        return [own, *(cluster.baton.standing_in(other._worker, other._state) for other in others)]

    def clock(self) -> Body:
        if self._saved_clock:  # nothing has happened since
            return self._saved_clock
        cluster = self._cluster
        clients = [cluster.clients[worker] for worker in range(cluster.count)]
        begun = [
            now if (at := client._began_s) is None else at
            for client, now in zip(clients, cluster.baton.now, strict=True)
        ]
        return {
            "now": begun,
            "waits": [client._waits for client in clients],
            "links": [
                min([cluster.inward.free_s, *(client._free_s for client in clients if client._free_s is not None)]),
                cluster.outward.free_s,
            ],
        }

    def restore_clock(self) -> None:
        cluster, clock = self._cluster, self._saved_clock
        self._saved_clock = {}
        if not clock or not cluster.meet_at_start(self._worker):
            return
        cluster.inward.free_s, cluster.outward.free_s = clock["links"]
        for other in range(cluster.count):
            client: SimCenter = cluster.clients[other]
            client._waits, client._seen = clock["waits"][other], cluster.changes
            cluster.baton.now[other] = clock["now"][other]
            if other:
                cluster.baton.due(other, clock["now"][other])
        cluster.until(0, clock["now"][0])


def run(job: Job) -> Result:
    """Runs the job's workers to their end."""
    _must_be_copied(job.main)
    cluster = VirtualCluster(job.workers, job.network or Network(), job.timeout_s)

    def live(worker: int) -> Result:
        with use_comm(SimComm(cluster, worker)):
            try:
                main, arguments = copy.deepcopy((job.main, tuple(job.arguments)))
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
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    named = [(name, parameter.default) for name, parameter in parameters.items()]
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
