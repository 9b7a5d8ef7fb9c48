"""Leases: every row is free, out or used, whatever workers do, and a state that is loaded says the same."""

import json

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from headrace import Elastic, Shard
from headrace.errors import WorkerError
from headrace.workers.center import Leases
from headrace.workers.comm import Null


class OfFour(Null):
    shard = Shard(0, 4)


@drawn(st.data(), st.integers(1, 30), st.integers(1, 9), st.integers(1, 70))
def test_each_row_is_used_once_whoever_takes_uses_and_gives_back(
    data: st.DataObject, rows: int, size: int, end: int
) -> None:
    leases, used, mine = Leases(rows, size, end), list[int](), dict[int, list[tuple[int, int]]]()
    for _ in range(400):
        worker = data.draw(st.integers(0, 2))
        if mine.get(worker) and data.draw(st.booleans()):
            start, stop = mine[worker].pop(0)
            leases.use(worker, [(start, stop)])
            used += range(start, stop)
        elif mine.get(worker) and data.draw(st.integers(0, 9)) == 0:
            mine[worker] = []
            leases.give_back(worker)
        elif (lease := leases.lease(worker)) is not None:
            start, stop = lease
            assert start // rows == (stop - 1) // rows, "within an epoch"
            assert stop - start <= size
            mine.setdefault(worker, []).append(lease)
        state = json.loads(json.dumps(leases.state_dict()))
        leases = Leases(rows, size, end)
        leases.load_state_dict(state, workers=3)
        assert leases.used == len(used)
        if len(used) == end:
            break
    assert len(used) == len(set(used))


def test_rows_that_are_not_leased_cannot_be_used() -> None:
    leases = Leases(10, 4)
    assert leases.lease(0) == (0, 4)
    assert leases.lease(1) == (4, 8)
    leases.use(0, [(0, 2)])
    for start, stop in ((0, 1), (4, 8), (2, 5)):
        with pytest.raises(WorkerError, match=f"worker 0 has used rows {start} to {stop}, which were not leased"):
            leases.use(0, [(start, stop)])


def test_rows_of_workers_that_are_no_more_are_free_and_fall_into_the_same_places() -> None:
    leases = Leases(10, 4)
    assert [leases.lease(k) for k in range(3)] == [(0, 4), (4, 8), (8, 10)]
    leases.use(1, [(4, 6)])
    again = Leases(10, 4)
    again.load_state_dict(leases.state_dict(), workers=1)
    assert again.out == {0: [(0, 4)]}
    assert [again.lease(0) for _ in range(3)] == [(6, 8), (8, 10), (10, 14)]


@pytest.mark.parametrize(
    ("every", "given", "lease"),
    [
        ("16 steps", {}, 160),  # the rows of a round
        ("1 step", {}, 80),  # but a few batches at least
        ("200 samples", {}, 200),
        ("205 samples", {}, 210),  # whole batches
        ("1 epoch", {}, 40),  # a fair share of an epoch, in a few parts: 1000 / 8 / 4 rows
        ("end", {}, 40),
        ("100 steps", {}, 250),  # no more than a fair share
        ("16 steps", {"block": 100}, 200),  # whole blocks
        ("16 steps", {"rows": 60}, 20),
        ("16 steps", {"rows": 6}, 6),
    ],
)
def test_leases_suit_rounds_batches_and_blocks(every: str, given: dict[str, int], lease: int) -> None:
    strategy = Elastic(every)
    strategy.join(OfFour())
    leases = strategy.plan_leases(**{"rows": 1000, "batch": 10, **given})
    assert leases.size == lease
    assert Elastic(every, lease=7).plan_leases(rows=1000, batch=10, end=500).size == 7
