"""Workers with models of their own read whole blocks of their own, and together every row once, whoever goes on."""

import json
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.sampled import sampled
from torch import Tensor

import headrace as hr
from headrace.data.lanes import Ahead, Lanes
from headrace.data.order import Order
from headrace.testing.makers import dense_table
from headrace.testing.sources import check_source

SIZES: dict[str, Any] = {
    "n": st.integers(1, 90),
    "block": st.integers(1, 30),
    "mix": st.integers(1, 4),
    "count": st.integers(1, 9),
    "unit": st.integers(1, 40),
    "seed": st.integers(0, 5),
    "epoch": st.integers(0, 5),
}


def lanes_of(order: Order, count: int, epoch: int) -> list[list[int]]:
    """The rows of every lane, as a plain loop would deal out the blocks."""
    rows = order.indices(epoch, 0, order.n).tolist()
    bounds = [0]
    while bounds[-1] < order.n:
        bounds.append(order.stretch_end(epoch, bounds[-1]))
    groups = [rows[a:b] for a, b in pairwise(bounds)]
    cuts = [len(groups) * k // count for k in range(count + 1)]
    return [list(chain(*groups[a:b])) for a, b in pairwise(cuts)]


def dealt(lanes: list[list[int]], unit: int) -> list[int]:
    """Rounds of `unit` rows of each lane."""
    rows, left = [], [list(lane) for lane in lanes]
    while any(left):
        for lane in left:
            rows += lane[:unit]
            del lane[:unit]
    return rows


def reader(rows: int = 23, *, block: int = 5, lanes: tuple[int, int] = (3, 2), **options: Any) -> hr.Reader:
    found = hr.Reader(hr.ArrayTable({"x": torch.arange(rows)}), options.pop("order", "blocks"), block=block, **options)
    found.in_lanes(*lanes)
    return found


WHOLE = hr.Shard()


def rest(source: hr.Source, size: int, shard: hr.Shard = WHOLE) -> list[hr.Batch]:
    return list(iter(lambda: source.next_batch(size, shard), None))


# --- the order -------------------------------------------------------------------------------------------


@given(**SIZES, kind=st.sampled_from(["blocks", "blocks-only"]), data=st.data())
def test_rounds_take_as_many_rows_of_every_lane_until_it_is_used_up(
    n: int, block: int, mix: int, count: int, unit: int, seed: int, epoch: int, kind: str, data: st.DataObject
) -> None:
    order = Order(n, kind, seed=seed, block=block, mix=mix if kind == "blocks" else 1)
    lanes, expected = Lanes(order, count, unit), dealt(lanes_of(order, count, epoch), unit)
    assert sorted(expected) == list(range(n)), "each row once"
    assert lanes.indices(epoch, 0, n).tolist() == expected
    start, stop = sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2)))
    assert lanes.indices(epoch, start, stop).tolist() == expected[start:stop]
    scattered = np.array(data.draw(st.lists(st.integers(0, n - 1))), dtype=np.int64)
    assert lanes.at(epoch, scattered).tolist() == [expected[position] for position in scattered]
    assert order.at(epoch, scattered).tolist() == order.indices(epoch, 0, n)[scattered].tolist()


@given(**SIZES)
def test_lanes_are_whole_blocks_and_as_equal_as_these_allow(
    n: int, block: int, mix: int, count: int, unit: int, seed: int, epoch: int
) -> None:
    order = Order(n, "blocks", seed=seed, block=block, mix=mix)
    rows = order.indices(epoch, 0, n).tolist()
    cuts = order.cuts(epoch, count).tolist()
    lanes = [rows[a:b] for a, b in pairwise(cuts)]
    assert lanes == lanes_of(order, count, epoch)
    assert (cuts[0], cuts[-1]) == (0, n)
    owners = [{row // order.block for row in lane} for lane in lanes]
    assert sum(map(len, owners)) == -(-n // order.block), "no block in two lanes"
    together = order.block * mix
    assert max(map(len, lanes)) - min(map(len, lanes)) < 2 * together, "one group, and the rows that another lacks"


def test_one_lane_is_the_order_itself() -> None:
    order = Order(97, "blocks", block=10, mix=3)
    assert Lanes(order, 1, 4).indices(2, 0, 97).tolist() == order.indices(2, 0, 97).tolist()


def test_an_epoch_of_a_million_million_rows_is_computed_anywhere() -> None:
    n, count, unit = 10**12 + 7, 64, 32
    order = Order(n, "blocks", block=1000)
    lanes = Lanes(order, count, unit)
    cuts = order.cuts(3, count)
    whole = int(np.diff(cuts).min()) // unit
    for turn in (0, 1, whole // 2, whole - 1):
        got = lanes.indices(3, turn * count * unit, (turn + 1) * count * unit).reshape(count, unit)
        for lane in (0, 1, count // 2, count - 1):
            first = int(cuts[lane]) + turn * unit
            assert got[lane].tolist() == order.indices(3, first, first + unit).tolist()
    last = lanes.indices(3, n - 20_000, n)
    assert len(set(last.tolist())) == 20_000
    assert last.min() >= 0
    assert last.max() < n
    longest = int(np.diff(cuts).argmax())
    ends = int(cuts[longest + 1])
    assert order.indices(3, ends - 1, ends)[0] in last, "the last row of the longest lane comes among the last"


# --- what workers read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "mix"), [("blocks", 1), ("blocks", 2), ("blocks-only", 1)])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_worker_reads_whole_blocks_of_its_own(order: str, mix: int, workers: int) -> None:
    unit, rows = 4, 10 * 8 * workers
    plain = Order(rows, order, block=10, mix=mix)
    lanes = [lanes_of(plain, workers, epoch) for epoch in range(2)]
    assert {len(lane) for lane in lanes[0]} == {80}
    for r in range(workers):
        source = reader(rows, block=10, lanes=(workers, unit), order=order, mix=mix, max_epochs=2)
        batches = rest(source, workers * unit, hr.Shard(r, workers))
        assert [batch.rows for batch in batches] == [unit] * 40
        assert torch.cat([batch["x"] for batch in batches]).tolist() == [*lanes[0][r], *lanes[1][r]]
        without = reader(rows, block=10, lanes=(1, unit), order=order, mix=mix, max_epochs=2)
        read = torch.cat([batch["x"] for batch in rest(without, workers * unit, hr.Shard(r, workers))])
        assert len({row // 10 for row in read[:40].tolist()}) > 4, "without lanes it has a part of many blocks"


def test_after_a_lane_is_used_up_all_workers_share_the_others() -> None:
    """Of 7 blocks for 3 workers, the last has one more than the others."""
    source = reader(70, block=10, lanes=(3, 5), max_epochs=1)
    batches = [batch["x"].tolist() for batch in rest(source, 15)]
    lanes = lanes_of(Order(70, "blocks", block=10), 3, 0)
    assert [len(lane) for lane in lanes] == [20, 20, 30]
    assert [batch[10:] for batch in batches[:4]] == [lanes[2][k : k + 5] for k in range(0, 20, 5)]
    assert batches[4] == lanes[2][20:]


@given(
    rows=st.integers(1, 60),
    block=st.integers(1, 12),
    mix=st.integers(1, 3),
    count=st.integers(2, 6),
    unit=st.integers(1, 12),
    size=st.integers(1, 70),
    crosses=st.booleans(),
    history=st.lists(st.integers(1, 7), min_size=1, max_size=12),
)
def test_another_number_of_workers_goes_on_in_the_same_order(
    rows: int, block: int, mix: int, count: int, unit: int, size: int, crosses: bool, history: list[int]
) -> None:
    options: dict[str, Any] = {"block": block, "mix": mix, "cross_epochs": crosses, "max_epochs": 2}
    one = reader(rows, lanes=(count, unit), **options)
    cursor = one.state_dict()
    for workers in history:
        expected, parts = one.next_batch(size), []
        for r in range(workers):
            worker = reader(rows, lanes=(workers, unit + 1), **options)  # as it would lay out a run of its own
            worker.load_state_dict(json.loads(json.dumps(cursor)))
            parts.append(worker.next_batch(size, hr.Shard(r, workers)))
        if expected is None:
            assert parts == [None] * workers
            return
        assert torch.cat([part["x"] for part in parts]).tolist() == expected["x"].tolist()
        assert all(part.cursor == expected.cursor for part in parts)
        cursor = parts[-1].cursor


@pytest.mark.takes_turns
@pytest.mark.parametrize("lanes", sampled([(2, 3), (3, 2), (4, 8)], keep=[(3, 2)], of=2))
def test_the_kit_for_sources_finds_nothing_to_say(lanes: tuple[int, int]) -> None:
    def factory() -> hr.Reader:
        found = hr.Reader(dense_table(13), "blocks", block=2, mix=2)
        found.in_lanes(*lanes)
        return found

    check_source(factory, sizes=(6,), rows=13)


@given(
    rows=st.integers(1, 200),
    size=st.integers(1, 50),
    workers=st.integers(2, 9),
    r=st.integers(0, 8),
    order=st.sampled_from(hr.Order.KINDS),
    lanes=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    staged=st.integers(1, 500),
    crosses=st.booleans(),
)
def test_a_shard_is_the_same_whether_what_lies_between_is_computed_or_not(
    rows: int, size: int, workers: int, r: int, order: str, lanes: tuple[int, int], staged: int, crosses: bool
) -> None:
    def read(worth: int, shard: hr.Shard) -> list[list[list[int]]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.data.reading.OF_OTHERS", worth)
            source = reader(rows, lanes=lanes, order=order, max_epochs=2, cross_epochs=crosses)
            found = iter(lambda: source.next_macrobatch(size, staged, shard), None)
            return [[batch["x"].tolist() for batch in macrobatch.batches()] for macrobatch in found]

    shard = hr.Shard(r % workers, workers)
    assert read(0, shard) == read(10**9, shard)


# --- the cursor ------------------------------------------------------------------------------------------


def test_the_cursor_tells_of_the_lanes_and_without_lanes_is_what_it_was() -> None:
    assert reader(lanes=(4, 32)).state_dict()["lanes"] == "4x32"
    plain = hr.Reader(hr.ArrayTable({"x": torch.arange(23)}), "blocks", block=5).state_dict()
    assert "lanes" not in plain
    assert reader(lanes=(4, 32)).state_dict() == {**plain, "lanes": "4x32"}
    assert reader(lanes=(1, 32)).state_dict() == plain
    for order in ("full", "rows-only", "none"):
        assert "lanes" not in reader(lanes=(4, 32), order=order).state_dict()


def test_a_cursor_from_before_there_were_lanes_goes_on_without_them() -> None:
    old = reader(lanes=(1, 1), max_epochs=1)
    old.next_batch(6)
    new = reader(lanes=(3, 2), max_epochs=1)
    new.load_state_dict(old.state_dict())
    assert [batch["x"].tolist() for batch in rest(new, 6)] == [batch["x"].tolist() for batch in rest(old, 6)]
    assert new.state_dict() == old.state_dict()


def test_rewound_it_reads_the_same_again() -> None:
    source = reader(max_epochs=1)
    initial, first = source.state_dict(), [batch["x"].tolist() for batch in rest(source, 6)]
    source.load_state_dict(initial)
    assert [batch["x"].tolist() for batch in rest(source, 6)] == first


def test_in_the_middle_of_an_epoch_the_order_stays() -> None:
    source, same = (reader(lanes=(3, 2), max_epochs=1) for _ in range(2))
    assert source.next_batch(7)["x"].tolist() == same.next_batch(7)["x"].tolist()
    source.in_lanes(2, 3)
    assert source.state_dict() == same.state_dict()
    assert [batch["x"].tolist() for batch in rest(source, 6)] == [batch["x"].tolist() for batch in rest(same, 6)]


def test_the_same_reading_of_another_table_has_the_same_lanes() -> None:
    source = hr.map(reader(), lambda fields: {"x": fields["x"] * 2})
    assert source.state_dict()["lanes"] == "3x2"
    assert source.next_batch(23)["x"].tolist() == [2 * row for row in reader().next_batch(23)["x"].tolist()]


def test_sizes_that_count_items_have_no_lanes() -> None:
    words = hr.Ragged.of([torch.zeros(k % 4) for k in range(20)])
    source = hr.Reader(hr.ArrayTable({"words": words}), "blocks", block=5, count="words")
    source.in_lanes(2, 4)
    assert "lanes" not in source.state_dict()


@pytest.mark.parametrize("text", ["", "4", "x", "4x", "x32", "0x4", "4x0", "-1x4", "4x32x1", 4, "99999999x1"])
def test_a_cursor_with_other_lanes_than_there_can_be_is_refused(text: Any) -> None:
    source = reader(lanes=(1, 1))
    before = source.state_dict()
    with pytest.raises(hr.SourceError, match="not the cursor of a Reader: lanes are like '4x32'"):
        source.load_state_dict({**before, "lanes": text})
    assert source.state_dict() == before


def test_a_cursor_of_another_order_is_refused_with_lanes_or_without() -> None:
    with pytest.raises(hr.SourceError, match="block: saved 5, now 6"):
        reader(block=6).load_state_dict(reader().state_dict())
    with pytest.raises(hr.SourceError, match="order: saved 'blocks', now 'full'"):
        reader(order="full").load_state_dict(reader().state_dict())


@pytest.mark.parametrize(
    ("count", "unit", "message"),
    [
        (0, 4, "count= is a whole number from 1 to 65536, got 0"),
        (-2, 4, "got -2"),
        (2**17, 4, "got 131072"),
        ("2", 4, "got '2'"),
        (2, 0, "unit= is a whole number from 1 to .*got 0"),
        (2, 1.5, "got 1.5"),
    ],
)
def test_lanes_that_cannot_be_are_refused(count: Any, unit: Any, message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        reader(lanes=(count, unit))


def test_only_shuffled_blocks_have_lanes() -> None:
    with pytest.raises(hr.ConfigError, match="only an order of shuffled blocks has lanes, got 'full'"):
        Lanes(Order(9, "full"), 2, 3)
    with pytest.raises(hr.ConfigError, match="positions 3 to 10 are not within an epoch of 9 rows"):
        Lanes(Order(9, "blocks", block=2), 2, 3).indices(0, 3, 10)


# --- what the table is told ------------------------------------------------------------------------------


class OnDisk(hr.ArrayTable):
    """Notes what it is told, and that the rows it is asked for have been announced."""

    def __init__(self, rows: int) -> None:
        super().__init__({"x": torch.arange(rows)}, block=5)
        self.now: list[tuple[int, int]] = []
        self.soon: list[tuple[int, int]] = []

    @property
    def row_bytes(self) -> float:
        return 1e9  # worth telling

    def prefetch(self, start: int, stop: int, *, now: bool = True) -> None:
        (self.now if now else self.soon).append((start, stop))

    def take(self, indices: Tensor) -> hr.Batch:
        assert set(indices.tolist()) <= {row for run in self.now for row in range(*run)}
        return super().take(indices)


@pytest.mark.parametrize("mix", [1, 2])
@pytest.mark.parametrize("shard", [hr.Shard(), hr.Shard(0, 3), hr.Shard(2, 3), hr.Shard(4, 5)])
@pytest.mark.parametrize("staged", [1, 1000])
def test_a_table_on_disk_is_told_of_the_blocks_that_a_worker_reads(mix: int, shard: hr.Shard, staged: int) -> None:
    table = OnDisk(63)
    source = hr.Reader(table, "blocks", mix=mix, max_epochs=2)
    source.in_lanes(3, 4)
    lanes = lanes_of(source.order.order, 3, 0)  # type: ignore[union-attr]
    for epoch in range(2):
        table.now.clear()
        table.soon.clear()
        while source.epoch == epoch:
            source.next_macrobatch(12, staged, shard)
        assert len(table.now) == len(set(table.now)), "once an epoch"
        assert set(table.soon) <= {(start, min(63, start + 5)) for start in range(0, 63, 5)}
        assert len(table.soon) == len(set(table.soon))
        assert set(table.soon) <= set(table.now)
    if shard.count == 3:  # its own blocks, and no others until a lane is used up
        table = OnDisk(63)
        source = hr.Reader(table, "blocks", mix=mix)
        source.in_lanes(3, 4)
        for _ in range(min(map(len, lanes)) // 4):
            source.next_batch(12, shard)
        own = {row // 5 for row in lanes[shard.index]}
        assert {start // 5 for start, _ in table.now} <= own
        assert {start // 5 for start, _ in table.soon} <= own


@given(**SIZES, data=st.data())
def test_tracks_are_the_runs_that_positions_come_by(
    n: int, block: int, mix: int, count: int, unit: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    order = Order(n, "blocks", seed=seed, block=block, mix=mix)
    lanes, cuts = Lanes(order, count, unit), order.cuts(epoch, count).tolist()
    start, stop = sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2)))
    rows = list[int]()
    for lane, first, last, end in lanes.tracks(epoch, start, stop):
        assert cuts[lane] <= first < last <= end == cuts[lane + 1]
        rows += order.indices(epoch, first, last).tolist()
    assert sorted(rows) == sorted(lanes.indices(epoch, start, stop).tolist())


def test_where_there_is_one_lane_the_table_is_told_what_it_was_told_without() -> None:
    order, told = Order(83, "blocks", block=5, mix=2), [OnDisk(83), OnDisk(83)]
    for table, ahead in zip(told, (Ahead(told[0], order), Ahead(told[1], Lanes(order, 1, 7))), strict=True):
        for epoch in range(2):
            for start in range(0, 83, 7):
                ahead(epoch, start, min(83, start + 7))
        assert table.now
        assert table.soon
    assert (told[0].now, told[0].soon) == (told[1].now, told[1].soon)
