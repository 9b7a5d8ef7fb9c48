"""Virtual workers: the same to the bit every time, each with its own random state, on a clock that can be computed."""

import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.engines import generators
from headrace.engines.launch import launch
from headrace.engines.local import SimComm
from headrace.engines.network import Network
from headrace.errors import ConfigError, HeadraceError, WorkerError
from headrace.workers.here import here

SLOW = Network(bandwidth="8 kbit", latency="100 ms", rows_per_s=10)
"""1000 bytes a second, 10 rows a second."""


def me() -> SimComm:
    comm = here()
    assert isinstance(comm, SimComm)
    return comm


def on_all(
    function: Callable[[SimComm], Any], workers: int, network: Network | None = None, **options: Any
) -> list[Any]:
    """What the function returns in every worker."""

    found: list[Any] = launch(lambda: me().all_gather(function(me())), workers=workers, network=network, **options)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads = threading.active_count()
    yield
    assert threading.active_count() == threads


def draws() -> list[float]:
    return [
        torch.rand(()).item(),
        float(np.random.rand()),
        random.random(),
        float(np.random.randn()),
        random.gauss(0, 1),
    ]


# --- what they say to each other --------------------------------------------------------------------------


def test_sums_and_maxima_are_the_same_bits_on_all_workers_in_the_order_of_workers() -> None:
    parts = [torch.randn(1000, generator=torch.Generator().manual_seed(k)) for k in range(5)]

    def reduce(comm: SimComm) -> list[Tensor]:
        total, most = parts[comm.shard.index].clone(), parts[comm.shard.index].clone()
        comm.all_reduce(total)
        comm.all_reduce(most, "max")
        return [total, most]

    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    for total, most in on_all(reduce, 5, Network(speeds=[1, 5, 3, 2, 4])):
        assert torch.equal(total, expected)
        assert torch.equal(most, torch.stack(parts).amax(0))


def test_values_go_where_they_are_said_to_go_as_copies() -> None:
    def talk(comm: SimComm) -> list[Any]:
        k = comm.shard.index
        vector = torch.full((3,), float(k))
        comm.broadcast(vector)
        own = {"k": k, "t": torch.tensor([k])}
        gathered = comm.gather(own)
        shared = comm.share({"from": k, "t": torch.zeros(1)})
        shared["t"] += k + 1  # nobody else's
        part = comm.hand_out([[10 * j, torch.tensor([j])] for j in range(comm.count)] if comm.leader else None)
        everything = comm.all_gather((k, float("inf")))
        own["t"] += 100
        return [vector, [g["t"].item() for g in gathered] if gathered else gathered, shared, part, everything]

    for k, (vector, gathered, shared, part, everything) in enumerate(on_all(talk, 3)):
        assert vector.tolist() == [0.0, 0.0, 0.0]
        assert gathered == ([0, 1, 2] if k == 0 else None)
        assert shared["from"] == 0
        assert shared["t"].item() == k + 1
        assert part[0] == 10 * k
        assert part[1].item() == k
        assert everything == [(j, float("inf")) for j in range(3)]


def test_a_started_reduction_is_done_when_it_is_waited_for_whoever_is_first() -> None:
    def two(comm: SimComm) -> list[float]:
        first, second = torch.ones(2), torch.full((2,), float(comm.shard.index))
        a, b = comm.start(first), comm.start(second, "max")
        b.wait()
        a.wait()
        return [*first.tolist(), *second.tolist()]

    assert on_all(two, 4) == [[4.0, 4.0, 3.0, 3.0]] * 4


def test_workers_run_one_at_a_time() -> None:
    running: list[int] = []

    def count(comm: SimComm) -> int:
        most = 0
        for _ in range(20):
            running.append(comm.shard.index)
            time.sleep(0.0005)  # gives any other thread the chance
            most = max(most, len(running))
            running.clear()
            comm.all_reduce(torch.ones(1))
        return most

    assert on_all(count, 4) == [1] * 4


def test_one_virtual_worker_is_a_world_of_its_own() -> None:
    def alone(comm: SimComm) -> list[Any]:
        vector = torch.tensor([2.0])
        comm.all_reduce(vector)
        comm.worked(5)
        return [vector.item(), comm.gather(1), comm.share(2), comm.hand_out([3]), comm.now()]

    assert on_all(alone, 1, SLOW) == [[2.0, [1], 2, 3, 0.5]]


# --- random states ---------------------------------------------------------------------------------------


def test_a_worker_draws_what_its_number_says_whatever_the_others_draw() -> None:
    def some(often: Callable[[int], int]) -> Callable[[SimComm], list[list[float]]]:
        def run(comm: SimComm) -> list[list[float]]:
            found = []
            for step in range(6):
                for _ in range(often(comm.shard.index)):
                    found.append(draws())
                comm.worked(10 + step * comm.shard.index)
                comm.all_reduce(torch.ones(1))
            return found

        return run

    def alone(worker: int, count: int) -> list[list[float]]:
        torch.manual_seed(worker)
        np.random.seed(worker)
        random.seed(worker)
        return [draws() for _ in range(count)]

    uneven = on_all(some(lambda k: 1 + 2 * k), 4, Network(speeds=[1, 3, 2, 5]))
    assert [len(found) for found in uneven] == [6, 18, 30, 42]
    other_order = on_all(some(lambda k: 1 + 2 * k), 4, Network(speeds=[5, 1, 4, 2]))
    fewer = on_all(some(lambda k: 1 + 2 * k), 2)
    assert uneven == other_order
    assert uneven[:2] == fewer
    assert uneven == [alone(k, len(found)) for k, found in enumerate(uneven)]
    assert uneven[0][:6] != uneven[1][:6]


def test_without_the_exchange_workers_would_draw_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(comm: SimComm) -> float:
        comm.all_reduce(torch.ones(1))
        return torch.rand(()).item()

    before = on_all(one, 3)
    monkeypatch.setattr("headrace.engines.generators.Generators.swap", lambda *_: None)
    assert on_all(one, 3) != before


@pytest.mark.parametrize("kind", ["state set", "seeded", "own generator", "leftover normal", "restored"])
def test_whatever_a_worker_does_to_its_generators_is_its_own(kind: str) -> None:
    def odd(comm: SimComm) -> list[float]:
        found = []
        for step in range(4):
            if comm.shard.index == 1:
                if kind == "state set":
                    np.random.set_state(np.random.RandomState(step).get_state())
                    random.setstate(random.Random(step).getstate())
                elif kind == "seeded":
                    np.random.seed(step)
                    random.seed(step)
                    torch.manual_seed(step)
                elif kind == "own generator":
                    np.random.set_bit_generator(np.random.PCG64(step))  # type: ignore[attr-defined]
                elif kind == "leftover normal":
                    found += [float(np.random.randn()), random.gauss(0, 1)]
                else:
                    kept = np.random.get_state(), random.getstate()
                    draws()
                    np.random.set_state(kept[0])
                    random.setstate(kept[1])
            comm.all_reduce(torch.ones(1))
            found += draws()[:4]
        return found

    plain = on_all(lambda comm: [draws()[:4] for _ in range(4)], 3)
    found = on_all(odd, 3)
    assert found == on_all(odd, 3)
    for k in (0, 2):
        assert found[k] == [number for row in plain[k] for number in row]
    if kind in ("state set", "seeded"):
        assert found[1][1] == float(np.random.RandomState(0).rand())
        assert found[1][2] == random.Random(0).random()


def test_the_callers_generators_and_settings_are_as_before() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    np.random.randn()  # one is left over
    random.gauss(0, 1)
    expected = [draws() for _ in range(2)]
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    np.random.randn()
    random.gauss(0, 1)
    found = [draws()]
    on_all(lambda comm: draws(), 3)
    with pytest.raises(WorkerError):
        launch(lambda: (draws() and me().leader) or me().all_reduce(torch.ones(1)), workers=2)
    assert [*found, draws()] == expected


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
                found.append(str(torch.get_default_dtype()))
                found.append(torch.are_deterministic_algorithms_enabled())
                found.append(warnings.filters[0][0])
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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no threads")
def test_a_worker_that_runs_and_what_it_starts_may_use_every_core() -> None:
    def cores(comm: SimComm) -> list[int]:
        found: list[set[int]] = []
        for _ in range(3):
            comm.all_reduce(torch.ones(1))
            thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
            thread.start()
            thread.join()
            found.append(os.sched_getaffinity(0))
        return [len(each) for each in found]

    allowed = os.sched_getaffinity(0)
    assert on_all(cores, 4) == [[len(allowed)] * 6] * 4
    assert os.sched_getaffinity(0) == allowed


def test_workers_have_the_callers_number_of_threads() -> None:
    torch.set_num_threads(2)
    assert on_all(lambda comm: torch.get_num_threads(), 3) == [2, 2, 2]


# --- virtual time ----------------------------------------------------------------------------------------


def test_an_all_reduce_takes_what_a_ring_takes_from_the_last_arrival_on() -> None:
    def work(comm: SimComm) -> list[float]:
        comm.worked(10 * (comm.shard.index + 1))  # 1, 2, 3 and 4 s
        comm.all_reduce(torch.zeros(250))  # 1000 bytes: 2·3/4·1 s + 2·3·0.1 s
        return [comm.now()]

    assert on_all(work, 4, SLOW) == [[pytest.approx(4 + 2.1)]] * 4
    report = launch(lambda: (work(me()), me().all_gather(0), me().cluster.report())[2], workers=4, network=SLOW)
    first, last = report["workers"][0], report["workers"][3]
    assert first["computing_s"] == 1
    assert first["idle_s"] == pytest.approx(3)
    assert last["idle_s"] == 0
    assert (first["rows"], first["updates"]) == (10, 1)
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
        (lambda comm: comm.gather("x" * 98), 0.3 + 0.1, [0, 100, 100, 100]),
        (lambda comm: comm.share("x" * 98), 0.1 + 0.2, [100, 100, 100, 0]),
        (lambda comm: comm.hand_out(["x" * 98] * 4), 0.3 + 0.1, [300, 0, 0, 0]),
        (lambda comm: comm.all_gather("x" * 98), 0.3 + 0.3, [300] * 4),
    ],
    ids=["sum", "max", "broadcast", "gather", "share", "hand_out", "all_gather"],
)
def test_a_collective_takes_its_time_and_sends_its_bytes(
    call: Callable[[SimComm], Any], seconds: float, sent: list[float]
) -> None:
    def work() -> list[Any]:
        call(me())
        return [me().now(), [worker["sent_bytes"] for worker in me().cluster.report()["workers"]]]

    assert launch(work, workers=4, network=SLOW) == [pytest.approx(seconds), sent]


def test_a_started_reduction_travels_while_the_worker_computes() -> None:
    def work(comm: SimComm) -> list[float]:
        pending = comm.start(torch.zeros(250))  # 2.1 s
        comm.worked(rows)
        pending.wait()
        return [comm.now(), comm.cluster.accounts[comm.shard.index].communicating_s]

    rows = 10
    assert on_all(work, 4, SLOW)[0] == [pytest.approx(2.1), pytest.approx(1.1)]
    rows = 30
    assert on_all(work, 4, SLOW)[0] == [pytest.approx(3.0), 0]


def test_reductions_under_way_share_the_link() -> None:
    def work(comm: SimComm) -> float:
        pending = [comm.start(torch.zeros(250)) for _ in range(3)]
        for each in pending:
            each.wait()
        return comm.now()

    assert on_all(work, 4, SLOW) == [pytest.approx(6.3)] * 4


def test_a_straggler_keeps_all_others_waiting_and_always_at_the_same_updates() -> None:
    network = Network(rows_per_s=10, latency="0 s", stragglers={1: (0.5, 10.0)}, seed=3)

    def work(comm: SimComm) -> list[float]:
        times = []
        for _ in range(20):
            comm.worked(10)
            comm.all_reduce(torch.zeros(1))
            times.append(comm.now())
        return times

    first = on_all(work, 3, network)[0]
    assert first == on_all(work, 3, network)[0]
    slow = sum(network.computing_s(1, update, 10) > 1 for update in range(20))
    assert 0 < slow < 20
    assert first[-1] == pytest.approx(20 + 9 * slow, abs=1e-3)


# --- who fails, and who never comes ----------------------------------------------------------------------


class BoomError(Exception):
    pass


@pytest.mark.parametrize("who", [0, 1, 3])
@pytest.mark.parametrize("error", [BoomError("bang"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_the_first_error_of_any_worker_ends_all_and_is_the_callers(who: int, error: BaseException) -> None:
    seen: dict[int, BaseException] = {}

    def main() -> None:
        comm = me()
        comm.at(2, "training")
        try:
            comm.all_reduce(torch.ones(1))
            if comm.shard.index == who:
                raise error
            while True:
                comm.all_reduce(torch.ones(1))
        except BaseException as met:
            seen[comm.shard.index] = met
            raise

    with pytest.raises(type(error)) as caught:
        launch(main, workers=4)
    assert caught.value is error
    if isinstance(error, Exception):
        assert f"in virtual worker {who} of 4 (update 2, training" in error.__notes__[-1]
    assert set(seen) == {0, 1, 2, 3}
    for worker, met in seen.items():
        if worker != who:
            assert isinstance(met, WorkerError)
            assert f"worker {who} ended by {type(error).__name__}" in str(met)


def test_an_error_that_is_under_way_comes_before_what_follows_from_it() -> None:
    def main() -> None:
        flag = torch.zeros(1)
        cause = BoomError("the cause")
        if me().shard.index == 2:
            flag += 1
            me().report_error(cause)
        me().all_reduce(flag, "max")
        if me().shard.index != 2:
            raise WorkerError("somebody failed")  # worker 0 gets here first
        raise cause

    with pytest.raises(BoomError, match="the cause"):
        launch(main, workers=3)


def test_what_was_told_and_did_not_end_anybody_is_no_cause() -> None:
    def main() -> None:
        if me().shard.index == 1:
            me().report_error(BoomError("caught"))
            me().report_error(GeneratorExit())
        me().all_reduce(torch.ones(1))
        if me().leader:
            raise ValueError("the cause")
        me().all_reduce(torch.ones(1))

    with pytest.raises(ValueError, match="the cause"):
        launch(main, workers=2)


def test_who_swallows_the_error_is_told_again() -> None:
    often = []

    def main() -> None:
        if me().shard.index == 1:
            raise BoomError
        for _ in range(3):
            try:
                me().all_reduce(torch.ones(1))
            except WorkerError:
                often.append(me().shard.index)

    with pytest.raises(BoomError):
        launch(main, workers=3)
    assert sorted(often) == [0, 0, 0, 2, 2, 2]


def test_a_worker_that_returns_while_others_wait_is_named() -> None:
    def main() -> None:
        me().at(17, "validating")
        if me().shard.index:
            me().all_reduce(torch.ones(3))

    with pytest.raises(WorkerError) as caught:
        launch(main, workers=3)
    text = str(caught.value)
    assert "no worker can go on: worker 0 has ended" in text
    assert "worker 1 waits in all_reduce (sum) of float32 (3,) on cpu (update 17, validating" in text


def test_workers_that_wait_in_different_places_are_named() -> None:
    def main() -> None:
        started = me().start(torch.ones(1))
        if me().leader:
            started.wait()
            me().gather(1)
        else:
            me().start(torch.ones(1)).wait()

    with pytest.raises(
        WorkerError, match=r"do not call the same: worker 1 calls .* worker 0 gather|worker 0 calls gather"
    ):
        launch(main, workers=2)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (lambda c: c.all_reduce(torch.ones(2)), lambda c: c.broadcast(torch.ones(2)), "broadcast of float32 (2,)"),
        (lambda c: c.all_reduce(torch.ones(2)), lambda c: c.all_reduce(torch.ones(3)), "(3,)"),
        (lambda c: c.all_reduce(torch.ones(2)), lambda c: c.all_reduce(torch.ones(2).double()), "float64 (2,)"),
        (lambda c: c.all_reduce(torch.ones(2)), lambda c: c.all_reduce(torch.ones(2), "max"), "all_reduce (max)"),
        (lambda c: c.gather(1), lambda c: c.share(1), "share"),
        (lambda c: c.gather(1), lambda c: c.all_reduce(torch.ones(1)), "all_reduce"),
    ],
)
def test_workers_that_call_different_things_are_told_which(one: Any, other: Any, text: str) -> None:
    with pytest.raises(WorkerError) as caught:
        launch(lambda: (other if me().shard.index == 2 else one)(me()), workers=4)
    assert "worker 0 calls" in str(caught.value)
    assert "worker 2 " in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.slow
def test_a_worker_that_computes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go, done = threading.Event(), []

    def main() -> None:
        me().at(5, "training")
        if me().shard.index == 2:
            go.wait(60)
            done.append(go.is_set())
        me().all_reduce(torch.ones(1))

    before = set(threading.enumerate())
    with pytest.raises(WorkerError, match=r"worker 2 has kept the others waiting for more than 2 s \(update 5"):
        launch(main, workers=3, timeout_s=2.0)
    assert done == [], "it computes on"
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert done == [True]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no threads")
@pytest.mark.parametrize("turn", [0, 1])
def test_a_worker_that_comes_back_too_late_binds_the_caller_to_no_core(turn: int) -> None:
    go, allowed, before = threading.Event(), os.sched_getaffinity(0), set(threading.enumerate())

    def main() -> None:
        if not me().leader:
            go.wait(20)
            os.sched_setaffinity(0, [sorted(allowed)[turn % len(allowed)]])  # where the caller is, or elsewhere

    with pytest.raises(WorkerError, match=r"has kept the others waiting"):
        launch(main, workers=2, timeout_s=0.5)
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert os.sched_getaffinity(0) == allowed


def test_handing_out_too_little_is_an_error() -> None:
    with pytest.raises(ConfigError, match="one value for each of the 3 workers, got 2"):
        launch(lambda: me().hand_out([1, 2]), workers=3)


def test_what_cannot_be_sent_is_an_error_of_the_worker_that_sends_it() -> None:
    with pytest.raises(HeadraceError, match="object"):
        launch(lambda: me().gather(object()), workers=2)


def test_pythons_generator_is_each_workers_own_with_a_normal_number_that_is_left_over() -> None:
    before = random.getstate()
    both = generators.Generators(2)
    both.enter(0)
    random.seed(7)
    random.gauss(0, 1)  # one is left over
    state = random.getstate()
    expected = [random.gauss(0, 1), random.random(), random.gauss(0, 1)]
    random.setstate(state)
    both.swap(0, 1)
    assert random.random() == random.Random(1).random(), "a worker begins with its number"
    both.swap(1, 0)
    assert random.getstate() == state
    assert [random.gauss(0, 1), random.random(), random.gauss(0, 1)] == expected
    both.give_back()
    assert random.getstate() == before
