"""Batches sized by items hold whole sequences, as many as fit, and are the same however they are read."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.testing.makers import ragged_table

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


def test_a_size_counts_the_items_of_the_stream_that_is_named() -> None:
    columns = ragged_table("words", [1, 1, 1, 1]).columns | ragged_table("frames", [4, 4, 4, 4]).columns
    by = {name: hr.Reader(hr.ArrayTable(columns), "none", count=name, max_epochs=1) for name in ("words", "frames")}
    assert [batch.rows for batch in rest(by["words"], 4)] == [4]
    assert [batch.rows for batch in rest(by["frames"], 4)] == [1, 1, 1, 1]


# --- however they are read -------------------------------------------------------------------------------


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


@given(lengths=lengths, workers=st.integers(1, 7))
def test_each_cut_is_the_one_that_comes_closest_to_an_even_share(lengths: list[int], workers: int) -> None:
    sums = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    for r in range(workers - 1):
        parts = reader(lengths, "none").next_batch(1000, hr.Shard(r, workers))
        stop = int(parts["row"][-1]) + 1 if parts.rows else None
        if stop is not None:
            distances = [abs(at * workers - sums[-1] * (r + 1)) for at in sums]
            assert distances[stop] == min(distances)
