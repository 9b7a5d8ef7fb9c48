"""`launch`: what it refuses, what comes back, and what interrupts it."""

import functools
import gc
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.engines import processes
from headrace.engines.job import Job
from headrace.engines.launch import launch
from headrace.engines.network import Network
from headrace.errors import ConfigError
from headrace.workers.here import here
from headrace.workers.synchronous import Synchronous


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:  # one of a worker may be about to end
        thread.join(60)
        assert not thread.is_alive()


def nothing() -> None:
    pass


# --- what is refused --------------------------------------------------------------------------------------

ON_PROCESSES = {"engine": "processes"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 0}, "workers= is a whole number, 1 or more, got 0."),
        ({"workers": True}, "workers= is a whole number"),
        ({"engine": "process"}, "unknown engine 'process'. Did you mean 'processes'?"),
        ({"nodes": 0}, "nodes= is a whole number"),
        ({"workers": 4, "nodes": 3, "engine": "ray"}, "4 workers for 3 nodes"),
        ({"workers": 4, "nodes": 2}, "nodes= is for engine='ray'; engine='local' simulates"),
        ({"workers": 4, "nodes": 2} | ON_PROCESSES, "On several machines, start the script with torchrun"),
        ({"workers": 2, "devices": [0, 1]}, "devices= is for engine='processes'; engine='local' simulates"),
        ({"workers": 2, "devices": [0, 1], "engine": "ray"}, "engine='ray' starts workers on a cluster"),
        ({"workers": 2, "address": "10.0.0.1:29500"} | ON_PROCESSES, "address= is for engine='ray'"),
        ({"devices": "cuda"} | ON_PROCESSES, "devices= lists the accelerators"),
        ({"devices": [0, 0]} | ON_PROCESSES, "each accelerator once"),
        ({"devices": [0], "workers": 2} | ON_PROCESSES, "each of a node's 2 workers needs a device"),
        ({"devices": [-1]} | ON_PROCESSES, "a device in devices= is a whole number"),
        ({"devices": [0, 1], "workers": 2} | ON_PROCESSES, "devices=[0, 1], on a machine with 0 accelerators"),
        ({"restarts": -1}, "restarts= is a whole number, 0 or more"),
        ({"restarts": 1, "workers": 2}, "restarts= is for engine='processes' or 'ray'"),
        ({"timeout_s": 0}, "timeout_s= is a number greater than 0"),
        ({"network": Network()} | ON_PROCESSES, "network= is for engine='local'; engine='processes' starts"),
        ({"network": "100 Mbit", "workers": 2}, "network= is a headrace.Network, got a str."),
        ({"network": Network(speeds={5: 2}), "workers": 2}, "got worker 5"),
        ({"main": "train", "workers": 2}, "launch calls a function in every worker, got 'train'"),
        ({"main": lambda: 0, "workers": 2} | ON_PROCESSES, "Define main at the top level of a module"),
        ({"main": lambda: launch(nothing, workers=2), "workers": 2}, "cannot launch others"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launch(**{"main": nothing, **options})
    assert text in str(caught.value)


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"^engine='ray' needs Ray \(.*ray.*\)\. pip install \"headrace\[ray\]\"$"):
        launch(nothing, workers=2, engine="ray")


def test_a_function_that_processes_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r"is in no file that workers could read\. Put it into a module"):
        launch(nothing, workers=2, engine="processes")


def test_there_are_no_more_processes_than_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=r"5 workers on a machine with 4 accelerators.*pass devices=\[\]"):
        launch(nothing, workers=5, engine="processes")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert processes._devices(Job(nothing, workers=2, devices=[3, 0])) == ["7", "4"]
    assert processes._devices(Job(nothing, workers=9, devices=[])) == []


def test_under_torchrun_a_launch_of_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="one of several workers already"):
        launch(nothing, workers=2)
    assert launch(lambda: 3) == 3


def fit(strategy: hr.Strategy) -> None:
    rows = torch.ones(4, 2), torch.ones(4, 1)
    optimizer = torch.optim.SGD((model := nn.Linear(2, 1)).parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, strategy=strategy)
    trainer.fit(rows, epochs=1, progress=False)


def giving(value: Any) -> Callable[[], Any]:
    return lambda: value  # a copy of this function gives the same object


MODEL = nn.Linear(2, 1)
OPTIMIZER: Any = None  # the test that uses it makes it: torch takes a second to make the first


def uses_a_global() -> None:
    MODEL(torch.ones(2))


def calls_what_uses_one() -> None:
    uses_a_global()


def by_default(model: nn.Module = MODEL) -> None:
    model(torch.ones(2))


def test_what_all_virtual_workers_would_share_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OPTIMIZER", torch.optim.SGD(MODEL.parameters(), lr=0.1))
    model = nn.Linear(2, 1)
    trainer = hr.Trainer(nn.Linear(2, 1), nn.MSELoss(), lambda params: torch.optim.SGD(params, lr=0.1))
    both = {"a": model}
    strategy, stop = Synchronous(), hr.EarlyStopping("val/loss", patience=2)
    reader = hr.Reader(hr.ArrayTable({"x": torch.ones(4, 2)}))
    mains: list[tuple[str, Callable[..., Any]]] = [
        ("model", lambda: model(torch.ones(2))),
        ("trainer", lambda: trainer.fit((torch.ones(4, 2), torch.ones(4, 1)), epochs=1)),
        ("both", lambda: both["a"](torch.ones(2))),
        ("OPTIMIZER", lambda: OPTIMIZER.step()),
        ("strategy", lambda: strategy.join(here())),
        ("stop", lambda: [stop]),
        ("reader", lambda: reader.next_batch(2)),
        ("MODEL", uses_a_global),
        ("MODEL", calls_what_uses_one),
        ("model", functools.partial(by_default)),
    ]
    for name, main in mains:
        with pytest.raises(ConfigError, match=rf"'{name}' \(.*pass it as an argument"):
            launch(main, workers=2)
    launch(lambda model: model(torch.ones(2)), model, workers=2)
    for given in (hr.Synchronous(), hr.Periodic("1 step"), hr.Elastic("1 step")):
        launch(fit, given, workers=3)
        text = rf"virtual workers 0 and 1 have the same {type(given).__name__} object, and each needs its own"
        with pytest.raises(ConfigError, match=text):
            launch(lambda give: fit(give()), giving(given), workers=3)
    with pytest.raises(ConfigError, match="every virtual worker needs the arguments for itself"):
        launch(lambda lock: None, threading.Lock(), workers=2)


# --- what comes back --------------------------------------------------------------------------------------


def test_the_value_is_that_of_worker_0_and_arguments_are_every_workers_own() -> None:
    given = [10]

    def main(numbers: list[int]) -> list[int]:
        numbers.append(here().shard.index)
        here().all_reduce(torch.ones(1))
        return numbers

    assert launch(main, given, workers=3) == [10, 0]
    assert given == [10]
    assert launch(main, given) == given == [10, 0], "one worker is a plain call"


class Owner:
    def __init__(self) -> None:
        self.model = nn.Linear(2, 1, bias=False)

    def train(self, step: float) -> float:
        with torch.no_grad():
            self.model.weight += step * (here().shard.index + 1)
        here().all_reduce(self.model.weight.detach())
        return step


def test_the_model_of_a_method_s_owner_gets_the_weights_of_worker_0_in_place() -> None:
    owner = Owner()
    kept, before = owner.model.weight, owner.model.weight.detach().clone()
    assert launch(owner.train, 2.0, workers=3) == 2.0
    assert owner.model.weight is kept
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


def sends_extra_state(engine: str) -> None:
    model = Extra({"seen": torch.tensor(1), "words": ["old"], "rate": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch(learns, model, workers=2, engine=engine) == "done"
    assert model.extra == {"seen": torch.tensor(7), "words": ["old", "new"], "rate": 0.5}
    assert torch.equal(model.weight, torch.full((1, 2), 3.0))


def test_models_get_the_extra_state_of_worker_0() -> None:
    sends_extra_state("local")


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_workers_stays_in_memory_and_after_an_error_the_model_is_as_before(fails: bool) -> None:
    copies: list[Any] = []
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()

    def main(model: nn.Linear) -> None:
        copies.append(weakref.ref(model))
        with torch.no_grad():
            model.weight += 1
        here().all_reduce(torch.ones(1))
        if fails and here().shard.index == 1:
            raise ValueError("late")
        here().all_reduce(torch.ones(1))

    if fails:
        with pytest.raises(ValueError, match="late"):
            launch(main, model, workers=4)
    else:
        launch(main, model, workers=4)
    gc.collect()
    assert [copy() for copy in copies] == [None] * 4
    assert torch.equal(model.weight, before + (not fails))


# --- interrupts -------------------------------------------------------------------------------------------


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize("returns", [(), (0,)], ids=["while worker 0 waits", "after it has returned"])
def test_ctrl_c_while_another_worker_computes_ends_all(returns: tuple[int, ...]) -> None:
    met: list[str] = []

    def main() -> None:
        comm: Any = here()
        if comm.shard.index in returns:
            return
        try:
            if comm.shard.index == 2:
                interrupt()
            while True:
                comm.worked(1)
                comm.cluster.until(comm.shard.index, comm.now())  # the others go on meanwhile
        except BaseException as error:
            met.append(type(error).__name__)
            raise

    with pytest.raises(KeyboardInterrupt):
        launch(main, workers=4)
    assert sorted(met) == ["KeyboardInterrupt"] * (not returns) + ["WorkerError"] * 3


def test_a_second_ctrl_c_leaves_a_worker_that_hangs() -> None:
    go, met = threading.Event(), list[int]()

    def main() -> None:
        if here().shard.index == 1:
            interrupt()
            while not met:
                time.sleep(0.001)
            interrupt()
            go.wait(60)
        here().all_reduce(torch.ones(1))

    def heard(number: int, frame: Any) -> None:
        met.append(number)
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, heard)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(main, workers=3)
    finally:
        signal.signal(signal.SIGINT, handler)
        go.set()


def test_an_extra_state_that_cannot_be_sent_stays_as_it_was_with_a_warning() -> None:
    model = Extra(extra := {1, 2})
    with pytest.warns(UserWarning, match="the caller's model keeps its own '_extra_state', which cannot be sent"):
        assert launch(learns, model, workers=2) == "done"
    assert model.extra == extra
    assert torch.equal(model.weight, torch.full((1, 2), 3.0))
