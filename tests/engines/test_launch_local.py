"""`launch` in this process: what it refuses, and what comes back."""

import functools
import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.engines.launch import launch
from headrace.engines.local import SimComm
from headrace.engines.network import Network
from headrace.errors import ConfigError, WorkerError
from headrace.workers.center import Center, HostWeights, Leases
from headrace.workers.comm import Comm
from headrace.workers.connection import CenterClient
from headrace.workers.here import here
from headrace.workers.synchronous import Synchronous


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads = threading.active_count()
    yield
    assert threading.active_count() == threads


def me() -> SimComm:
    comm = here()
    assert isinstance(comm, SimComm)
    return comm


def nothing() -> None:
    pass


# --- what cannot be --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "workers= is a whole number, 1 or more, got 0."),
        ({"workers": -2}, "workers= is a whole number"),
        ({"workers": True}, "workers= is a whole number"),
        ({"workers": 2.0}, "workers= is a whole number"),
        ({"workers": "4"}, "workers= is a whole number"),
        ({"engine": "process"}, "unknown engine 'process'. Did you mean 'processes'?"),
        ({"engine": "Ray"}, "Did you mean 'ray'?"),
        ({"engine": None}, "unknown engine None. Choose one of: local, processes, ray."),
        ({"nodes": 0}, "nodes= is a whole number"),
        ({"workers": 4, "nodes": 3, "engine": "ray"}, "4 workers for 3 nodes"),
        ({"workers": 4, "nodes": 2}, "nodes= is for engine='ray'; engine='local' simulates"),
        ({"workers": 4, "nodes": 2, "engine": "processes"}, "On several machines, start the script with torchrun"),
        ({"workers": 2, "devices": [0, 1]}, "devices= is for engine='processes'; engine='local' simulates"),
        ({"workers": 2, "address": "10.0.0.1:29500"}, "address= is for engine="),
        ({"devices": "cuda", "engine": "processes"}, "devices= lists the accelerators"),
        ({"devices": [0, 0], "engine": "processes"}, "each accelerator once"),
        ({"devices": [0], "workers": 2, "engine": "processes"}, "each of a node's 2 workers needs a device"),
        ({"devices": [-1], "engine": "processes"}, "a device in devices= is a whole number"),
        ({"restarts": -1}, "restarts= is a whole number, 0 or more"),
        ({"timeout_s": 0}, "timeout_s= is a number of seconds greater than 0"),
        ({"timeout_s": float("nan")}, "timeout_s="),
        ({"timeout_s": "10 s"}, "timeout_s="),
        ({"network": Network(), "engine": "processes"}, "network= is for engine='local'; engine='processes' starts"),
        ({"network": "100 Mbit", "workers": 2}, "network= is a headrace.Network, got a str."),
        ({"network": Network(speeds={5: 2}), "workers": 2}, "got worker 5"),
        ({"restarts": 1, "workers": 2}, "restarts= is for engine='processes' or 'ray'"),
    ],
)
def test_bad_arguments_are_said_before_anything_starts(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(nothing, **options)
    assert text in str(caught.value)


def test_a_main_that_is_no_function_is_an_error() -> None:
    with pytest.raises(ConfigError, match="launch calls a function in every worker, got 'train'"):
        launch("train", workers=2)  # type: ignore[arg-type]


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("headrace.engines.launch"), "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        launch(nothing, workers=2, engine="ray")
    assert str(caught.value) == "engine='ray' needs Ray, which is not installed: pip install \"headrace[ray]\""


MODEL = nn.Linear(2, 1)
OPTIMIZER: Any = None  # the test that uses it makes it: torch takes a second to make the first


def uses_a_global() -> None:
    MODEL(torch.ones(2))


def calls_what_uses_one() -> None:
    uses_a_global()


def by_default(model: nn.Module = MODEL) -> None:
    model(torch.ones(2))


def test_a_model_that_all_workers_would_share_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OPTIMIZER", torch.optim.SGD(MODEL.parameters(), lr=0.1))
    model = nn.Linear(2, 1)
    trainer = hr.Trainer(nn.Linear(2, 1), nn.MSELoss(), lambda params: torch.optim.SGD(params, lr=0.1))
    both = {"a": model}
    strategy, stop = Synchronous(), hr.EarlyStopping("val/loss", patience=2)
    reader = hr.Reader(hr.ArrayTable({"x": torch.ones(4, 2)}))
    mains = {
        "model": lambda: model(torch.ones(2)),
        "trainer": lambda: trainer.fit((torch.ones(4, 2), torch.ones(4, 1)), epochs=1),
        "both": lambda: both["a"](torch.ones(2)),
        "OPTIMIZER": lambda: OPTIMIZER.step(),
        "strategy": lambda: strategy.join(here()),
        "stop": lambda: [stop],
        "reader": lambda: reader.next_batch(2),
    }
    named = [*mains.items(), ("MODEL", uses_a_global), ("MODEL", calls_what_uses_one), ("model", by_default)]
    for name, main in named:
        with pytest.raises(ConfigError, match=rf"'{name}' \(.*pass it as an argument"):
            launch(main, workers=2)
        with pytest.raises(ConfigError, match=name):
            launch(functools.partial(main), workers=2)
    launch(lambda model: model(torch.ones(2)), model, workers=2)


def test_arguments_that_cannot_be_copied_are_refused() -> None:
    with pytest.raises(ConfigError, match="every virtual worker needs the arguments for itself"):
        launch(lambda lock: None, threading.Lock(), workers=2)


def test_a_worker_launches_no_others() -> None:
    with pytest.raises(ConfigError, match="cannot launch others"):
        launch(lambda: launch(nothing, workers=2), workers=2)
    with pytest.raises(ConfigError, match="cannot launch others"):
        launch(lambda: launch(nothing), workers=2)


def test_under_torchrun_a_launch_of_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="one of several workers already"):
        launch(nothing, workers=2)
    assert launch(lambda: 3) == 3


# --- what comes back -------------------------------------------------------------------------------------


def test_one_worker_is_a_plain_call() -> None:
    given = [1]
    assert launch(lambda numbers: numbers.append(2) or here().count, given) == 1
    assert given == [1, 2]


def test_the_value_is_worker_0s_and_arguments_are_every_workers_own() -> None:
    given = [10]

    def main(numbers: list[int]) -> list[int]:
        numbers.append(me().shard.index)
        me().all_reduce(torch.ones(1))
        return numbers

    assert launch(main, given, workers=3) == [10, 0]
    assert given == [10]


class Owner:
    def __init__(self) -> None:
        self.model = nn.Linear(2, 1, bias=False)

    def train(self, step: float) -> float:
        with torch.no_grad():
            self.model.weight += step * (me().shard.index + 1)
        me().all_reduce(self.model.weight.detach())
        return step


def test_models_get_the_weights_of_worker_0() -> None:
    model, owner = nn.Linear(2, 1), Owner()
    before, kept = model.weight.detach().clone(), model.weight

    def main(model: nn.Linear) -> None:
        with torch.no_grad():
            model.weight += me().shard.index + 1

    launch(main, model, workers=3)
    assert torch.equal(model.weight, before + 1)
    assert model.weight is kept
    before = owner.model.weight.detach().clone()
    assert launch(owner.train, 2.0, workers=3) == 2.0
    torch.testing.assert_close(owner.model.weight.detach(), 3 * before + 12)


class Extra(nn.Linear):
    """Has a state beside its tensors."""

    def __init__(self, extra: Any) -> None:
        super().__init__(2, 1)
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def learns(model: Extra) -> str:
    with torch.no_grad():
        model.weight.fill_(3.0)
    if isinstance(model.extra, dict):
        model.extra["seen"] = torch.tensor(7)
        model.extra["words"].append("new")
    return "done"


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error")
def test_models_get_the_extra_state_of_worker_0(engine: str) -> None:
    model = Extra({"seen": torch.tensor(1), "words": ["old"], "rate": 0.5})
    assert launch(learns, model, workers=2, engine=engine) == "done"
    assert model.extra == {"seen": torch.tensor(7), "words": ["old", "new"], "rate": 0.5}
    assert torch.equal(model.weight, torch.full((1, 2), 3.0))


def test_an_extra_state_that_cannot_be_sent_stays_as_it_was_with_a_warning() -> None:
    model = Extra(extra := {1, 2})
    with pytest.warns(UserWarning, match="the caller's model keeps its own '_extra_state', which cannot be sent"):
        assert launch(learns, model, workers=2) == "done"
    assert model.extra == extra
    assert torch.equal(model.weight, torch.full((1, 2), 3.0))


def test_after_an_error_the_callers_models_are_as_before() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()

    def main(model: nn.Linear) -> None:
        with torch.no_grad():
            model.weight += 1
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        launch(main, model, workers=3)
    assert torch.equal(model.weight, before)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_workers_stays_in_memory(fails: bool) -> None:
    copies: list[Any] = []

    def main(model: nn.Module) -> None:
        copies.append(weakref.ref(model))
        me().all_reduce(torch.ones(1))
        if fails and me().shard.index == 1:
            raise ValueError("late")
        me().all_reduce(torch.ones(1))

    if fails:
        with pytest.raises(ValueError, match="late"):
            launch(main, nn.Linear(2, 1), workers=4)
    else:
        launch(main, nn.Linear(2, 1), workers=4)
    gc.collect()
    assert [copy() for copy in copies] == [None] * 4


def test_the_same_launch_gives_the_same_bits() -> None:
    def main(model: nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        vector = torch.empty(sum(p.numel() for p in model.parameters()))
        for _ in range(5):
            optimizer.zero_grad()
            x = torch.randn(8, 4) + float(np.random.rand()) + random.random()
            model(x).square().mean().backward()
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None], out=vector)
            me().worked(8)
            me().all_reduce(vector)
            nn.utils.vector_to_parameters(
                nn.utils.parameters_to_vector(model.parameters()).detach() - 0.1 * vector, model.parameters()
            )
        return [me().now(), vector.sum().item()]

    network = Network(speeds=[1, 2, 0.5, 3, 1], stragglers={2: (0.5, 3.0)})
    results, weights = [], []
    for _ in range(2):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        results.append(launch(main, model, workers=5, network=network))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert results[0] == results[1]
    assert all(map(torch.equal, *weights))


# --- interrupts ------------------------------------------------------------------------------------------


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_while_another_worker_computes_ends_all() -> None:
    met: list[type] = []

    def main() -> None:
        try:
            if me().shard.index == 2:
                interrupt()
            while True:
                me().worked(1)
                me().all_reduce(torch.ones(1))
        except BaseException as error:
            met.append(type(error))
            raise

    with pytest.raises(KeyboardInterrupt):
        launch(main, workers=4)
    assert sorted(kind.__name__ for kind in met) == ["KeyboardInterrupt", "WorkerError", "WorkerError", "WorkerError"]


def test_ctrl_c_after_worker_0_has_returned_ends_all() -> None:
    def main() -> None:
        center, _ = center_of(me())
        if me().shard.index == 1:
            interrupt()
            end = time.monotonic() + 10
            while time.monotonic() < end:
                center.call("pull")
        if me().shard.index == 2:
            while True:
                center.call("pull")

    with pytest.raises(KeyboardInterrupt):
        launch(main, workers=3)


def test_a_second_ctrl_c_leaves_a_worker_that_hangs() -> None:
    go = threading.Event()

    def main() -> None:
        if me().shard.index == 1:
            interrupt()
            while not met:
                time.sleep(0.001)
            interrupt()
            go.wait(20)
        me().all_reduce(torch.ones(1))

    met: list[int] = []

    def heard(number: int, frame: Any) -> None:
        met.append(number)
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, heard)
    before = set(threading.enumerate())
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(main, workers=3)
    finally:
        signal.signal(signal.SIGINT, handler)
        go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


# --- the center ------------------------------------------------------------------------------------------

EPOCH, LEASE, BYTES = 60, 4, 1024


def add(center: list[torch.Tensor], worker: list[torch.Tensor]) -> None:
    """The center adds up what it is given."""
    center[0].add_(worker[0])


def center_of(comm: Comm) -> tuple[CenterClient, HostWeights]:
    weights = HostWeights({"w": torch.zeros(BYTES // 4)})
    leases = Leases(EPOCH, LEASE, EPOCH)
    center = Center(HostWeights(weights.named), leases, add, comm.count) if comm.leader else None
    return comm.open_center(center), weights


def train_by_leases(log: list[Any] | None = None) -> dict[str, Any]:
    """Leases rows, works on them, and gives the center a 1 for each row, until all are used."""
    comm = me()
    center, weights = center_of(comm)
    while not (answer := center.call("lease"))["over"]:
        if answer["rows"] is None:
            center.wait(answer)
            continue
        start, stop = answer["rows"]
        comm.worked(stop - start)
        weights.named["w"].fill_(stop - start)
        begun = comm.now()
        center.call("exchange", {"rows": stop - start, "used": [[start, stop]], "terms": {}}, weights)
        if log is not None:
            log.append((comm.shard.index, round(comm.now() - begun, 9)))
    samples = center.call("pull", weights=weights)["samples"]
    center.leave()
    return {"w": weights.named["w"][0].item(), "samples": samples}


def test_a_call_of_the_center_takes_the_way_there_and_back_except_in_worker_0_where_it_is() -> None:
    log: list[Any] = []
    network = Network(bandwidth="8.192 kbit", latency="100 ms", rows_per_s=1, speeds=[1, 0.1])
    launch(lambda: train_by_leases(log), workers=2, network=network)
    assert set(log) == {(0, 0.0), (1, 2.2)}, "1024 bytes there and back at 1024 bytes a second, 0.1 s latency each"


def test_messages_share_the_centers_link_in_the_order_in_which_they_come() -> None:
    log: list[Any] = []
    network = Network(bandwidth="8.192 kbit", latency="0 s", rows_per_s=1)
    launch(lambda: train_by_leases(log), workers=3, network=network)
    assert log[:3] == [(0, 0.0), (1, 2.0), (2, 3.0)]


def test_workers_of_all_speeds_use_every_row_once_and_always_in_the_same_order() -> None:
    logs = []
    for _ in range(2):
        log: list[Any] = []
        network = Network(
            bandwidth="1 Mbit", latency="1 ms", rows_per_s=10, speeds=[1, 2, 0.3, 5], stragglers={1: (0.3, 4)}
        )
        found = launch(lambda log=log: train_by_leases(log), workers=4, network=network)
        assert found["samples"] == found["w"] == EPOCH
        logs.append(log)
    assert logs[0] == logs[1]
    exchanges = [sum(who == worker for who, *_ in logs[0]) for worker in range(4)]
    assert exchanges[3] > max(exchanges[:2]) >= min(exchanges[:2]) > exchanges[2] > 0


def test_who_waits_for_rows_that_nobody_can_free_is_told() -> None:
    def main() -> None:
        center, _ = center_of(me())
        while not (answer := center.call("lease"))["over"]:
            if answer["rows"] is None:
                center.wait(answer)

    with pytest.raises(WorkerError, match=r"no worker can go on: worker 0 waits in center.wait"):
        launch(main, workers=2, network=Network())


def test_no_process_was_started() -> None:
    pid = launch(lambda: me().all_gather(os.getpid()), workers=3)
    assert pid == [os.getpid()] * 3
