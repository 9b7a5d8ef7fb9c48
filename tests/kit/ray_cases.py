"""What workers on Ray do in tests: functions of a module that their processes can import."""

import copy
import json
import os
import random
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist

from headrace import L1, Trainer
from headrace.comm import here
from headrace.comm.center import Push, Rule, Terms, Vectors, Wait
from headrace.engine import launch
from headrace.engine.job import Job
from headrace.engine.ray import cluster
from headrace.engine.ray.center import Kept
from headrace.errors import ConfigError
from headrace.strategy import Elastic, Strategy

ROWS, LEASE, END = 40, 6, 100  # two epochs and a half
PUSH = 4  # rows
LONG_S, LIMIT_S = 300.0, 60.0

# --- workers that go in step ------------------------------------------------------------------------------


def talk_and_train(base: float, model: "Visits", strategy: Strategy) -> dict[str, Any]:
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
        "listening": listening(os.environ["RAY_AUTH_TOKEN_PATH"]),
    }


def fail(kind: str) -> None:
    """Worker 1 fails, while the others wait for it."""
    comm = here()
    comm.at(7, "training")
    if comm.shard.index == 1:
        if kind == "own":
            raise ConfigError("worker 1 cannot have this.")
        if kind == "theirs":
            raise ZeroDivisionError("in the user's code")
        if kind == "exit":
            raise SystemExit(3)
        time.sleep(1.0)  # a heart has to beat, or nobody knows its step
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
    comm.all_reduce(torch.zeros(1))


def fail_until(attempts: int, at: str) -> list[int]:
    """Worker 1 is killed so often; then how often each worker has begun."""
    comm = here()
    mine = Path(at) / f"begun-{comm.shard.index}"
    with mine.open("a") as file:
        file.write(".")
    begun = len(mine.read_text())
    comm.all_reduce(torch.zeros(1))
    if comm.shard.index == 1 and begun <= attempts:
        os.kill(os.getpid(), signal.SIGKILL)
    return comm.all_gather(begun)


# --- workers that meet at a center ------------------------------------------------------------------------


@dataclass(frozen=True)
class Add(Rule):
    """What workers bring is added: of what they have counted, the center counts everything that it applies."""

    def meet(self, center: Vectors, push: Push, staleness: int) -> Vectors:
        for name, vector in center.items():
            vector.add_(push.vectors[name])
        return center


def count_and_train(model: "Visits", strategy: Strategy) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two trainings, one after the other, at one center."""
    return count(together=True), visit(model, strategy, 3)


def count(
    strategy: Elastic | None = None, at: str = "", fault: str = "", of: int = 1, together: bool = False
) -> dict[str, Any]:
    """Counts every position that is leased, and brings the counts; worker `of` has a fault, in its first life.

    The strategy is not asked for anything: it says that there is to be a center. `together`: nobody brings anything
    before each has rows.
    """
    comm = here()
    center, me = comm.center, comm.shard.index
    zero = {"seen": torch.zeros(END), "other": torch.zeros(3, 2, dtype=torch.float64)}
    reply = center.join(Add(), Terms(ROWS, LEASE, END), zero)
    first = reply.samples
    sequence, mine = 0, 0
    faulty = fault == f"on {ray.get_runtime_context().get_node_id()}" if fault.startswith("on") else me == of
    while (lease := center.lease()) is not None:
        if isinstance(lease, Wait):
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
            if fault == "before" and faulty and sequence == 3 and only_once(at):
                os.kill(os.getpid(), signal.SIGKILL)
            reply = center.meet(push)
            mine += (stop - start) * reply.taken
            if fault and not faulty and sequence == 3:
                wait_for_fault(at)
            if fault.startswith("on") and faulty and sequence == 3 and only_once(at):
                (Path(at) / "on").touch()
                time.sleep(LONG_S)  # until its machine goes
            if fault in ("after", "stop", "raise") and faulty and sequence == 3 and only_once(at):
                if fault == "raise":
                    raise ZeroDivisionError("in the user's code")
                time.sleep(1.1)  # its heart beats once more
                os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
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


def wait_to_be_seen(at: str) -> None:
    """Both workers have begun, and go on for long."""
    here().share()
    (Path(at) / "scratch").write_text(str(Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent))
    (Path(at) / "seen").touch()
    time.sleep(LONG_S)


def only_once(at: str) -> bool:
    """Whether nobody has asked before; `at` is a directory."""
    try:
        os.close(os.open(Path(at) / "fault", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_for_fault(at: str) -> None:
    """Until somebody has asked whether nobody has asked before."""
    wait_for(Path(at) / "fault")


def wait_for(file: Path) -> None:
    limit = time.monotonic() + LIMIT_S
    while not file.exists() and time.monotonic() < limit:
        time.sleep(0.05)


class KilledAfterApplying(Kept):
    """A center that is killed once a push has been applied, before anybody hears of it."""

    saves = False

    def _meet(self, worker: int, message: Any) -> Any:
        reply = super()._meet(worker, message)
        behind = self.saves or self._saved < self._held.version - 3  # else nothing is lost with it, rightly
        if self._held.version >= 7 and behind and only_once(str(self._store.path.parent)):
            if self.saves:
                self._save(at_once=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return reply


class KilledAfterTheFirst(Kept):
    """A center that is killed once both workers have left the first training."""

    def _leave(self, worker: int) -> None:
        super()._leave(worker)
        if self._held.training == 1 and not self._held.inside and only_once(str(self._store.path.parent)):
            os.kill(os.getpid(), signal.SIGKILL)


class KilledAfterSaving(KilledAfterApplying):
    """As that one, when the push that nobody hears of has been saved."""

    saves = True


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
    strategy: Strategy,
    epochs: int,
    run: str | None = None,
    killed: tuple[int, int, str] | None = None,
    fault: str = "dies",
) -> dict[str, Any]:
    """Trains: every row is to be visited once an epoch, whoever does it.

    `killed`: this worker dies of SIGKILL, or "raises", after so many of its updates, once; and a directory to remember
    it. At a center the others wait for that: they would train with all the rows while it starts.
    """
    rows, me = len(model.seen), here().shard.index
    trainer = Trainer(model, L1(reduce="sum"), partial(torch.optim.SGD, lr=1.0), batch_size=8, strategy=strategy)
    data = torch.arange(rows), torch.full((rows,), 1e6)
    for info in trainer.steps(data, epochs=epochs, run=run, progress=False):
        if killed is not None and (me, info.step) == killed[:2] and only_once(killed[2]):
            if fault == "raises":
                raise ZeroDivisionError("in the user's code")
            os.kill(os.getpid(), signal.SIGKILL)
        if killed is not None and strategy.centered and me != killed[0] and info.step == killed[1]:
            wait_for_fault(killed[2])
    history = trainer.history
    if killed is None:
        here().all_gather(me)  # one may have done the work of all, who have yet to hear of it
    status = here().center.status() if strategy.centered else {}
    last = {name: history[-1][name] for name in ("epoch", "samples")}
    return last | {"epochs": len(history), "count": here().count, "status": status}


def visit_twice(one: Visits, two: Visits, strategy: Strategy, epochs: int) -> list[dict[str, Any]]:
    """Two trainings that differ in nothing but the model's values."""
    return [visit(model, copy.deepcopy(strategy), epochs) for model in (one, two)]


def stay_behind(model: Visits, strategy: Strategy, run: str, at: str) -> None:
    """Worker 0 stops, and saves, while worker 1 has rows that it never trains with."""
    rows = len(model.seen)
    trainer = Trainer(model, L1(reduce="sum"), partial(torch.optim.SGD, lr=1.0), batch_size=8, strategy=strategy)
    data = torch.arange(rows), torch.full((rows,), 1e6)
    for _ in trainer.steps(data, epochs=1, run=run, progress=False):
        if not here().leader:
            (Path(at) / "fault").touch()
            wait_for(Path(at) / "left")
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_fault(at)
        break
    (Path(at) / "left").touch()


# --- what is around ---------------------------------------------------------------------------------------


@contextmanager
def local_cluster(workers: int = 3) -> Iterator[cluster.Cluster]:
    """A cluster of our own, for several jobs; nothing of it is left."""
    with ExitStack() as stack:
        stack.enter_context(cluster.environment({"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}))
        found = stack.enter_context(cluster.joined(Job(print, workers=workers)))
        token = os.environ["RAY_AUTH_TOKEN_PATH"]
        yield found
    assert not found.scratch.exists()
    assert processes(token) == []
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


@contextmanager
def machines(count: int) -> Iterator[tuple[Any, Any]]:
    """A cluster of several machines, as far as Ray can tell, and the last of them; it has room for four workers."""
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


def lose_a_machine(at: str) -> None:
    """A program of its own: of two machines one goes while a worker is there."""
    with machines(2) as (all_of_them, second), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gone = threading.Thread(target=_remove, args=(all_of_them, second, Path(at) / "on"))
        gone.start()
        options = {"workers": 2, "nodes": 2, "address": all_of_them.address, "restarts": 1, "timeout_s": 100.0}
        found = launch(count, Elastic(), at, f"on {second.node_id}", engine="ray", **options)
        gone.join()
    whole = bool((found["seen"] == 1).all()) and found["samples"] == END
    said = {"whole": whole, "warned": "\n".join(str(each.message) for each in caught)}
    (Path(at) / "found").write_text(json.dumps(said))


def _remove(all_of_them: Any, machine: Any, told: Path) -> None:
    """Takes a machine away as soon as a worker has said that it is there."""
    end = time.monotonic() + LONG_S
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.05)
    all_of_them.remove_node(machine, allow_graceful=False)


def launch_and_wait(at: str) -> None:
    """A program of its own, to be ended."""
    launch(wait_to_be_seen, at, workers=2, engine="ray")


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


def listening(mark: str) -> list[str]:
    """Where processes with a text in their environment, and this one, listen: addresses as the kernel writes them."""
    sockets = {}
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[fields[9]] = fields[1].partition(":")[0]
    found = set()
    for process in [*processes(mark), os.getpid()]:
        for path in Path(f"/proc/{process}/fd").glob("*"):
            try:
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path))
            except OSError:
                continue
            if match and match[1] in sockets:
                found.add(sockets[match[1]])
    return sorted(found)
