"""The center: merges by hand in the order that was recorded, rows that are used once, and resumes to the bit."""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import merges, ray_cases
from kit.forked import start
from kit.sampled import sampled
from kit.torch_workers import fork_workers
from torch import Tensor, nn

import headrace as hr
from headrace.compat import dislib
from headrace.workers.center import Center, HostWeights, Leases
from headrace.workers.comm import Null
from headrace.workers.here import here

UNEVEN = [
    None,
    hr.Network(bandwidth="1 Mbit", latency="3 ms", rows_per_s=1e4, speeds=[1.0, 0.7, 0.4]),
    hr.Network(bandwidth="10 Mbit", latency="1 ms", rows_per_s=1e4, speeds=[0.3, 1, 0.9], stragglers={1: (0.3, 5.0)}),
]
ENGINES = [
    "local",
    *(pytest.param(e, marks=[pytest.mark.slow, pytest.mark.timeout(300)]) for e in ("processes", "ray")),
]
NATIVE = [*ENGINES, pytest.param("torchrun", marks=pytest.mark.slow)]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an engine; of "ray", with one cluster for all launches."""
    if request.param == "ray":
        pytest.importorskip("ray")
    with ray_cases.cluster() if request.param == "ray" else nullcontext():
        yield request.param


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(merges.AT, str(tmp_path))
    return tmp_path


def launch(
    engine: str, workers: int, at: Path, given: dict[str, Any], *arguments: Any, network: hr.Network | None = None
) -> list[float]:
    """Trains in workers of an engine, or in those of torchrun; the weights that are left in worker 0."""
    if engine in ("processes", "torchrun"):  # from a process that forks them
        with start(merges.launched, at, engine, workers, at, given, *arguments, limit_s=90) as child:
            assert child.ending(90) == 0, child.output
        weights: list[float] = json.loads((at / "weights").read_text())
        return weights
    strategy = merges.Merging(**given)
    found: list[float] = hr.launch(
        merges.trained, strategy, *arguments, workers=workers, engine=engine, network=network
    )
    return found


# --- what an exchange does --------------------------------------------------------------------------------


def test_a_spring_pulls_center_and_worker_by_the_same_amount() -> None:
    center, worker = [torch.tensor([0.0, 8.0])], [torch.tensor([4.0, 0.0])]
    hr.Elastic(alpha=0.25).merge(center, worker)
    assert (center[0].tolist(), worker[0].tolist()) == ([1.0, 6.0], [3.0, 2.0])
    hr.Elastic(alpha=0.5, take_center=True).merge(center, worker)
    assert center[0].tolist() == worker[0].tolist() == [2.0, 4.0]


def test_springs_conserve_the_sum_and_the_merge_of_dislib_does_not() -> None:
    draw = torch.Generator().manual_seed(0)
    for take_center in (False, True):
        center, *workers = (torch.randn(7, generator=draw, dtype=torch.float64) for _ in range(4))
        strategy, before = hr.Elastic(alpha=0.3, take_center=take_center), center + sum(workers)
        for k in range(500):
            strategy.merge([center], [workers[k * 7 % 3]])
        assert (float((center + sum(workers) - before).abs().max()) < 1e-12) is not take_center


@pytest.mark.parametrize(
    ("given", "named"),
    [({"alpha": a}, "alpha=") for a in (0, -0.1, 1.5, float("nan"), True, "0.5")]
    + [({"lease": 0}, "lease="), ({"every": "5 min"}, "every=")],
)
def test_settings_that_cannot_work_are_refused(given: Any, named: str) -> None:
    with pytest.raises(hr.ConfigError, match=named):
        hr.Elastic(**given)


@pytest.mark.parametrize("engine", NATIVE, indirect=True)
@pytest.mark.parametrize(("every", "take_center"), [("2 steps", False), ("1 epoch", True)])
def test_the_center_is_what_a_loop_by_hand_makes_of_the_recorded_order(
    every: str, take_center: bool, engine: str, notes: Path
) -> None:
    check_by_hand(every, take_center, engine, notes)


@pytest.mark.parametrize(("every", "take_center"), [("2 epochs", True), ("8 samples", True), ("end", False)])
def test_other_intervals_are_those_of_a_loop_by_hand(every: str, take_center: bool, notes: Path) -> None:
    check_by_hand(every, take_center, "local", notes)


def check_by_hand(every: str, take_center: bool, engine: str, notes: Path) -> None:
    given = {"every": every, "alpha": 0.5, "take_center": take_center}
    found = launch(engine, 3, notes, given, network=UNEVEN[1] if engine == "local" else None)
    torch.manual_seed(0)
    expected = merges.by_hand(merges.Linear(), 3, take_center, 0.5)
    torch.testing.assert_close(torch.tensor(found), expected, atol=5e-6, rtol=0)
    assert merges.rows_merged(3) == sorted(2 * merges.data(72)[0].tolist()), "every row once an epoch"


DIALECT = [
    ("fit_asynchronous_with_GPU", {}),
    ("fit_asynchronous_shuffle_with_GPU", {}),
    ("fit_asynchronous_n_epochs_with_GPU", {"n_epocs_sync": 2}),
    ("fit_asynchronous_shuffle_n_epochs_with_GPU", {"n_epocs_sync": 1}),
]


def fit_of_dislib(at: str, engine: str, method: str, options: dict[str, int]) -> None:
    """Trains by the dialect, whose center writes down what it merges, and writes down the weights."""
    os.environ[merges.AT], elastic = at, dislib.Elastic
    dislib.Elastic = merges.Merging  # type: ignore[misc]
    torch.manual_seed(0)
    trainer = dislib.EncapsulatedFunctionsDistributedEddl(num_workers=2, engine=engine)
    trainer.build(merges.Linear(), {"optimizer": "sgd", "lr": merges.RATE}, "soft_cross_entropy", "accuracy")
    x, y = (part.numpy() for part in merges.data(72))
    try:
        found = getattr(trainer, method)(np.split(x, 6), np.split(y, 6), 3, 2, **options)
    finally:
        dislib.Elastic = elastic  # type: ignore[misc]
    Path(at, "weights").write_text(json.dumps([number for array in found for number in array.flatten().tolist()]))


def fork_fit_of_dislib(*arguments: Any) -> None:
    fork_workers()
    fit_of_dislib(*arguments)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize(("method", "options"), DIALECT)
def test_the_asynchronous_fits_of_dislib_are_what_a_loop_by_hand_makes_of_the_recorded_order(
    method: str, options: dict[str, int], engine: str, notes: Path
) -> None:
    if engine == "processes":
        with start(fork_fit_of_dislib, notes, notes, engine, method, options, limit_s=90) as child:
            assert child.ending(90) == 0, child.output
    else:
        fit_of_dislib(str(notes), engine, method, options)
    torch.manual_seed(0)
    expected = merges.by_hand(merges.Linear(), 2, True, 0.5)
    found = torch.tensor(json.loads((notes / "weights").read_text()))
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)
    assert merges.rows_merged(2) == sorted(2 * merges.data(72)[0].tolist()), "every row once an epoch"


# --- one training that goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", NATIVE, indirect=True)
def test_every_row_is_used_once_an_epoch_with_one_three_and_two_workers(
    engine: str, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[float]] = []
    before = 0
    for k, (workers, steps) in enumerate(((1, 5), (3, 4), (2, None))):
        at, run = notes / str(k), str(notes / "run")
        at.mkdir()
        monkeypatch.setenv(merges.AT, str(at))
        given = {"every": "2 steps", "alpha": 0.5, "take_center": True, "lease": 8}
        launch(engine, workers, at, given, 3, run, steps)
        after = merges.merges_saved(run)
        assert after > before, "the control: each of them has learnt something"
        found += merges.rows_merged(workers, after - before)
        before = after
    assert sorted(found) == sorted(3 * merges.data(72)[0].tolist())


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
    schedule = hr.Cosine(warmup=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options: Any = {"batch_size": 4, "schedule": schedule, "strategy": strategy}
    trainer = hr.Trainer(model, hr.MSE(), optimizer, **options)
    for info in trainer.steps((x, 2 * x[:, :1]), (x, 2 * x[:, :1]), epochs=3, run=run, progress=False):
        if here().leader and info.step == stop:
            break
    return dict(model.state_dict()), [dict(row) for row in trainer.history.rows]


SETTINGS: list[dict[str, Any]] = [
    {"every": "2 steps"},
    {"every": "1 epoch"},
    {"every": "3 steps", "alpha": 0.5, "take_center": True},
    {"every": "end"},
]


def go_on_from(stops: list[int], given: dict[str, Any], network: hr.Network | None, at: Path) -> None:
    """Raises unless virtual workers that are left at these updates, one after the other, come to the same bits."""

    def run(stop: int | None, name: str) -> Any:
        return hr.launch(left_at, stop, str(at / name), hr.Elastic(**given), workers=3, network=network)

    weights, history = run(None, "undisturbed")
    name = "-".join(map(str, stops))
    for stop in stops:
        run(stop, name)
    found, rows = run(None, name)
    assert rows == history
    assert [key for key, value in weights.items() if not torch.equal(value, found[key])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "network"), sampled(itertools.product(SETTINGS, UNEVEN), keep=[(SETTINGS[0], UNEVEN[2])], of=3), ids=str
)
def test_virtual_workers_that_are_left_at_an_update_go_on_to_the_bit(
    given: dict[str, Any], network: hr.Network | None, tmp_path: Path
) -> None:
    go_on_from([1, 7, 13], given, network, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("given", "network"), [*itertools.product(SETTINGS, UNEVEN)], ids=str)
def test_virtual_workers_that_are_left_at_any_update_go_on_to_the_bit(
    given: dict[str, Any], network: hr.Network | None, tmp_path: Path
) -> None:
    for stop in range(2, 30, 3):
        go_on_from([stop], given, network, tmp_path / str(stop))


# --- workers that do not come ---------------------------------------------------------------------------------


class Impatient(Null):
    timeout_s = 0.1


def test_a_wait_for_rows_ends_when_nobody_has_exchanged_weights_for_as_long_as_workers_wait() -> None:
    center = Center(HostWeights({"w": torch.zeros(1)}), Leases(8, 4, 8), hr.Elastic().merge, 1)
    client = Impatient().open_center(center)
    for _ in range(2):
        center.leases.lease(1)  # all rows are with another worker
    begun = time.monotonic()
    while time.monotonic() < begun + 0.3:
        center.exchanges += 1  # the other worker is slow, and not gone
        client.wait(client.call("lease"))

    def wait() -> None:
        while time.monotonic() < begun + 30:
            client.wait(client.call("lease"))

    with pytest.raises(hr.WorkerError, match=r"none has come to the center for 0\.1 s.* raise timeout_s"):
        wait()


def trained_until_killed(strategy: hr.Strategy) -> None:
    model = merges.Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, strategy=strategy)
    for info in trainer.steps(merges.data(72), epochs=100, progress=False):
        if here().shard.index == 1 and info.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def lose_a_worker(at: str) -> None:
    os.environ[merges.AT] = at
    fork_workers()
    with pytest.raises(hr.WorkerError, match=r"worker 1 .*was killed"):
        hr.launch(trained_until_killed, hr.Elastic("2 steps"), workers=3, engine="processes")


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_all_others_with_an_error_that_names_it(tmp_path: Path) -> None:
    with start(lose_a_worker, tmp_path, tmp_path, limit_s=60) as child:
        assert child.ending(60) == 0, child.output


# --- a strategy of one's own ------------------------------------------------------------------------------


class Slow(hr.Centered):
    """The center moves a tenth of the way to each worker, which then begins with it."""

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        torch._foreach_lerp_(center, worker, 0.1)
        torch._foreach_copy_(worker, center)


class Failing(hr.Centered):
    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        raise ValueError("no merge today")


def own_strategies(at: str, engine: str) -> None:
    os.environ[merges.AT] = at
    if engine == "processes":
        fork_workers()
    found = hr.launch(merges.trained, Slow("2 steps"), workers=2, engine=engine)
    torch.manual_seed(0)
    assert not torch.allclose(torch.tensor(found), torch.tensor(merges.flat(merges.Linear())), atol=1e-3)
    with pytest.raises((hr.WorkerError, ValueError), match="no merge today"):
        hr.launch(merges.trained, Failing("2 steps"), workers=2, engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_strategy_with_a_center_is_one_method(engine: str, tmp_path: Path) -> None:
    with start(own_strategies, tmp_path, tmp_path, engine, limit_s=90) as child:
        assert child.ending(90) == 0, child.output
