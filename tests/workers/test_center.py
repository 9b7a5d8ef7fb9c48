"""The center: merges by hand in the order that was recorded, rows that are used once, and resumes to the bit."""

import json
import os
import signal
import socket
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from kit import merges
from kit.sampled import sampled
from kit.torch_workers import with_forks
from torch import Tensor, nn

import headrace as hr
from headrace.compat import dislib
from headrace.data.shard import Shard
from headrace.workers.center import Center, HostWeights, Leases
from headrace.workers.comm import Null
from headrace.workers.here import here

NETWORKS = [
    None,
    hr.Network(bandwidth="1 Mbit", latency="3 ms", rows_per_s=1e4, speeds=[1.0, 0.7, 0.4]),
    hr.Network(bandwidth="10 Mbit", latency="1 ms", rows_per_s=1e4, speeds=[0.3, 1, 0.9]),
]
LOCAL, PROCESSES = (pytest.param(n, marks=pytest.mark.slow) for n in ("local", "processes"))


def on_engine(engine: str, workers: int, jobs: Any) -> None:
    """Calls `merges.train` in every worker."""
    network = NETWORKS[1] if engine == "local" and workers == 3 else None
    hr.launch(merges.train, jobs, workers=workers, engine=engine, network=network)


def call(engine: str, at: Path, function: Any, *arguments: Any) -> None:
    """Calls a function that starts workers of an engine, from a process that may fork them if it has to."""
    if engine == "processes":
        with_forks(function, at, *arguments)
    else:
        function(*arguments)


# --- what an exchange does --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [({"alpha": a}, "alpha=") for a in (0, -0.1, 1.5, float("nan"), True, "0.5")]
    + [({"lease": 0}, "lease="), ({"every": "5 min"}, "every=")],
)
def test_settings_that_cannot_work_are_refused(given: Any, named: str) -> None:
    with pytest.raises(hr.ConfigError, match=named):
        hr.Elastic(**given)


INTERVALS = [("2 steps", False), ("1 epoch", True), ("2 epochs", True), ("8 samples", True), ("end", False)]


@pytest.mark.parametrize("engine", [LOCAL, PROCESSES])
def test_the_center_is_what_a_loop_by_hand_makes_of_the_recorded_order(engine: str, tmp_path: Path) -> None:
    cases = INTERVALS if engine == "local" else INTERVALS[:2]
    places = [tmp_path / every for every, _ in cases]
    for place in places:
        place.mkdir()
    given = [{"every": every, "alpha": 0.5, "take_center": take} for every, take in cases]
    call(engine, tmp_path, on_engine, engine, 3, [(str(at), g, {}, None) for at, g in zip(places, given, strict=True)])
    for place, (_, take_center) in zip(places, cases, strict=True):
        merges.check_by_hand(place, 3, take_center, 0.5)


DIALECT = [
    ("fit_asynchronous_with_GPU", {}),
    ("fit_asynchronous_shuffle_with_GPU", {}),
    ("fit_asynchronous_n_epochs_with_GPU", {"n_epocs_sync": 2}),
    ("fit_asynchronous_shuffle_n_epochs_with_GPU", {"n_epocs_sync": 1}),
]


def test_the_asynchronous_fits_of_dislib_are_what_a_loop_by_hand_makes_of_the_recorded_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dislib, "Elastic", merges.Merging)
    x, y = (part.numpy() for part in merges.data())
    for method, options in DIALECT:
        (at := tmp_path / method).mkdir()
        monkeypatch.setattr(merges.Merging, "at", str(at))
        trainer = dislib.EncapsulatedFunctionsDistributedEddl(num_workers=2, engine="local")
        optimizer = {"optimizer": "sgd", "lr": merges.RATE}
        trainer.build(merges.Linear(str(at)), optimizer, "soft_cross_entropy", "accuracy")
        found = getattr(trainer, method)(np.split(x, 6), np.split(y, 6), 3, 2, **options)
        (at / "weights").write_text(json.dumps([number for array in found for number in array.flatten().tolist()]))
        merges.check_by_hand(at, 2, True, 0.5)


# --- one training that goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", PROCESSES])
def test_every_row_is_used_once_an_epoch_with_one_three_and_two_workers(engine: str, tmp_path: Path) -> None:
    found, before, run = list[list[float]](), 0, str(tmp_path / "run")
    for k, (workers, steps) in enumerate(((1, 5), (3, 4), (2, None))):
        (at := tmp_path / str(k)).mkdir()
        given = {"every": "2 steps", "alpha": 0.5, "take_center": True, "lease": 8}
        call(engine, at, on_engine, engine, workers, [(str(at), given, {"epochs": 3, "run": run}, steps)])
        after = merges.merges_saved(run)
        assert after > before, "the control: each of them has learnt something"
        found += merges.rows_merged(at, workers, after - before)
        before = after
    assert sorted(found) == sorted(3 * merges.data()[0].tolist())


class Noisy(nn.Module):
    """Dropout, statistics of batches, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def left_at(stop: int | None, run: str, strategy: hr.Strategy) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """In every worker: trains, and is left by worker 0 at an update; weights, and the history."""
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options: Any = {"batch_size": 4, "schedule": hr.Cosine(warmup=0.2), "strategy": strategy}
    trainer = hr.Trainer(model, hr.MSE(), optimizer, **options)
    for info in trainer.steps((x, 2 * x[:, :1]), (x, 2 * x[:, :1]), epochs=3, run=run, progress=False):
        if here().leader and info.step == stop:
            break
    return dict(model.state_dict()), [dict(row) for row in trainer.history.rows]


SETTINGS: list[tuple[dict[str, Any], hr.Network | None]] = [
    ({"every": "2 steps"}, NETWORKS[2]),
    ({"every": "1 epoch"}, NETWORKS[1]),
    ({"every": "3 steps", "alpha": 0.5, "take_center": True}, None),
    ({"every": "3 steps", "alpha": 0.5, "take_center": True}, NETWORKS[1]),
    ({"every": "end"}, NETWORKS[2]),
]


@pytest.mark.parametrize("number", sampled(range(len(SETTINGS)), keep=[0, 3]))
def test_virtual_workers_that_are_left_at_any_update_go_on_to_the_bit(number: int, tmp_path: Path) -> None:
    """Each setting is left at every fifth update, one after the other: at all places of a round of two or three."""
    (given, network), stops = SETTINGS[number], range(1 + number % 3, 30, 5)

    def run(stop: int | None, name: str) -> Any:
        return hr.launch(left_at, stop, str(tmp_path / name), hr.Elastic(**given), workers=3, network=network)

    weights, history = run(None, "undisturbed")
    for stop in stops:
        run(stop, "left")
    found, rows = run(None, "left")
    assert rows == history
    assert [key for key, value in weights.items() if not torch.equal(value, found[key])] == []


# --- workers that do not come -----------------------------------------------------------------------------


class Impatient(Null):
    timeout_s = 0.5


class Clock:
    """Time that passes while somebody sleeps, and at no other time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_wait_for_rows_ends_when_nobody_has_exchanged_weights_for_as_long_as_workers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.workers.connection.time", clock := Clock())
    center = Center(HostWeights({"w": torch.zeros(1)}), Leases(8, 4, 8), hr.Elastic().merge, 1)
    client = Impatient().open_center(center)
    for _ in range(2):
        center.leases.lease(1)  # all rows are with another worker
    while clock.now < 1:
        center.exchanges += 1  # the other worker is slow, and not gone
        client.wait(client.call("lease"))

    def wait() -> None:
        while clock.now < 30:
            client.wait(client.call("lease"))

    with pytest.raises(hr.WorkerError, match=r"none has come to the center for 0\.5 s.* raise timeout_s"):
        wait()
    assert clock.now < 2


class Slow(hr.Centered):
    """The center moves a tenth of the way to each worker, which then begins with it."""

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        torch._foreach_lerp_(center, worker, 0.1)
        torch._foreach_copy_(worker, center)


class Failing(hr.Centered):
    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        raise ValueError("no merge today")


def trained(strategy: hr.Strategy, kills: bool = False) -> float:
    """How far a training moves the weights; perhaps worker 1 is killed in it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, strategy=strategy)
    for info in trainer.steps(merges.data(), epochs=100 if kills else 2, progress=False):
        if kills and here().shard.index == 1 and info.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return float((model.weight.detach() - before).abs().max())


def own_strategies(engine: str) -> None:
    assert hr.launch(trained, Slow("2 steps"), workers=2, engine=engine) > 1e-3
    with pytest.raises((hr.WorkerError, ValueError), match="no merge today"):
        hr.launch(trained, Failing("2 steps"), workers=2, engine=engine)
    if engine == "processes":
        with pytest.raises(hr.WorkerError, match=r"worker 1 .*was killed"):
            hr.launch(trained, hr.Elastic("2 steps"), True, workers=3, engine=engine)


@pytest.mark.parametrize("engine", ["local", PROCESSES])
def test_a_strategy_is_one_method_and_who_fails_or_is_killed_in_it_ends_all(engine: str, tmp_path: Path) -> None:
    call(engine, tmp_path, own_strategies, engine)


class Linked(Null):
    """One of two workers, in a thread of this process; what worker 0 shares is put into a queue."""

    def __init__(self, index: int, shared: SimpleQueue[Any]) -> None:
        self.shard, self._shared = Shard(index, 2), shared

    def share(self, value: Any = None) -> Any:
        return self._shared.put(value) if self.leader else self._shared.get()


def test_a_stranger_who_connects_and_says_nothing_keeps_no_worker_waiting() -> None:
    shared: SimpleQueue[Any] = SimpleQueue()
    center = Center(HostWeights({"w": torch.zeros(1)}), Leases(8, 4, 8), hr.Elastic().merge, 2)
    leader = Linked(0, shared).open_center(center)
    shared.put(address := shared.get())
    with socket.create_connection(address[:2]):
        worker = Linked(1, shared).open_center(None)
        assert worker.call("lease")["rows"] == [0, 4]
    worker.leave()
    leader.leave()
