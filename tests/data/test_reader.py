"""A Reader reads every row once an epoch, resumes after any batch, and shares any batch among any workers."""

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

KINDS = hr.Order.KINDS


def table(rows: int = 23) -> hr.ArrayTable:
    """`x` is the number of the row, so a batch shows which rows it holds."""
    return hr.ArrayTable({"x": torch.arange(rows), "y": torch.arange(rows).unsqueeze(1) * 0.5})


def reader(rows: int = 23, order: str = "full", **options: Any) -> hr.Reader:
    return hr.Reader(table(rows), order, **{"block": 5, **options})


def rest(source: hr.Source, size: int = 4) -> list[hr.Batch]:
    """Every batch up to the end of the source."""
    return list(iter(lambda: source.next_batch(size), None))


# --- batches ---------------------------------------------------------------------------------------------


def test_the_size_may_change_at_any_batch_and_the_order_does_not() -> None:
    steady, changing = reader(), reader()
    rows = [changing.next_batch(size)["x"] for size in (1, 7, 3, 2, 99)]
    assert torch.equal(torch.cat(rows), steady.next_batch(23)["x"])


# --- resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (reader(seed=1), "seed: saved 0, now 1"),
        (reader(order="blocks"), "order: saved 'full', now 'blocks'"),
        (reader(22), "rows: saved 23, now 22"),
        (reader(block=6), "block: saved 5, now 6"),
        (hr.Reader(hr.ArrayTable({"x": torch.arange(23)}), block=5), "fingerprint: saved "),
        (reader(order="blocks", mix=2), "mix: saved 1, now 2"),
        (reader(cross_epochs=True), "cross_epochs"),
    ],
)
def test_a_cursor_of_other_data_or_another_order_is_refused(other: hr.Reader, difference: str) -> None:
    before = other.state_dict()
    with pytest.raises(hr.SourceError, match=difference):
        other.load_state_dict(reader().state_dict())
    assert other.state_dict() == before


@pytest.mark.parametrize("missing", ["version", "seed", "epoch", "position", "fingerprint"])
def test_a_cursor_that_lacks_something_is_refused(missing: str) -> None:
    cursor = reader().state_dict()
    del cursor[missing]
    with pytest.raises(hr.SourceError, match=missing):
        reader().load_state_dict(cursor)


def test_a_cursor_past_the_last_epoch_is_finished() -> None:
    limited = reader(max_epochs=2)
    limited.load_state_dict({**limited.state_dict(), "epoch": 3})
    assert limited.next_batch(4) is None


# --- batches that cross, limits --------------------------------------------------------------------------


def plain_cuts(n: int, size: int, crosses: bool, end: int) -> list[int]:
    """Where batches begin and end, counted in rows from the first epoch on."""
    cuts = [0]
    while cuts[-1] < end:
        cuts.append(min(cuts[-1] + size, (cuts[-1] // n + 1) * n + crosses * (n - 1), end))
    return cuts


@given(
    rows=st.integers(1, 30),
    order=st.sampled_from(KINDS),
    size=st.integers(1, 70),
    crosses=st.booleans(),
    epochs=st.integers(1, 4),
    samples=st.none() | st.integers(1, 130),
)
def test_batches_are_cut_as_a_plain_loop_would(
    rows: int, order: str, size: int, crosses: bool, epochs: int, samples: int | None
) -> None:
    source = reader(rows, order, seed=3, cross_epochs=crosses, max_epochs=epochs, max_samples=samples)
    end = min(epochs * rows, samples or epochs * rows)
    stream = [row for epoch in range(epochs) for row in source.order.indices(epoch, 0, rows).tolist()]
    told = source.batches(size)
    batches, cuts = rest(source, size), plain_cuts(rows, size, crosses, end)
    assert [batch["x"].tolist() for batch in batches] == [stream[a:b] for a, b in pairwise(cuts)]
    ends = [b // rows > a // rows or b == end for a, b in pairwise(cuts)]
    assert [batch.ends_epoch for batch in batches] == ends
    counts = {b - a for a, b in pairwise([0, *(k for k, last in enumerate(ends, 1) if last)])}
    assert counts == {told} or (told is None and (crosses or len(counts) > 1 or end % rows))
    assert [batch.cursor["epoch"] * rows + batch.cursor["position"] for batch in batches] == cuts[1:]


@pytest.mark.parametrize("order", ["blocks", "blocks-only", "rows-only"])
def test_an_order_by_blocks_is_refused_where_nothing_says_how_many_rows_make_one(order: str) -> None:
    told = rf"order='{order}' goes by blocks.* this ArrayTable does not say how many make one\. Say it: .*block=1000"
    with pytest.raises(hr.ConfigError, match=told):
        hr.Reader(table(), order)
    model = torch.nn.Linear(1, 1)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), order=order)
    with pytest.raises(hr.ConfigError, match=told):
        trainer.fit((torch.zeros(4, 1), torch.zeros(4, 1)), epochs=1, progress=False)
    rows = hr.Reader(hr.ArrayTable(table().columns, block=5), order).next_batch(23)["x"].tolist()
    assert rows == hr.Reader(table(), order, block=5).next_batch(23)["x"].tolist() != list(range(23))


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


def test_a_cursor_of_batches_by_rows_is_refused_where_items_are_counted() -> None:
    plain = hr.Reader(ragged_table("words", [1, 2, 3]))
    with pytest.raises(hr.SourceError, match="count"):
        hr.Reader(plain.table, count="words").load_state_dict(plain.state_dict())


def test_a_cursor_of_workers_that_read_blocks_in_lanes_is_refused() -> None:
    reader = hr.Reader(hr.ArrayTable({"x": torch.arange(40)}), "blocks", block=4)
    with pytest.raises(hr.SourceError, match="in lanes: begin another run"):
        reader.load_state_dict({**reader.state_dict(), "lanes": "4x2"})
