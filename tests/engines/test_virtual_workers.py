"""Virtual workers: each with its own random state, on a clock that can be computed, and one cause for every error."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.engines.launch import launch
from headrace.engines.local import SimComm
from headrace.engines.network import Network
from headrace.errors import WorkerError
from headrace.workers.center import Center, HostWeights, Leases
from headrace.workers.comm import Comm
from headrace.workers.connection import CenterClient
from headrace.workers.here import here

SLOW = Network(bandwidth="8 kbit", latency="100 ms", rows_per_s=10)
"""1000 bytes a second, 10 rows a second."""


def me() -> SimComm:
    comm = here()
    assert isinstance(comm, SimComm)
    return comm


def on_all(function: Callable[[SimComm], Any], workers: int, network: Network | None = None) -> list[Any]:
    """What the function returns in every worker."""
    found: list[Any] = launch(lambda: me().all_gather(function(me())), workers=workers, network=network)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:  # one of a worker may be about to end
        thread.join(60)
        assert not thread.is_alive()


def draws() -> list[float]:
    return [
        torch.rand(()).item(),
        float(np.random.rand()),
        random.random(),
        float(np.random.randn()),
        random.gauss(0, 1),
    ]


# --- what they exchange -----------------------------------------------------------------------------------


def test_sums_and_maxima_are_the_same_bits_on_all_workers_in_the_order_of_workers() -> None:
    parts = [torch.randn(1000, generator=torch.Generator().manual_seed(k)) for k in range(5)]

    def reduce(comm: SimComm) -> list[Tensor]:
        total, most = parts[comm.shard.index].clone(), parts[comm.shard.index].clone()
        first, second = comm.start(total), comm.start(most, "max")
        second()  # whoever is first
        first()
        return [total, most]

    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    for total, most in on_all(reduce, 5, Network(speeds=[1, 5, 3, 2, 4])):
        assert torch.equal(total, expected)
        assert torch.equal(most, torch.stack(parts).amax(0))


# --- random states ----------------------------------------------------------------------------------------


def test_a_worker_draws_what_its_number_says_whatever_the_others_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(comm: SimComm) -> list[list[float]]:
        found = []
        for step in range(6):
            found += [draws() for _ in range(1 + 2 * comm.shard.index)]
            comm.worked(10 + step * comm.shard.index)
            comm.all_reduce(torch.ones(1))
        return found

    def alone(worker: int, count: int) -> list[list[float]]:
        torch.manual_seed(worker)
        np.random.seed(worker)
        random.seed(worker)
        return [draws() for _ in range(count)]

    uneven = on_all(run, 4, Network(speeds=[1, 3, 2, 5]))
    assert uneven == on_all(run, 4, Network(speeds=[5, 1, 4, 2]))
    assert uneven[:2] == on_all(run, 2)
    assert uneven == [alone(k, 6 * (1 + 2 * k)) for k in range(4)]
    monkeypatch.setattr("headrace.engines.generators.Generators.swap", lambda *_: None)
    assert on_all(run, 4) != uneven, "the negative control"


def test_the_callers_generators_are_as_before() -> None:
    def seeded() -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        np.random.randn()  # one is left over
        random.gauss(0, 1)

    seeded()
    expected = [draws() for _ in range(2)]
    seeded()
    found = [draws()]
    on_all(lambda comm: draws(), 3)
    with pytest.raises(WorkerError):
        launch(lambda: None if draws() and me().leader else me().all_reduce(torch.ones(1)), workers=2)
    assert [*found, draws()] == expected


# --- virtual time -----------------------------------------------------------------------------------------


def test_an_all_reduce_takes_what_a_ring_takes_from_the_last_arrival_on() -> None:
    def work(comm: SimComm) -> dict[str, Any]:
        comm.worked(10 * (comm.shard.index + 1))  # 1, 2, 3 and 4 s
        comm.all_reduce(torch.zeros(250))  # 1000 bytes: 2·3/4·1 s + 2·3·0.1 s
        assert comm.now() == pytest.approx(4 + 2.1)
        comm.all_gather(0)
        return comm.cluster.report()

    report = launch(lambda: work(me()), workers=4, network=SLOW)
    first, last = report["workers"][0], report["workers"][3]
    assert (first["computing_s"], first["rows"], first["updates"]) == (1, 10, 1)
    assert first["idle_s"] == pytest.approx(3)
    assert last["idle_s"] == 0
    for worker in report["workers"]:
        spent = sum(worker[name] for name in ("computing_s", "communicating_s", "idle_s"))
        assert spent == pytest.approx(worker["clock_s"])
    assert report["clock_s"] == last["clock_s"]
    assert report["sent_bytes"] == sum(worker["sent_bytes"] for worker in report["workers"])


@pytest.mark.parametrize(
    ("call", "seconds", "sent"),
    [
        (lambda comm: comm.all_reduce(torch.zeros(250)), 2.1, [1500, 1500, 1500, 1500]),
        (lambda comm: comm.all_reduce(torch.zeros(125, dtype=torch.float64), "max"), 2.1, [1500] * 4),
        (lambda comm: comm.broadcast(torch.zeros(250)), 1.0 + 0.2, [1000, 1000, 1000, 0]),
        (lambda comm: comm.gather("x" * 76), 0.336 + 0.1, [0, 112, 112, 112]),
        (lambda comm: comm.share("x" * 76), 0.112 + 0.2, [112, 112, 112, 0]),
        (lambda comm: comm.hand_out(["x" * 76] * 4), 0.336 + 0.1, [336, 0, 0, 0]),
        (lambda comm: comm.all_gather("x" * 76), 0.336 + 0.3, [336] * 4),
        (lambda comm: [wait() for wait in [comm.start(torch.zeros(250)) for _ in range(3)]], 6.3, [4500] * 4),
    ],
    ids=["sum", "max", "broadcast", "gather", "share", "hand_out", "all_gather", "three sums on one link"],
)
def test_a_collective_takes_its_time_and_sends_its_bytes(
    call: Callable[[SimComm], Any], seconds: float, sent: list[float]
) -> None:
    def work() -> list[Any]:
        call(me())
        return [me().now(), [worker["sent_bytes"] for worker in me().cluster.report()["workers"]]]

    assert launch(work, workers=4, network=SLOW) == [pytest.approx(seconds), sent]


@pytest.mark.parametrize(("rows", "until_s", "waited_s"), [(10, 2.1, 1.1), (30, 3.0, 0)])
def test_a_started_reduction_travels_while_the_worker_computes(rows: int, until_s: float, waited_s: float) -> None:
    def work(comm: SimComm) -> list[float]:
        wait = comm.start(torch.zeros(250))  # 2.1 s
        comm.worked(rows)
        wait()
        return [comm.now(), comm.cluster.accounts[comm.shard.index].communicating_s]

    assert on_all(work, 4, SLOW)[0] == [pytest.approx(until_s), pytest.approx(waited_s)]


# --- the center -------------------------------------------------------------------------------------------

EPOCH, LEASE, BYTES = 60, 4, 1024


def add(center: list[Tensor], worker: list[Tensor]) -> None:
    """The center adds up what it is given."""
    center[0].add_(worker[0])


def center_of(comm: Comm) -> tuple[CenterClient, HostWeights]:
    weights = HostWeights({"w": torch.zeros(BYTES // 4)})
    leases = Leases(EPOCH, LEASE, EPOCH)
    center = Center(HostWeights(weights.named), leases, add, comm.count) if comm.leader else None
    return comm.open_center(center), weights


def train_by_leases(log: list[Any]) -> dict[str, Any]:
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
        log.append((comm.shard.index, round(comm.now() - begun, 9)))
    samples = center.call("pull", weights=weights)["samples"]
    center.leave()
    return {"w": weights.named["w"][0].item(), "samples": samples}


def leased(workers: int, **network: Any) -> tuple[dict[str, Any], list[Any]]:
    log: list[Any] = []
    return launch(lambda: train_by_leases(log), workers=workers, network=Network(**network)), log


def test_a_call_of_the_center_takes_the_way_there_and_back_on_one_link_except_in_worker_0() -> None:
    _, log = leased(2, bandwidth="8.192 kbit", latency="100 ms", rows_per_s=1, speeds=[1, 0.1])
    assert set(log) == {(0, 0.0), (1, 2.2)}, "1024 bytes there and back at 1024 bytes a second, 0.1 s latency each"
    _, log = leased(3, bandwidth="8.192 kbit", latency="0 s", rows_per_s=1)
    assert log[:3] == [(0, 0.0), (1, 2.0), (2, 3.0)], "in the order in which they come"


def test_workers_of_all_speeds_use_every_row_once_and_always_in_the_same_order() -> None:
    network = {"bandwidth": "1 Mbit", "latency": "1 ms", "rows_per_s": 10}
    (found, log), again = (leased(4, speeds=[1, 2, 0.3, 5], **network) for _ in range(2))
    assert found["samples"] == found["w"] == EPOCH
    assert again == (found, log)
    exchanges = [sum(who == worker for who, *_ in log) for worker in range(4)]
    assert exchanges[3] > max(exchanges[:2]) >= min(exchanges[:2]) > exchanges[2] > 0


# --- who fails, and who never comes -----------------------------------------------------------------------


class BoomError(Exception):
    pass


@pytest.mark.parametrize(
    ("who", "error"), [(0, SystemExit(3)), (1, KeyboardInterrupt()), (3, BoomError("bang")), (0, BoomError("bang"))]
)
def test_the_first_error_of_any_worker_ends_all_and_is_the_callers(who: int, error: BaseException) -> None:
    seen: dict[int, list[BaseException]] = {}

    def main() -> None:
        comm = me()
        comm.at(2, "training")
        for _ in range(4):  # who goes on is told again
            try:
                comm.all_reduce(torch.ones(1))
            except WorkerError as met:
                seen.setdefault(comm.shard.index, []).append(met)
            if comm.shard.index == who:
                raise error

    with pytest.raises(type(error)) as caught:
        launch(main, workers=4)
    assert caught.value is error
    if isinstance(error, Exception):
        assert f"in virtual worker {who} of 4 (update 2, training" in error.__notes__[-1]
    assert seen.keys() == {0, 1, 2, 3} - {who}
    for met in seen.values():
        assert len(met) >= 3
        assert all(f"worker {who} ended by {type(error).__name__}" in str(each) for each in met)


def waits(comm: SimComm) -> None:
    comm.at(17, "validating")
    if comm.shard.index:
        comm.all_reduce(torch.ones(3))


def waits_for_rows(comm: SimComm) -> None:
    center, _ = center_of(comm)
    while not (answer := center.call("lease"))["over"]:
        if answer["rows"] is None:
            center.wait(answer)


def starts_and_gathers(comm: SimComm) -> None:
    wait = comm.start(torch.ones(1))
    if comm.leader:
        wait()
        comm.gather(1)
    else:
        comm.start(torch.ones(1))()


@pytest.mark.parametrize(
    ("main", "texts"),
    [
        (waits, ["worker 0 has ended", "worker 1 waits in all_reduce (sum) of float32 (3,) on cpu (update 17, valid"]),
        (waits_for_rows, ["no worker can go on: worker 0 waits in center.wait"]),
        (starts_and_gathers, ["do not call the same", "gather", "all_reduce"]),
    ],
)
def test_workers_that_wait_for_ever_are_named(main: Callable[[SimComm], None], texts: list[str]) -> None:
    with pytest.raises(WorkerError) as caught:
        launch(lambda: main(me()), workers=3)
    assert all(text in str(caught.value) for text in texts), caught.value


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda c: c.broadcast(torch.ones(2)), "broadcast of float32 (2,)"),
        (lambda c: c.all_reduce(torch.ones(3)), "(3,)"),
        (lambda c: c.all_reduce(torch.ones(2).double()), "float64 (2,)"),
        (lambda c: c.all_reduce(torch.ones(2), "max"), "all_reduce (max)"),
        (lambda c: c.share(1), "share"),
    ],
)
def test_workers_that_call_different_things_are_told_which(other: Any, text: str) -> None:
    with pytest.raises(WorkerError) as caught:
        launch(lambda: other(me()) if me().shard.index == 2 else me().all_reduce(torch.ones(2)), workers=4)
    assert all(part in str(caught.value) for part in ("worker 0 calls", "worker 2 ", text))


def test_a_worker_that_computes_for_ever_is_given_up() -> None:
    go, done = threading.Event(), []

    def main() -> None:
        me().at(5, "training")
        if me().shard.index == 2:
            go.wait(400)
            done.append(go.is_set())
        me().all_reduce(torch.ones(1))

    before = set(threading.enumerate())
    with pytest.raises(WorkerError, match=r"worker 2 has kept the others waiting for more than 2 s \(update 5"):
        launch(main, workers=3, timeout_s=2.0)
    assert done == [], "it computes on"
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert done == [True]


def test_settings_for_a_while_do_not_leak_to_others_or_out() -> None:
    def work(comm: SimComm) -> list[Any]:
        found: list[Any] = []
        torch.use_deterministic_algorithms(False)  # imports what adds filters of its own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if comm.shard.index else "error")
            torch.use_deterministic_algorithms(comm.shard.index == 1)
            torch.set_default_dtype([torch.float32, torch.float64, torch.float16][comm.shard.index])
            for _ in range(3):
                comm.all_reduce(torch.ones(1, dtype=torch.float32))
                deterministic = torch.are_deterministic_algorithms_enabled()
                found += [str(torch.get_default_dtype()), deterministic, warnings.filters[0][0]]
        return found

    filters = warnings.filters
    assert on_all(work, 3) == [
        ["torch.float32", False, "error"] * 3,
        ["torch.float64", True, "ignore"] * 3,
        ["torch.float16", False, "ignore"] * 3,
    ]
    assert warnings.filters is filters
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("ends", [True, False])
def test_an_error_that_was_reported_comes_before_what_follows_from_it_unless_it_ended_nobody(ends: bool) -> None:
    def main() -> None:
        cause = BoomError("the cause")
        if me().shard.index == 1:
            me().report_error(cause)
            me().report_error(GeneratorExit())
        me().all_reduce(torch.ones(1))
        if me().leader:
            raise WorkerError("somebody failed") if ends else ValueError("another cause")  # it gets here first
        me().all_reduce(torch.ones(1))
        raise cause

    with pytest.raises(BoomError if ends else ValueError, match="cause"):
        launch(main, workers=3)


def test_values_go_where_they_are_sent_as_copies() -> None:
    def talk(comm: SimComm) -> list[Any]:
        k = comm.shard.index
        vector = torch.full((3,), float(k))
        comm.broadcast(vector)
        own: dict[str, Any] = {"k": k, "t": torch.tensor([k])}
        gathered = comm.gather(own)
        shared: Any = comm.share({"from": k, "t": torch.zeros(1)})
        shared["t"] += k + 1  # nobody else's
        part = comm.hand_out([[10 * j, torch.tensor([j])] for j in range(comm.count)] if comm.leader else None)
        everything = comm.all_gather((k, float("inf")))
        own["t"] += 100
        return [vector, [g["t"].item() for g in gathered] if gathered else gathered, shared, part, everything]

    for k, (vector, gathered, shared, part, everything) in enumerate(on_all(talk, 3)):
        assert vector.tolist() == [0.0, 0.0, 0.0]
        assert gathered == ([0, 1, 2] if k == 0 else None)
        assert (shared["from"], shared["t"].item()) == (0, k + 1)
        assert (part[0], part[1].item()) == (10 * k, k)
        assert everything == [(j, float("inf")) for j in range(3)]
