"""What workers on Ray do in tests: functions of a module that their processes can import, and that needs no Ray."""

import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import headrace as hr
from headrace.engines.ray import cluster
from headrace.workers.center import LeaseTerms, NothingYet, Push, Rule, Vectors
from headrace.workers.heartbeat import read_status
from headrace.workers.here import here
from headrace.workers.torch_comm import TorchComm
from kit import worker_cases
from kit.sockets import listening

ROWS, LEASE, END = 40, 6, 100  # two epochs and a half
PUSH = 4  # rows
LONG_S, LIMIT_S = 300.0, 100.0

# --- workers that go in step ------------------------------------------------------------------------------


def talk_and_train(base: float, model: "Visits", strategy: hr.Strategy) -> dict[str, Any]:
    """Everything that workers can say together, what a worker finds around it, and a training."""
    comm = here()
    k, count = comm.shard.index, comm.count
    total, most = torch.full((2, 3), base + k), torch.tensor([k, -k])
    begun = comm.start(total)
    begun.wait()
    comm.all_reduce(most, "max")
    weights = torch.arange(4.0) * (k + 1)
    comm.broadcast(weights)
    return visit(model, strategy, 2) | {
        "total": total,
        "most": most.tolist(),
        "weights": weights,
        "gathered": comm.gather({"worker": k, "tensor": torch.tensor([k])}),
        "shared": comm.share("of worker 0" if comm.leader else None),
        "handed": comm.hand_out([f"for {j}" for j in range(count)] if comm.leader else None),
        "all": comm.all_gather([k, torch.rand(()).item(), random.random(), float(np.random.rand())]),
        "joined": dist.is_initialized(),
        "directory": os.getcwd(),
        "nice": comm.all_gather(os.nice(0)),
        "processes": comm.all_gather(os.getpid()),
        "listening": listening([*processes(os.environ["RAY_AUTH_TOKEN_PATH"]), os.getpid()]),
    }


def lose_one(model: "Visits", strategy: hr.Strategy, at: str) -> dict[str, Any]:
    """A training in whose second epoch, of three, worker 1 is lost; then trainings whose results are known."""
    found = visit(model, strategy, 3, f"{at}/run", at, {1: "lost"}, after=8)
    return found | {"subset": worker_cases.subset(f"{at}/subset", worker_cases.METRICS)}


def fail(at: str, kinds: Sequence[str]) -> None:
    """Worker 1 fails, while the others wait for it: each time that all begin in another way."""
    comm = here()
    kind = kinds[begin(at) - 1]
    comm.at(7, "training")
    if comm.shard.index == 1:
        if kind == "own":
            raise hr.ConfigError("worker 1 cannot have this.")
        until_heard(7)
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stops" else signal.SIGKILL)
    comm.all_reduce(torch.zeros(1))


# --- workers that meet at a center ------------------------------------------------------------------------


@dataclass(frozen=True)
class Add(Rule):
    """What workers bring is added: of what they have counted, the center counts everything that it applies."""

    def apply(self, center: Vectors, push: Push, staleness: int) -> Vectors:
        for name, vector in center.items():
            vector.add_(push.vectors[name])
        return center


def asynchronous(every: str = "2 steps") -> hr.Strategy:
    """Whatever a worker brings is taken as it is."""
    return hr.Asynchronous(every=every, staleness=1000, down_weight=False, lease=16)


def count_and_train(model: "Visits", strategy: hr.Strategy, run: str | None = None) -> list[dict[str, Any]]:
    """Two trainings, one after the other, at one center."""
    return [count(together=True), visit(model, strategy, 3, run)]


def meet(model: "Visits", other: "Visits", run: str) -> list[dict[str, Any]]:
    """Three trainings; nothing among the arguments says that they need a center."""
    return [*count_and_train(model, asynchronous("1 step"), run), visit(other, hr.Elastic("2 steps"), 2)]


Faults = Mapping[int | str, str]
"""What happens to a worker, in its first life: by its number, or by the machine that one of them is on."""


def count(
    strategy: hr.Strategy | None = None, at: str = "", faults: Faults | None = None, together: bool = False
) -> dict[str, Any]:
    """Counts every position that is leased, and brings the counts. Nobody goes on before all faults have happened:
    one is "lost", "stops", or "stays" where it is until its machine goes.

    The strategy is not asked for anything: it says that there is to be a center. `together`: nobody brings anything
    before each has rows.
    """
    comm = here()
    center = comm.center
    if faults:
        begin(at)
    zero = {"seen": torch.zeros(END), "other": torch.zeros(3, 2, dtype=torch.float64)}
    reply = center.join(Add(), LeaseTerms(ROWS, LEASE, END), zero)
    first = reply.samples
    sequence, mine = 0, 0
    while (lease := center.lease()) is not None:
        if isinstance(lease, NothingYet):
            center.wait(lease)
            continue
        if together and sequence == 0:
            comm.all_gather(None)
        for start in range(lease.start, lease.stop, PUSH):
            stop = min(start + PUSH, lease.stop)
            comm.at(sequence, "training")
            sequence += 1
            push = Push(sequence, reply.version, {k: v.clone() for k, v in zero.items()}, stop - start)
            push.vectors["seen"][start:stop] += 1
            push.done = [(lease.id, start, stop)]
            reply = center.exchange(push)
            mine += (stop - start) * reply.taken
            if faults and sequence == 3:
                fault = _due(at, faults)
                if fault == "stays":
                    time.sleep(LONG_S)  # until its machine goes
                if fault:
                    until_heard(2)
                    os.kill(os.getpid(), signal.SIGSTOP if fault == "stops" else signal.SIGKILL)
                wait_for_all(at, faults)
    found = center.pull()
    center.leave()
    every = comm.all_gather([mine, first, os.getpid()])
    return {
        "seen": found.vectors["seen"],
        "samples": found.samples,
        "epochs": found.epochs,
        "every": every,
        "status": center.status(),
    }


def killed(at: Path) -> Any:
    """A kind of center that is killed four times: in each training once a push has been applied of which nothing is
    saved, in the first one also when a push has been saved, both before anybody hears of it; and between the two.

    A class of a function is sent as it is: its process begins before it knows where our modules are.
    """
    from headrace.engines.ray.center import CenterActor

    def due(what: str) -> bool:
        try:
            (at / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    class Killed(CenterActor):
        def call(self, worker: int, life: int, training: int, rule: Any, name: str, message: Any) -> Any:
            reply = super().call(worker, life, training, rule, name, message)
            if name == "exchange" and self._state.version >= 7:
                if due(f"applied in {self._state.training}"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if due("saved"):
                    self._save(at_once=True)
                    os.kill(os.getpid(), signal.SIGKILL)
            if name == "leave" and self._state.training == 1 and not self._state.members.inside() and due("between"):
                os.kill(os.getpid(), signal.SIGKILL)
            return reply

        def _save_changes(self, at_once: bool) -> None:
            if at_once or (at / f"applied in {self._state.training}").exists():  # else nothing would be lost, rightly
                super()._save_changes(at_once)

    return Killed


# --- trainings --------------------------------------------------------------------------------------------


class Visits(torch.nn.Module):
    """Its weights count how often each row has been trained with: every update adds 1 to those of its batch.

    That is what SGD with the rate 1 does for the sum of absolute errors, all of which are far too small.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(rows))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return self.seen[row]


def visit(
    model: Visits,
    strategy: hr.Strategy,
    epochs: int,
    run: str | None = None,
    at: str = "",
    faults: Faults | None = None,
    after: int = 3,
) -> dict[str, Any]:
    """Trains: every row is to be visited once an epoch, whoever does it.

    `faults`: workers are "lost", or one "fails", `after` so many updates of their first lives. At a center everybody
    waits for that: the others would train with all the rows while one starts.
    """
    me, centered = here().shard.index, strategy.centered
    if faults:
        begin(at)
    trainer, data = _training(model, strategy)
    for updates, _ in enumerate(trainer.steps(data, epochs=epochs, run=run, progress=False), 1):
        if faults and updates == after:
            fault = _due(at, faults)
            if fault == "fails":
                raise ZeroDivisionError("in the user's code")
            if fault == "lost":
                os.kill(os.getpid(), signal.SIGKILL)
            if centered:
                wait_for_all(at, faults)
    history = trainer.history
    if not faults:
        here().all_gather(me)  # one may have done the work of all, who have yet to hear of it
    status = here().center.status() if centered else {}
    last = {name: history[-1][name] for name in ("epoch", "samples")}
    return last | {"epochs": len(history), "count": here().count, "status": status}


def stay_behind(model: Visits, strategy: hr.Strategy, epochs: int, run: str, at: str) -> None:
    """Worker 0 stops, and saves, while others have rows that they never train with: 1 is lost, 2 goes on for long."""
    me = here().shard.index
    trainer, data = _training(model, strategy)
    for _ in trainer.steps(data, epochs=epochs, run=run, progress=False):
        (Path(at) / f"in-{me}").write_text(str(os.getpid()))
        if me == 1:
            wait_for(Path(at) / "left")
            os.kill(os.getpid(), signal.SIGKILL)
        if me == 2:
            time.sleep(LONG_S)
        wait_for(Path(at) / "in-1")
        wait_for(Path(at) / "in-2")
        break
    (Path(at) / "left").touch()


def _training(model: Visits, strategy: hr.Strategy) -> tuple[hr.Trainer, tuple[torch.Tensor, torch.Tensor]]:
    rows = len(model.seen)
    trainer = hr.Trainer(model, hr.L1(reduce="sum"), partial(torch.optim.SGD, lr=1.0), batch_size=8, strategy=strategy)
    return trainer, (torch.arange(rows), torch.full((rows,), 1e6))


# --- who has come how far ---------------------------------------------------------------------------------


def begin(at: str) -> int:
    """How often this worker has begun, of which it leaves a note in a directory."""
    with (Path(at) / f"begun-{here().shard.index}").open("a+") as file:
        file.write(".")
        return file.tell()


def _due(at: str, faults: Faults) -> str:
    """What is to happen to this worker now, unless it has happened before."""
    keys: list[int | str] = [here().shard.index]
    if any(isinstance(key, str) for key in faults):
        keys.append(machine())
    for key in keys:
        if key in faults:
            try:
                (Path(at) / f"fault-{key}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return faults[key]
    return ""


def wait_for_all(at: str, faults: Faults) -> None:
    """Until all faults have happened."""
    for key in faults:
        wait_for(Path(at) / f"fault-{key}")


def wait_for(file: Path) -> bool:
    return wait_until(file.exists)


def wait_until(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether it was so within a limit."""
    end = time.monotonic() + limit_s
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def until_heard(step: int) -> None:
    """Until the others can know at which step this life of a worker is."""
    comm: Any = here()
    pulse = comm._heartbeat if isinstance(comm, TorchComm) else comm._status
    wait_until(lambda: read_status(pulse._store, comm.shard.index).step == step)


def machine() -> str:
    """On which this process is, as Ray knows it."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


# --- what is around ---------------------------------------------------------------------------------------


@contextmanager
def machines(count: int) -> Iterator[tuple[Any, Any]]:
    """A cluster of several machines, as far as Ray can tell, and the last of them; it has room for four workers."""
    import ray
    from ray.cluster_utils import Cluster

    with ExitStack() as stack:
        stack.enter_context(
            cluster.environment({"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
        )
        stack.enter_context(cluster._loopback(ray))
        cluster._read_again()
        at = stack.enter_context(TemporaryDirectory(prefix="hr-", dir="/tmp", ignore_cleanup_errors=True))
        head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": f"{at}/ray"}
        Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address of any cluster, wherever that has its files
        found = Cluster(initialize_head=True, head_node_args=head)
        stack.callback(found.shutdown)
        others = [found.add_node(num_cpus=2) for _ in range(count - 1)]
        found.wait_for_nodes()
        yield found, others[-1]


def lose_a_machine(at: str) -> dict[str, Any]:
    """Of two machines one goes while a worker is there: what the workers have counted, and what was warned of."""
    with machines(2) as (all_of_them, second), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        faults: Faults = {second.node_id: "stays"}
        gone = threading.Thread(target=_remove, args=(all_of_them, second, Path(at) / f"fault-{second.node_id}"))
        gone.start()
        options = {"workers": 2, "nodes": 2, "address": all_of_them.address, "restarts": 1, "timeout_s": LIMIT_S}
        found = hr.launch(count, hr.Elastic(), at, faults, engine="ray", **options)
        gone.join()
    whole = bool((found["seen"] == 1).all()) and found["samples"] == END
    return {"whole": whole, "warned": "\n".join(str(each.message) for each in caught)}


def _remove(all_of_them: Any, machine: Any, told: Path) -> None:
    """Takes a machine away as soon as a worker has said that it is there."""
    wait_for(told)
    all_of_them.remove_node(machine, allow_graceful=False)


def wait_to_be_seen(at: str, strategy: hr.Strategy | None = None) -> None:
    """Both workers have begun, and go on for long."""
    here().share()
    (Path(at) / "scratch").write_text(str(Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent))
    (Path(at) / "seen").touch()
    time.sleep(LONG_S)


def processes(mark: str) -> list[int]:
    """All processes, this one excepted, whose environment has a text in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found
