"""A Reader reads every row once an epoch, resumes after any batch, and shares any batch among any workers."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headrace as hr

KINDS = hr.Order.KINDS
WHOLE = hr.Shard()


def table(rows: int = 23) -> hr.ArrayTable:
    """`x` is the number of the row, so a batch shows which rows it holds."""
    return hr.ArrayTable({"x": torch.arange(rows), "y": torch.arange(rows).unsqueeze(1) * 0.5})


def reader(rows: int = 23, order: str = "full", **options: Any) -> hr.Reader:
    return hr.Reader(table(rows), order, **{"block": 5, **options})


def rest(source: hr.Source, size: int = 4) -> list[hr.Batch]:
    """Every batch up to the end of the source."""
    return list(iter(lambda: source.next_batch(size), None))


def seen(batch: hr.Batch) -> dict[str, Any]:
    """Everything that there is to a batch, for comparison."""
    fields = {name: batch[name].tolist() for name in batch.fields}
    return {**fields, "rows": batch.rows, "total": batch.total, "cursor": batch.cursor, "ends": batch.ends_epoch}


# --- batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", KINDS)
def test_batches_hold_every_row_once_an_epoch_in_the_order(order: str) -> None:
    for size in (1, 4, 23, 100):
        batches = rest(reader(order=order, seed=3, max_epochs=2), size)
        expected = hr.Order(23, order, seed=3, block=5)
        rows = torch.cat([batch["x"] for batch in batches]).tolist()
        assert rows == [*expected.indices(0, 0, 23), *expected.indices(1, 0, 23)]
        assert torch.cat([batch["y"] for batch in batches]).squeeze(1).tolist() == [0.5 * row for row in rows]
        an_epoch = [size] * (23 // size) + ([23 % size] if 23 % size else [])
        assert [batch.rows for batch in batches] == an_epoch * 2
        assert [batch.ends_epoch for batch in batches] == ([False] * (len(an_epoch) - 1) + [True]) * 2
        assert reader().batches(size) == len(an_epoch)


def test_a_reader_is_finished_after_max_epochs_and_stays_so() -> None:
    limited = reader(max_epochs=1)
    assert len(rest(limited, 6)) == 4
    assert limited.next_batch(6) is None
    assert limited.next_macrobatch(6, 100) is None


def test_the_size_may_change_at_any_batch_and_the_order_does_not() -> None:
    steady, changing = reader(), reader()
    rows = [changing.next_batch(size)["x"] for size in (1, 7, 3, 2, 99)]
    assert torch.equal(torch.cat(rows), steady.next_batch(23)["x"])


@given(
    rows=st.integers(1, 60),
    order=st.sampled_from(KINDS),
    size=st.integers(1, 70),
    staged=st.lists(st.integers(1, 200), min_size=1, max_size=40),
)
def test_the_macrobatch_never_changes_the_batches(rows: int, order: str, size: int, staged: list[int]) -> None:
    plain, ahead = (reader(rows, order) for _ in range(2))
    for stage in staged:
        macrobatch = ahead.next_macrobatch(size, stage)
        for batch in macrobatch.batches():
            assert seen(batch) == seen(plain.next_batch(size))
        assert macrobatch.cursors[-1] == ahead.state_dict()


# --- resume ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", KINDS)
def test_resume_after_every_batch_gives_the_same_batches(order: str) -> None:
    whole = [seen(batch) for batch in rest(reader(order=order, seed=3, max_epochs=2))]
    for k, batch in enumerate(whole):
        fresh = reader(order=order, seed=3, max_epochs=2)
        fresh.load_state_dict(json.loads(json.dumps(batch["cursor"])))
        assert fresh.state_dict() == batch["cursor"]
        assert [seen(batch) for batch in rest(fresh)] == whole[k + 1 :]


def test_a_reader_can_be_rewound_again_and_again() -> None:
    source = reader(seed=3, max_epochs=2)
    initial, whole = source.state_dict(), [seen(batch) for batch in rest(source)]
    for _ in range(3):
        source.load_state_dict(initial)
        assert [seen(batch) for batch in rest(source)] == whole


def test_a_cursor_is_a_value_and_follows_its_batch() -> None:
    source = reader()
    cursor = source.next_batch(4).cursor
    before = dict(cursor)
    source.next_batch(4)
    assert cursor == before
    assert {type(value) for value in cursor.values()} <= {int, str}
    assert (cursor["epoch"], cursor["position"], cursor["rows"]) == (0, 4, 23)
    assert source.next_batch(15).cursor | {"epoch": 1, "position": 0} == source.state_dict()


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (reader(seed=1), "seed: saved 0, now 1"),
        (reader(order="blocks"), "order: saved 'full', now 'blocks'"),
        (reader(22), "rows: saved 23, now 22"),
        (reader(block=6), "block: saved 5, now 6"),
        (hr.Reader(hr.ArrayTable({"x": torch.arange(23)}), block=5), "fingerprint: saved "),
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


# --- shards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", KINDS)
def test_shards_partition_every_batch_exactly(order: str) -> None:
    """Of 4 rows and a last batch of 3: five workers, one of them without a row."""
    whole = [seen(batch) for batch in rest(reader(order=order, max_epochs=2))]
    for workers in range(1, 6):
        readers = [reader(order=order, max_epochs=2) for _ in range(workers)]
        for expected in whole:
            parts = [source.next_batch(4, hr.Shard(r, workers)) for r, source in enumerate(readers)]
            for r, part in enumerate(parts):
                g = expected["total"]
                assert part.rows == len(part["x"]) == g * (r + 1) // workers - g * r // workers
                assert (part.total, part.cursor, part.ends_epoch) == tuple(
                    expected[key] for key in ("total", "cursor", "ends")
                )
            assert torch.cat([part["x"] for part in parts]).tolist() == expected["x"]
        assert [source.next_batch(4, hr.Shard(r, workers)) for r, source in enumerate(readers)] == [None] * workers


def test_shards_of_a_macrobatch_are_the_shards_of_its_batches() -> None:
    for r in range(3):
        plain, ahead = reader(), reader()
        for batch in ahead.next_macrobatch(5, 100, hr.Shard(r, 3)).batches():
            assert seen(batch) == seen(plain.next_batch(5, hr.Shard(r, 3)))


@given(rows=st.integers(1, 60), size=st.integers(1, 20), history=st.lists(st.integers(1, 8), min_size=1, max_size=30))
def test_workers_may_change_after_every_batch(rows: int, size: int, history: list[int]) -> None:
    one = reader(rows)
    cursor = one.state_dict()
    for workers in history:
        expected, parts = one.next_batch(size), []
        for r in range(workers):
            worker = reader(rows)
            worker.load_state_dict(cursor)
            parts.append(worker.next_batch(size, hr.Shard(r, workers)))
        assert torch.equal(torch.cat([part["x"] for part in parts]), expected["x"])
        assert all(part.cursor == expected.cursor for part in parts)
        cursor = parts[-1].cursor


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (0, 0), (2, 2)])
def test_a_shard_is_one_of_its_count(index: int, count: int) -> None:
    with pytest.raises(hr.ConfigError, match=f"index {index} of {count}"):
        hr.Shard(index, count)


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


def test_a_batch_that_crosses_belongs_to_the_epoch_of_its_first_row() -> None:
    source = reader(10, "none", cross_epochs=True)
    batches = [source.next_batch(4) for _ in range(6)]
    assert [batch["x"].tolist() for batch in batches[2:4]] == [[8, 9, 0, 1], [2, 3, 4, 5]]
    assert [batch.ends_epoch for batch in batches] == [False, False, True, False, True, False]
    assert (batches[2].cursor["epoch"], batches[2].cursor["position"]) == (1, 2)
    assert source.batches(4) is None  # three, then two


def test_a_limit_of_samples_cuts_the_last_batch() -> None:
    for crosses in (False, True):
        batches = rest(reader(10, max_samples=13, cross_epochs=crosses), 4)
        assert sum(batch.rows for batch in batches) == 13
        assert batches[-1].ends_epoch
    assert rest(reader(10, max_samples=3), 4)[0].rows == 3
    assert [batch.rows for batch in rest(reader(10, max_samples=100, max_epochs=1), 4)] == [4, 4, 2]


@given(
    rows=st.integers(1, 40),
    mix=st.integers(1, 5),
    size=st.integers(1, 50),
    crosses=st.booleans(),
    start=st.integers(0, 90),
    staged=st.lists(st.integers(1, 150), min_size=1, max_size=20),
)
def test_the_macrobatch_never_changes_the_batches_from_any_start(
    rows: int, mix: int, size: int, crosses: bool, start: int, staged: list[int]
) -> None:
    plain, ahead = (reader(rows, "blocks", mix=mix, cross_epochs=crosses) for _ in range(2))
    epoch, position = divmod(start, rows)
    for source in (plain, ahead):
        source.load_state_dict({**source.state_dict(), "epoch": epoch, "position": position})
    for stage in staged:
        macrobatch = ahead.next_macrobatch(size, stage)
        for batch in macrobatch.batches():
            assert seen(batch) == seen(plain.next_batch(size))
        assert macrobatch.cursors[-1] == ahead.state_dict()


@pytest.mark.parametrize("crosses", [False, True])
@pytest.mark.parametrize("mix", [1, 3])
def test_resume_after_every_batch_of_mixed_blocks_gives_the_same_batches(mix: int, crosses: bool) -> None:
    options: dict[str, Any] = {"mix": mix, "cross_epochs": crosses, "max_samples": 57}
    whole = [seen(batch) for batch in rest(reader(order="blocks", **options))]
    for k, batch in enumerate(whole):
        fresh = reader(order="blocks", **options)
        fresh.load_state_dict(json.loads(json.dumps(batch["cursor"])))
        assert [seen(later) for later in rest(fresh)] == whole[k + 1 :]


@given(rows=st.integers(1, 30), size=st.integers(1, 40), workers=st.integers(1, 7), order=st.sampled_from(KINDS))
def test_shards_partition_every_batch_that_crosses(rows: int, size: int, workers: int, order: str) -> None:
    options: dict[str, Any] = {"cross_epochs": True, "max_epochs": 3}
    readers = [reader(rows, order, **options) for _ in range(workers)]
    for expected in rest(reader(rows, order, **options), size):
        parts = [source.next_batch(size, hr.Shard(r, workers)) for r, source in enumerate(readers)]
        assert torch.cat([part["x"] for part in parts]).tolist() == expected["x"].tolist()
        for r, part in enumerate(parts):
            assert part.rows == expected.rows * (r + 1) // workers - expected.rows * r // workers
            assert (part.total, part.cursor, part.ends_epoch) == (expected.rows, expected.cursor, expected.ends_epoch)
    assert [source.next_batch(size, hr.Shard(r, workers)) for r, source in enumerate(readers)] == [None] * workers


@pytest.mark.parametrize("stretch", [1, 3, 50])
def test_how_far_the_order_is_computed_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    whole = [seen(batch) for batch in rest(reader(order="full", cross_epochs=True, max_epochs=3))]
    monkeypatch.setattr("headrace.data.reading.STRETCH", stretch)
    assert [seen(batch) for batch in rest(reader(order="full", cross_epochs=True, max_epochs=3))] == whole


def test_a_cursor_of_other_mixed_blocks_is_refused() -> None:
    with pytest.raises(hr.SourceError, match="mix: saved 1, now 2"):
        reader(order="blocks", mix=2).load_state_dict(reader(order="blocks").state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_samples": 0}, "max_samples= is at least 1, got 0"),
        ({"order": "full", "mix": 2}, "mix= is a number of blocks"),
        ({"count": "y"}, "stream 'y' has no sequences"),
        ({"count": "z"}, "unknown stream 'z'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        reader(**options)


# --- tables that break their contract --------------------------------------------------------------------


class Own(hr.Table):
    """A table of the user's: 9 rows of `x` and `y`, of which `take` gives what it is told to."""

    def __init__(self, give: Callable[[Tensor], hr.Batch], streams: Sequence[str] = ("x", "y")) -> None:
        self.give, self.names = give, streams

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream(name, dtype="int64") for name in self.names]

    def __len__(self) -> int:
        return 9

    def take(self, indices: Tensor) -> hr.Batch:
        return self.give(indices)


def test_a_table_of_your_own_needs_three_methods() -> None:
    source = hr.Reader(Own(lambda indices: hr.Batch({"x": indices, "y": indices * 2})), max_epochs=1)
    rows = torch.cat([batch["x"] for batch in rest(source)])
    assert sorted(rows.tolist()) == list(range(9))


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda i: hr.Batch({"x": i, "y": i.float()}), r"Own: expected stream y: int64\[\], got y: float32\[\]"),
        (lambda i: hr.Batch({"x": i, "y": i[:, None]}), r"expected stream y: int64\[\], got y: int64\[1\]"),
        (lambda i: hr.Batch({"x": i}), r"declares stream 'y', which is missing in a batch with \['x'\]"),
        (lambda i: hr.Batch({"x": i[1:], "y": i[1:]}), "asked for 4 rows and gave 3"),
        (lambda i: hr.Batch({"x": i, "y": i[1:]}, rows=len(i)), "'y'.* 3"),
    ],
)
def test_a_table_that_gives_something_else_is_named_with_the_stream(give: Any, message: str) -> None:
    with pytest.raises(hr.SourceError, match=message):
        hr.Reader(Own(give)).next_batch(4)


def test_a_table_that_changes_its_dtype_later_is_caught() -> None:
    source = hr.Reader(Own(lambda i: hr.Batch({"x": i, "y": i if 0 in i else i.float()})), "none")
    source.next_batch(4)
    with pytest.raises(hr.SourceError, match="expected stream y: int64"):
        source.next_batch(4)


def test_a_table_may_do_with_its_indices_what_it_likes() -> None:
    """To sort them in place, say, so that a file is read from front to back: the order stays what it is."""

    def give(indices: Tensor) -> hr.Batch:
        rows = indices.clone()
        indices.zero_()
        return hr.Batch({"x": rows, "y": rows})

    source = hr.Reader(Own(give))
    initial, first = source.state_dict(), source.next_batch(4)["x"].tolist()
    source.load_state_dict(initial)
    assert source.next_batch(4)["x"].tolist() == first


def test_a_failed_take_moves_nothing() -> None:
    """Whoever tries again reads the rows that failed, and none is lost."""

    def give(indices: Tensor) -> hr.Batch:
        if failures:
            raise failures.pop()
        return hr.Batch({"x": indices, "y": indices})

    failures = [OSError("the disk is gone")]
    source = hr.Reader(Own(give))
    before = source.state_dict()
    with pytest.raises(OSError, match="the disk is gone"):
        source.next_batch(4)
    assert source.state_dict() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.Reader(hr.ArrayTable({"x": torch.empty(0, 3)})), "no rows"),
        (lambda: hr.Reader(Own(NotImplemented, ["x", "y", "x"])), "unique, got 'x' more than once"),
        (lambda: reader(order="blcks"), "Did you mean 'blocks'"),
        (lambda: reader(max_epochs=0), "max_epochs= is at least 1, got 0"),
        (lambda: reader().next_batch(0), "at least one row, got size 0"),
    ],
)
def test_what_cannot_be_read_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        make()


def test_a_batch_larger_than_the_table_still_ends_one_epoch_only() -> None:
    source = hr.Reader(hr.ArrayTable({"x": torch.arange(10)}), cross_epochs=True, max_epochs=4)
    ends, position = 0, 0
    for batch in rest(source, 64):
        ends += batch.ends_epoch
        position += batch.rows
        assert ends == position // 10
    assert ends == 4


@pytest.mark.parametrize("changed", [{"cross_epochs": True}, {"count": "words"}])
def test_a_cursor_of_other_batches_is_refused(changed: dict[str, Any]) -> None:
    from headrace.testing.makers import ragged_table

    plain = hr.Reader(ragged_table("words", [1, 2, 3]))
    with pytest.raises(hr.SourceError, match=next(iter(changed))):
        hr.Reader(plain.table, **changed).load_state_dict(plain.state_dict())


def test_a_cursor_of_workers_that_read_blocks_in_lanes_is_refused() -> None:
    reader = hr.Reader(hr.ArrayTable({"x": torch.arange(40)}), "blocks", block=4)
    with pytest.raises(hr.SourceError, match="in lanes: begin another run"):
        reader.load_state_dict({**reader.state_dict(), "lanes": "4x2"})
