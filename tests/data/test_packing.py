"""Batches sized by items hold whole sequences, as many as fit, and are the same however they are read."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.testing.makers import ragged_table

LENGTHS = [3, 0, 5, 1, 1, 9, 2, 0, 0, 4, 1]

lengths = st.lists(st.integers(0, 9) | st.sampled_from([0, 30]), min_size=1, max_size=25)
sizes = st.integers(1, 25)


def reader(lengths: Sequence[int], order: str = "full", **options: Any) -> hr.Reader:
    return hr.Reader(ragged_table("words", lengths), order, **{"count": "words", "block": 4, **options})


def rest(source: hr.Source, size: int, most: int = 10**6) -> list[hr.Batch]:
    return [batch for batch, _ in zip(iter(lambda: source.next_batch(size), None), range(most), strict=False)]


def seen(batch: hr.Batch) -> dict[str, Any]:
    rows = [row.tolist() for row in batch["words"]]
    return {
        "row": batch["row"].tolist(),
        "words": rows,
        "total": batch.total,
        "cursor": batch.cursor,
        "ends": batch.ends_epoch,
    }


def positions(source: hr.Reader, epochs: int) -> list[int]:
    """The rows of so many epochs, in their order."""
    n = source.order.n
    return [int(row) for epoch in range(epochs) for row in source.order.indices(epoch, 0, n)]


def greedy(lengths: Sequence[int], n: int, size: int, crosses: bool, end: int) -> list[int]:
    """Where batches begin and end, sequence by sequence: `lengths` in the order in which they are read."""
    cuts = [0]
    while cuts[-1] < end:
        reach = min(end, (cuts[-1] // n + 1) * n + crosses * (n - 1))
        stop, held = cuts[-1] + 1, lengths[cuts[-1]]
        while stop < reach and held + lengths[stop] <= size:
            held, stop = held + lengths[stop], stop + 1
        cuts.append(stop)
    return cuts


# --- which batches ---------------------------------------------------------------------------------------


@given(lengths=lengths, size=sizes, crosses=st.booleans(), seed=st.integers(0, 9), data=st.data())
@pytest.mark.parametrize("order", ["full", "none", "blocks"])
def test_batches_are_those_of_adding_while_the_total_fits(
    order: str, lengths: list[int], size: int, crosses: bool, seed: int, data: st.DataObject
) -> None:
    n = len(lengths)
    limit = data.draw(st.none() | st.integers(1, 3 * n))
    source = reader(lengths, order, seed=seed, cross_epochs=crosses, max_epochs=3, max_samples=limit)
    rows = positions(source, 4)
    cuts = greedy([lengths[row] for row in rows], n, size, crosses, min(3 * n, limit or 3 * n))
    batches = rest(source, size)
    assert [batch["row"].tolist() for batch in batches] == [rows[a:b] for a, b in pairwise(cuts)]
    for (start, stop), batch in zip(pairwise(cuts), batches, strict=True):
        held = batch.items("words")
        assert held == sum(lengths[row] for row in rows[start:stop])
        assert held <= size or batch.rows == 1
        assert batch.ends_epoch == (stop // n > start // n or stop == cuts[-1])
        assert [row.tolist() for row in batch["words"]] == [
            [1000 * r + k for k in range(lengths[r])] for r in rows[start:stop]
        ]


def test_a_sequence_longer_than_the_size_is_a_batch_alone() -> None:
    batches = rest(reader([2, 30, 1, 1], "none", max_epochs=1), 4)
    assert [batch["row"].tolist() for batch in batches] == [[0], [1], [2, 3]]
    assert [batch.items("words") for batch in batches] == [2, 30, 2]


def test_sequences_without_items_cost_nothing_and_are_read() -> None:
    batches = rest(reader([0, 0, 2, 0, 1, 0], "none", max_epochs=1), 2)
    assert [batch["row"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch["row"].tolist() for batch in rest(reader([0, 0, 0], "none", max_epochs=2), 1)] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("crosses", [False, True])
def test_a_table_of_one_row_is_read_again_and_again(crosses: bool) -> None:
    for length, size in product((0, 1, 5), (1, 3, 1000)):
        source = reader([length], cross_epochs=crosses, max_epochs=20)
        rows = [row for batch in rest(source, size) for row in batch["row"].tolist()]
        assert rows == [0] * 20, (length, size)


def test_a_size_larger_than_the_epoch_takes_it_whole_and_no_more_than_the_next() -> None:
    assert [batch.rows for batch in rest(reader(LENGTHS, max_epochs=3), 10_000)] == [11, 11, 11]
    assert [batch.rows for batch in rest(reader(LENGTHS, max_epochs=3, cross_epochs=True), 10_000)] == [21, 11, 1]


def test_a_size_counts_the_items_of_the_stream_that_is_named() -> None:
    columns = ragged_table("words", [1, 1, 1, 1]).columns | ragged_table("frames", [4, 4, 4, 4]).columns
    by = {name: hr.Reader(hr.ArrayTable(columns), "none", count=name, max_epochs=1) for name in ("words", "frames")}
    assert [batch.rows for batch in rest(by["words"], 4)] == [4]
    assert [batch.rows for batch in rest(by["frames"], 4)] == [1, 1, 1, 1]


def test_how_many_batches_there_are_is_not_known_before() -> None:
    assert reader(LENGTHS).batches(4) is None


# --- however they are read -------------------------------------------------------------------------------


@given(
    lengths=lengths,
    size=sizes,
    crosses=st.booleans(),
    staged=st.lists(st.integers(1, 200), min_size=1, max_size=12),
)
def test_the_macrobatch_never_changes_the_batches(
    lengths: list[int], size: int, crosses: bool, staged: list[int]
) -> None:
    plain, ahead = (reader(lengths, cross_epochs=crosses) for _ in range(2))
    for stage in staged:
        macrobatch = ahead.next_macrobatch(size, stage)
        for batch in macrobatch.batches():
            assert seen(batch) == seen(plain.next_batch(size))
        assert macrobatch.cursors[-1] == ahead.state_dict()
        assert not any(batch.ends_epoch for batch in macrobatch.batches()[:-1])


@given(lengths=lengths, size=sizes, crosses=st.booleans(), order=st.sampled_from(hr.Order.KINDS))
def test_resume_at_every_cut_gives_the_same_batches(lengths: list[int], size: int, crosses: bool, order: str) -> None:
    options = {"seed": 3, "max_epochs": 2, "cross_epochs": crosses}
    whole = [seen(batch) for batch in rest(reader(lengths, order, **options), size)]
    for k, batch in enumerate(whole):
        fresh = reader(lengths, order, **options)
        fresh.load_state_dict(json.loads(json.dumps(batch["cursor"])))
        assert [seen(later) for later in rest(fresh, size)] == whole[k + 1 :]


def test_going_back_and_forth_gives_the_same_batches() -> None:
    """What is kept of the order between two batches belongs to its place."""
    source = reader([k % 5 for k in range(200)], seed=1)
    whole = [seen(batch) for batch in rest(source, 16, 60)]
    for k in (50, 3, 59, 0, 30, 29, 31):
        source.load_state_dict(whole[k]["cursor"])
        assert [seen(batch) for batch in rest(source, 16, min(3, 59 - k))] == whole[k + 1 : k + 4]


def test_the_size_may_change_at_any_batch_and_the_order_does_not() -> None:
    source = reader(LENGTHS, seed=2)
    rows = [row for size in (1, 9, 3, 30, 2, 2, 30) for row in source.next_batch(size)["row"].tolist()]
    assert rows == positions(source, 4)[: len(rows)]


@pytest.mark.parametrize("stretch", [1, 2, 7, 64])
def test_how_far_the_order_is_computed_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    lengths = [k * 7 % 5 for k in range(50)]
    whole = [seen(batch) for batch in rest(reader(lengths, max_epochs=3, cross_epochs=True), 9)]
    monkeypatch.setattr("headrace.data.reading.STRETCH", stretch)
    assert [seen(batch) for batch in rest(reader(lengths, max_epochs=3, cross_epochs=True), 9)] == whole


def test_more_sequences_than_are_looked_at_together_fit_in_a_batch() -> None:
    n = 20_000
    source = reader([1] * n, max_epochs=1)
    batches = rest(source, 9_000)
    assert [batch.rows for batch in batches] == [9_000, 9_000, 2_000]
    assert torch.cat([batch["row"] for batch in batches]).unique().numel() == n
    assert [batch.rows for batch in rest(reader([0] * n, max_epochs=1), 1)] == [n]


# --- shards ----------------------------------------------------------------------------------------------


@given(lengths=lengths, size=st.integers(1, 60), workers=st.integers(1, 7), crosses=st.booleans())
def test_shards_share_the_items_to_within_one_sequence(
    lengths: list[int], size: int, workers: int, crosses: bool
) -> None:
    options = {"max_epochs": 2, "cross_epochs": crosses}
    whole = rest(reader(lengths, **options), size)
    readers = [reader(lengths, **options) for _ in range(workers)]
    for expected in whole:
        parts = [source.next_batch(size, hr.Shard(r, workers)) for r, source in enumerate(readers)]
        assert [row for part in parts for row in part["row"].tolist()] == expected["row"].tolist()
        assert all((part.total, part.cursor) == (expected.total, expected.cursor) for part in parts)
        assert all(part.ends_epoch == expected.ends_epoch for part in parts)
        held = [len(row) for row in expected["words"]]
        for part in parts:
            assert part.items("words") == part["words"].items
            assert abs(part["words"].items - sum(held) / workers) <= max(held)
    assert [source.next_batch(size, hr.Shard(r, workers)) for r, source in enumerate(readers)] == [None] * workers


@given(lengths=lengths, workers=st.integers(1, 7))
def test_each_cut_is_the_one_that_comes_closest_to_an_even_share(lengths: list[int], workers: int) -> None:
    sums = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    for r in range(workers - 1):
        parts = reader(lengths, "none").next_batch(1000, hr.Shard(r, workers))
        stop = int(parts["row"][-1]) + 1 if parts.rows else None
        if stop is not None:
            distances = [abs(at * workers - sums[-1] * (r + 1)) for at in sums]
            assert distances[stop] == min(distances)


@pytest.mark.parametrize("workers", range(1, 8))
def test_one_sequence_goes_to_one_worker_and_the_others_join_with_none(workers: int) -> None:
    parts = [reader([5], max_epochs=1).next_batch(4, hr.Shard(r, workers)) for r in range(workers)]
    assert sorted(part.rows for part in parts) == [0] * (workers - 1) + [1]
    assert {part.total for part in parts} == {1}
    assert all(part["words"].values.dtype == torch.int64 for part in parts)


def test_sequences_without_items_are_shared_too() -> None:
    parts = [reader([0, 0, 0], "none").next_batch(4, hr.Shard(r, 2)) for r in range(2)]
    assert sorted(row for part in parts for row in part["row"].tolist()) == [0, 1, 2]


@given(lengths=lengths, size=sizes, history=st.lists(st.integers(1, 7), min_size=1, max_size=12))
def test_workers_may_change_after_every_batch(lengths: list[int], size: int, history: list[int]) -> None:
    one = reader(lengths)
    cursor = one.state_dict()
    for workers in history:
        expected, parts = one.next_batch(size), []
        for r in range(workers):
            worker = reader(lengths)
            worker.load_state_dict(cursor)
            parts.append(worker.next_batch(size, hr.Shard(r, workers)))
        assert [row for part in parts for row in part["row"].tolist()] == expected["row"].tolist()
        cursor = parts[0].cursor


def test_shards_of_a_macrobatch_are_the_shards_of_its_batches() -> None:
    for r in range(3):
        plain, ahead = reader(LENGTHS, cross_epochs=True), reader(LENGTHS, cross_epochs=True)
        for stage in (100, 7, 100):
            for batch in ahead.next_macrobatch(5, stage, hr.Shard(r, 3)).batches():
                assert seen(batch) == seen(plain.next_batch(5, hr.Shard(r, 3)))


# --- what cannot be --------------------------------------------------------------------------------------


class Short(hr.ArrayTable):
    """Its lengths are those of fewer rows."""

    def lengths(self, stream: str) -> torch.Tensor:
        return super().lengths(stream)[1:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: reader([1], count="wrods"), "unknown stream 'wrods'. Did you mean 'words'"),
        (lambda: reader([1], count="row"), "stream 'row' has no sequences: every row is one item. Count rows"),
        (lambda: reader([1]).next_batch(0), "at least one item, got size 0"),
        (
            lambda: hr.Reader(Short(ragged_table("words", [1, 2]).columns), count="words"),
            r"Short.lengths\('words'\) gave 1 numbers for 2 rows",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        make()
