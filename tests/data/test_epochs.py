"""`head(source, n)`: epochs of n rows, each going on where the last one ended, resumed after any batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.adapters import compose
from headrace.data.ragged import Ragged


class Counts(hr.Source):
    """Gives the numbers 0, 1, 2, ... `rows` of them before it ends; never ends without."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows, self.at, self.endless = rows, 0, rows is None

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("id", (), "int64")]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        stop = self.at + size if self.rows is None else min(self.at + size, self.rows)
        if stop == self.at:
            return None
        batch = hr.Batch({"id": torch.arange(self.at, stop)})
        self.at = stop
        return batch

    def state_dict(self) -> dict[str, Any] | None:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Marks(Counts):
    """Says itself where its own epochs end, and begins again."""

    marks_ends = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        assert batch is not None
        if self.at == self.rows:
            self.at, batch.ends_epoch = 0, True
        return batch


class Shares(Counts):
    """Honours the shard."""

    shards = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is None:
            return None
        start, stop = shard.of(batch.rows)
        return hr.Batch({"id": batch["id"][start:stop]}, stop - start, total=batch.rows)


class Again(Counts):
    """Has no state, and begins again by itself after `None`."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is None:
            self.at = 0
        return batch

    def state_dict(self) -> None:
        return None


class Ended(Again):
    """Has no state, and ends for good."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return Counts.next_batch(self, size)


class GradientBuckets(Counts):
    """Gives seven rows at a time, whatever is asked."""

    own_size = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return super().next_batch(7)


def rounds(rows: int) -> hr.Reader:
    return hr.Reader(hr.ArrayTable({"id": torch.arange(rows)}), order="none")


def epoch(source: hr.Source, size: int, limit: int = 200) -> list[list[int]]:
    """The batches up to the one that ends an epoch."""
    found: list[list[int]] = []
    for _ in range(limit):
        batch = source.next_batch(size)
        if batch is None:
            return found
        found.append(batch["id"].tolist())
        if batch.ends_epoch:
            return found
    raise AssertionError("no end")


def flat(batches: list[list[int]]) -> list[int]:
    return [k for batch in batches for k in batch]


ENDLESS = [lambda: Counts(), lambda: Counts(35), lambda: Marks(35), lambda: rounds(35), lambda: Again(35)]
NAMES = ["endless", "rewound", "marks ends", "reader", "begins again"]


# --- epochs ------------------------------------------------------------------------------------------------


def test_an_epoch_has_so_many_rows_and_the_next_goes_on() -> None:
    source = compose.head(Counts(), 10)
    assert epoch(source, 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert epoch(source, 4) == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    assert epoch(source, 100) == [list(range(20, 30))]
    assert source.batches(4) == 3
    assert source.batches(100) == 1


@given(kind=st.sampled_from(ENDLESS), rows=st.integers(1, 120), size=st.integers(1, 50))
def test_every_epoch_has_so_many_rows_whatever_it_is_made_of(kind: Any, rows: int, size: int) -> None:
    made = kind()
    period = 10**9 if made.endless else 35
    source = compose.head(made, rows)
    for k in range(4):
        assert flat(epoch(source, size)) == [j % period for j in range(k * rows, (k + 1) * rows)]


@pytest.mark.parametrize("kind", ENDLESS[1:], ids=NAMES[1:])
def test_a_source_that_ends_within_an_epoch_begins_again_within_it(kind: Callable[[], hr.Source]) -> None:
    source = compose.head(kind(), 50)
    assert epoch(source, 20) == [list(range(20)), list(range(20, 35)), list(range(15))]
    assert flat(epoch(source, 20)) == [*range(15, 35), *range(30)]


@pytest.mark.parametrize("kind", ENDLESS, ids=NAMES)
def test_batches_of_an_epoch_are_as_many_as_said_if_anything_is_said(kind: Callable[[], hr.Source]) -> None:
    for rows in (10, 35, 50, 70, 100):
        source = compose.head(kind(), rows)
        said = source.batches(16)
        for _ in range(4):
            assert said in (None, len(epoch(source, 16))), rows


def test_a_source_that_ends_for_good_ends() -> None:
    source = compose.head(Ended(35), 20)
    assert [flat(epoch(source, 8)) for _ in range(3)] == [list(range(20)), list(range(20, 35)), []]
    assert source.next_batch(8) is None


@pytest.mark.parametrize("kind", [lambda: Counts(0), lambda: Ended(0), lambda: Again(0)])
def test_a_source_without_rows_gives_none(kind: Callable[[], hr.Source]) -> None:
    assert compose.head(kind(), 5).next_batch(2) is None


def test_batches_that_have_a_size_of_their_own_cross_the_end() -> None:
    source = compose.head(GradientBuckets(), 20)
    assert source.own_size
    assert source.batches(4) is None
    assert [len(batch) for batch in epoch(source, 4)] == [7, 7, 7]
    assert flat(epoch(source, 4))[0] == 21


def test_it_knows_what_its_source_knows() -> None:
    made = compose.head(rounds(35), 10)
    assert (made.endless, made.marks_ends, made.thread_safe, made.shards, made.elastic) == (0, 1, 1, 1, 1)
    assert made.level == rounds(35).level
    assert list(made.streams) == list(rounds(35).streams)
    assert not compose.head(Counts(), 10).thread_safe
    assert not compose.head(Counts(), 10).endless
    assert compose.head(Again(9), 10).level == Again(9).level


class Waiting(Shares):
    """Says the opposite of what is usual, of everything that can be said."""

    thread_safe = elastic = own_size = True
    sized_by, aliases = "id", False
    title = "Numbers"


def test_whatever_a_source_says_of_itself_is_said_of_its_epochs() -> None:
    """Also what is added to sources one day."""
    source = Waiting()
    made = compose.head(source, 10)
    plain = {name for name, said in vars(hr.Source).items() if isinstance(said, bool | str) and name[0] != "_"}
    assert plain >= {"shards", "thread_safe", "marks_ends", "endless", "elastic", "own_size", "sized_by", "aliases"}
    assert {name: getattr(made, name) for name in plain} == {name: getattr(source, name) for name in plain} | {
        "marks_ends": True,
        "endless": False,
    }
    assert made.title == "Numbers"
    assert not compose.head(Counts(), 10).shards
    assert compose.head(rounds(35), 10).resident(torch.device("cpu"))


def test_row_bytes_are_those_of_its_source() -> None:
    words = hr.Reader(hr.ArrayTable({"w": Ragged.of([torch.arange(50)] * 9)}), count="w")
    made = compose.head(words, 5)
    assert (made.row_bytes, made.item_bytes) == (words.row_bytes, words.item_bytes)


@pytest.mark.parametrize("rows", [0, -1, 2.5, True])
def test_an_epoch_has_a_whole_number_of_rows(rows: Any) -> None:
    with pytest.raises(hr.ConfigError, match=r"head\(\) takes a number of rows, at least 1"):
        compose.head(Counts(), rows)


def test_epochs_of_items_end_with_the_batch_that_has_the_last_row() -> None:
    words = hr.ArrayTable({"w": Ragged.of([torch.arange(k % 5) for k in range(40)]), "id": torch.arange(40)})
    source = compose.head(hr.Reader(words, "none", count="w"), 12)
    plain = hr.Reader(words, "none", count="w")
    first = epoch(source, 9)
    assert first == [plain.next_batch(9)["id"].tolist() for _ in first]
    assert len(flat(first[:-1])) < 12 <= len(flat(first))


# --- state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENDLESS[:-1], ids=NAMES[:-1])
def test_it_goes_on_after_every_batch(kind: Callable[[], hr.Source]) -> None:
    whole, batches = compose.head(kind(), 22), list[Any]()
    for _ in range(30):
        batch = whole.pull(6)
        batches.append((batch["id"].tolist(), batch.ends_epoch, batch.cursor))
    for k, (_, _, cursor) in enumerate(batches):
        resumed = compose.head(kind(), 22)
        resumed.load_state_dict(cursor)
        assert resumed.state_dict() == cursor
        for expected in batches[k + 1 :]:
            batch = resumed.pull(6)
            assert (batch["id"].tolist(), batch.ends_epoch, batch.cursor) == expected


def test_a_cursor_is_a_value() -> None:
    source = compose.head(rounds(35), 10)
    cursor = source.pull(4).cursor
    before = {**cursor, "source": dict(cursor["source"])}
    source.pull(4)
    assert cursor == before


def test_without_state_it_has_none_and_says_so() -> None:
    source = compose.head(Again(35), 10)
    source.next_batch(4)
    assert source.state_dict() is None
    assert source.pull(4).cursor is None


@pytest.mark.parametrize("state", [{}, {"at": 3}, {"given": 1}, {"source": {"at": 1}}])
def test_the_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(hr.SourceError, match=r"not the state of epochs of a Counts"):
        compose.head(Counts(), 10).load_state_dict(state)


def test_the_state_of_epochs_of_another_length_is_refused() -> None:
    source = compose.head(Counts(), 20)
    source.next_batch(15)
    with pytest.raises(hr.SourceError, match=r"20.*10"):
        compose.head(Counts(), 10).load_state_dict(source.state_dict())


# --- shards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [lambda: Counts(35), lambda: Shares(35), lambda: rounds(35)])
def test_workers_share_every_batch(kind: Callable[[], hr.Source]) -> None:
    for workers in (1, 2, 3, 7):
        whole = compose.head(kind(), 22)
        parts = [compose.head(kind(), 22) for _ in range(workers)]
        for _ in range(20):
            batch = whole.pull(6)
            shared = [part.pull(6, hr.Shard(k, workers)) for k, part in enumerate(parts)]
            assert [k for one in shared for k in one["id"].tolist()] == batch["id"].tolist()
            assert {(one.total, one.ends_epoch) for one in shared} == {(batch.total, batch.ends_epoch)}
            assert all(one.cursor == batch.cursor for one in shared)


@pytest.mark.parametrize("kind", [lambda: Counts(35), lambda: Shares(35), lambda: rounds(35)])
def test_another_number_of_workers_goes_on(kind: Callable[[], hr.Source]) -> None:
    whole, two = compose.head(kind(), 22), [compose.head(kind(), 22) for _ in range(2)]
    for _ in range(3):
        whole.pull(6)
        cursors = [part.pull(6, hr.Shard(k, 2)).cursor for k, part in enumerate(two)]
    three = [compose.head(kind(), 22) for _ in range(3)]
    for part in three:
        part.load_state_dict(cursors[0])
    shared = [part.pull(6, hr.Shard(k, 3)) for k, part in enumerate(three)]
    assert [k for one in shared for k in one["id"].tolist()] == whole.pull(6)["id"].tolist()


# --- macrobatches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENDLESS, ids=NAMES)
def test_a_macrobatch_never_crosses_the_end_of_an_epoch(kind: Callable[[], hr.Source]) -> None:
    for macrobatch in (1, 10, 1000):
        plain, staged = compose.head(kind(), 22), compose.head(kind(), 22)
        for _ in range(8):
            found = staged.next_macrobatch(6, macrobatch)
            for batch in found.batches():
                one = plain.pull(6)
                assert (batch["id"].tolist(), batch.ends_epoch) == (one["id"].tolist(), one.ends_epoch)
                assert batch.cursor == one.cursor
