"""A Reader: which rows are in which batch, however they are read; and going on after any batch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.own_data import Elsewhere
from torch import Tensor

import headrace as hr
from headrace.testing.makers import ragged_table

lengths = st.lists(st.integers(0, 9) | st.sampled_from([0, 30]), min_size=1, max_size=25)


def reader(lengths: Sequence[int], order: str = "full", **options: Any) -> hr.Reader:
    return hr.Reader(ragged_table("words", lengths), order, **{"count": "words", "block": 4, **options})


def by_rows(rows: int = 23, order: str = "full", **options: Any) -> hr.Reader:
    return reader([1] * rows, order, **{"count": "rows", "block": 5, **options})


def rest(source: hr.Source, size: int, most: int = 1000) -> list[hr.Batch]:
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


@given(
    lengths=lengths, size=st.integers(1, 60), crosses=st.booleans(), seed=st.integers(0, 9), epochs=st.integers(1, 4),
    by_items=st.booleans(), data=st.data(),
)  # fmt: skip
@pytest.mark.parametrize("order", hr.Order.KINDS)
def test_batches_are_those_of_adding_while_the_total_fits(
    order: str,
    lengths: list[int],
    size: int,
    crosses: bool,
    seed: int,
    epochs: int,
    by_items: bool,
    data: st.DataObject,
) -> None:
    n, count, each = len(lengths), "words" if by_items else "rows", lengths if by_items else [1] * len(lengths)
    limit = data.draw(st.none() | st.integers(1, 4 * n))
    options = {"cross_epochs": crosses, "max_epochs": epochs, "max_samples": limit}
    source = reader(lengths, order, seed=seed, count=count, **options)
    rows, end, told = positions(source, epochs + 1), min(epochs * n, limit or epochs * n), source.batches(size)
    cuts = greedy([each[row] for row in rows], n, size, crosses, end)
    batches = rest(source, size)
    assert [batch["row"].tolist() for batch in batches] == [rows[a:b] for a, b in pairwise(cuts)]
    ends = [stop // n > start // n or stop == end for start, stop in pairwise(cuts)]
    assert [batch.ends_epoch for batch in batches] == ends
    assert [batch.cursor["epoch"] * n + batch.cursor["position"] for batch in batches] == cuts[1:]
    for (start, stop), batch in zip(pairwise(cuts), batches, strict=True):
        held = sum(each[row] for row in rows[start:stop])
        assert held <= size or batch.rows == 1
        assert [row.tolist() for row in batch["words"]] == [
            [1000 * r + k for k in range(lengths[r])] for r in rows[start:stop]
        ]
    counts = {b - a for a, b in pairwise([0, *(k for k, last in enumerate(ends, 1) if last)])}
    assert counts == {told} or (told is None and (by_items or crosses or len(counts) > 1 or end % n))


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
    monkeypatch.setattr("headrace.data.reader.STRETCH", stretch)
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


# --- resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (by_rows(seed=1), "seed: saved 0, now 1"),
        (by_rows(order="blocks"), "order: saved 'full', now 'blocks'"),
        (by_rows(22), "rows: saved 23, now 22"),
        (by_rows(block=6), "block: saved 5, now 6"),
        (hr.Reader(hr.ArrayTable({"x": torch.arange(23)}), block=5), "fingerprint: saved "),
        (by_rows(order="blocks", mix=2), "mix: saved 1, now 2"),
        (by_rows(cross_epochs=True), "cross_epochs"),
        (by_rows(count="words"), "count: saved 'rows', now 'words'"),
    ],
)
def test_a_cursor_of_other_data_or_another_order_is_refused(other: hr.Reader, difference: str) -> None:
    before = other.state_dict()
    with pytest.raises(hr.SourceError, match=difference):
        other.load_state_dict(by_rows().state_dict())
    assert other.state_dict() == before


@pytest.mark.parametrize("missing", ["version", "seed", "epoch", "position", "fingerprint"])
def test_a_cursor_that_lacks_something_is_refused(missing: str) -> None:
    cursor = by_rows().state_dict()
    del cursor[missing]
    with pytest.raises(hr.SourceError, match=missing):
        by_rows().load_state_dict(cursor)


def test_a_cursor_past_the_last_epoch_is_finished() -> None:
    limited = by_rows(max_epochs=2)
    limited.load_state_dict({**limited.state_dict(), "epoch": 3})
    assert limited.next_batch(4) is None


# --- batches that cross, limits --------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["blocks", "blocks-only", "rows-only"])
def test_an_order_by_blocks_is_refused_where_nothing_says_how_many_rows_make_one(order: str) -> None:
    told = rf"order='{order}' goes by blocks.* this ArrayTable does not say how many make one\. Say it: .*block=1000"
    table = hr.ArrayTable({"x": torch.arange(23)})
    with pytest.raises(hr.ConfigError, match=told):
        hr.Reader(table, order)
    model = torch.nn.Linear(1, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), order=order)
    with pytest.raises(hr.ConfigError, match=told):
        trainer.fit((torch.zeros(4, 1), torch.zeros(4, 1)), epochs=1, progress=False)
    rows = hr.Reader(hr.ArrayTable(table.columns, block=5), order).next_batch(23)["x"].tolist()
    assert rows == hr.Reader(table, order, block=5).next_batch(23)["x"].tolist() != list(range(23))


# --- tables of one's own ---------------------------------------------------------------------------------


def test_a_table_may_do_with_its_indices_what_it_likes() -> None:
    """To sort them in place, say, so that a file is read from front to back: the order stays what it is."""

    class Own(Elsewhere):
        def take(self, indices: Tensor) -> hr.Batch:
            batch = super().take(indices.clone())
            indices.zero_()
            return batch

    source = hr.Reader(Own({"x": torch.arange(9)}))
    initial, first = source.state_dict(), source.next_batch(4)["x"].tolist()
    source.load_state_dict(initial)
    assert source.next_batch(4)["x"].tolist() == first


def test_a_failed_take_moves_nothing() -> None:
    """Whoever tries again reads the rows that failed, and none is lost."""

    def look(indices: Tensor) -> None:
        if failures:
            raise failures.pop()

    failures = [OSError("the disk is gone")]
    source = hr.Reader(Elsewhere({"x": torch.arange(9)}, look))
    before = source.state_dict()
    with pytest.raises(OSError, match="the disk is gone"):
        source.next_batch(4)
    assert source.state_dict() == before
