"""A Source of the user's own: its epochs, its state by value, its fields, and what happens if it errs."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import headrace as hr

ROWS, SIZE = 23, 4
WHOLE = hr.Shard()


class Lines(hr.Source):
    """Rows one after the other; the end shows by `None`."""

    def __init__(self, rows: int = ROWS) -> None:
        self.count, self.at = rows, 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("x", dtype="int64")]

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        if self.at == self.count:
            return None
        start, self.at = self.at, min(self.count, self.at + size)
        return hr.Batch({"x": torch.arange(start, self.at)})


class Stateful(Lines):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Restarting(Lines):
    """Without state, so it starts again by itself after `None`."""

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        if batch is None:
            self.at = 0
        return batch


class Faulty(Lines):
    """Gives whatever `give` makes of the rows that were asked for."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.give = give

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        return self.give(torch.arange(size))


# --- epochs and state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("macrobatch", ["auto", 1000])
@pytest.mark.parametrize("rows", [20, 23])
def test_a_source_that_starts_again_by_itself_has_epochs_too(rows: int, macrobatch: int | str) -> None:
    """Its `None` comes once: whoever overlooks it runs two epochs into one."""
    feed = hr.Feed(Restarting(rows), batch_size=SIZE, macrobatch=macrobatch)
    for _ in range(3):
        epoch = [batch for batch, _ in zip(feed, range(10), strict=False)]
        assert torch.cat([batch["x"] for batch in epoch]).tolist() == list(range(rows))
        assert epoch[-1].ends_epoch


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 23])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_source_that_has_ended_is_left_alone_until_it_is_rewound(rows: int, threaded: bool) -> None:
    """Asked on ahead, by the thread, it would say again that it has ended: an epoch without batches."""
    asked = threading.Semaphore(0)

    class Ended(Stateful):
        thread_safe = threaded

        def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
            batch = super().next_batch(size, shard)
            if batch is None:
                asked.release()
            return batch

    source = Ended(rows)
    with hr.Feed(source, batch_size=SIZE) as feed:
        for _ in range(3):
            assert torch.cat([batch["x"] for batch in feed]).tolist() == list(range(rows))
            assert feed.finished
            assert asked.acquire(timeout=20)
            assert not asked.acquire(timeout=0.1)
            source.load_state_dict({"at": 0})


def test_a_source_resumes_after_any_batch() -> None:
    whole = list(hr.Feed(Stateful(), batch_size=SIZE, macrobatch=8))
    for k, batch in enumerate(whole):
        fresh = Stateful()
        fresh.load_state_dict(batch.cursor)
        rest = [found["x"].tolist() for found in hr.Feed(fresh, batch_size=SIZE, macrobatch=8)]
        assert rest == [later["x"].tolist() for later in whole[k + 1 :]]


def test_a_source_without_state_says_that_it_cannot_be_resumed() -> None:
    assert {batch.cursor is None for batch in hr.Feed(Lines(), batch_size=SIZE)} == {True}
    with pytest.raises(hr.SourceError, match="Lines cannot be resumed"):
        Lines().load_state_dict({"at": 3})


def test_a_cursor_is_a_value_even_if_the_source_gives_its_own_state() -> None:
    class Live(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return self.__dict__

    cursors = [batch.cursor["at"] for batch in hr.Feed(Live(), batch_size=SIZE)]
    assert cursors == [4, 8, 12, 16, 20, 23]


def test_a_source_may_give_the_same_batches_again() -> None:
    """Kept ready in memory, for epoch after epoch: the cursor is that of the pull, not of the first one."""
    kept = [hr.Batch({"x": torch.arange(SIZE)}, ends_epoch=ends) for ends in (False, False, True)]

    class Kept(Stateful):
        def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
            self.at += 1
            return kept[(self.at - 1) % 3]

    feed = hr.Feed(Kept(), batch_size=SIZE)
    assert [[batch.cursor["at"] for batch in feed] for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_source_that_is_endless_is_pulled_one_batch_at_a_time() -> None:
    endless = Faulty(lambda x: hr.Batch({"x": x}))
    feed = iter(hr.Feed(endless, batch_size=SIZE))
    assert [next(feed).ends_epoch for _ in range(50)] == [False] * 50


def test_a_batch_may_be_shorter_than_asked() -> None:
    class Short(Stateful):
        def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
            return super().next_batch(size - 1, shard)

    batches = list(hr.Feed(Short(), batch_size=SIZE))
    assert [batch.rows for batch in batches] == [3] * 7 + [2]
    assert [batch.cursor["at"] for batch in batches] == [3, 6, 9, 12, 15, 18, 21, 23]


# --- fields that are not tensors -------------------------------------------------------------------------


class Graph:
    device = torch.device("cpu")

    def to(self, device: Any, *, non_blocking: bool = False) -> "Graph":
        moved = Graph()
        moved.device = torch.device(device)
        return moved


@pytest.mark.parametrize("macrobatch", ["auto", 1000])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("mixed", [False, True])
def test_fields_that_are_not_tensors_reach_the_device(mixed: bool, device: str, macrobatch: int | str) -> None:
    class Graphs(Lines):
        def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
            batch = super().next_batch(size, shard)
            return batch and hr.Batch({"g": Graph(), **(batch.fields if mixed else {})}, batch.rows)

        @property
        def streams(self) -> Sequence[hr.Stream]:
            return [hr.Stream("g"), *(super().streams if mixed else [])]

    batches = list(hr.Feed(Graphs(), device, batch_size=SIZE, macrobatch=macrobatch))
    assert [batch.rows for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert {field.device.type for batch in batches for field in batch.fields.values()} == {device}


# --- a broken contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x: hr.Batch({"x": torch.arange(len(x) + 3)}), "Faulty was asked for 4 rows and gave 7"),
        (lambda x: hr.Batch({"x": x.float()}), r"Faulty: expected stream x: int64\[\], got x: float32\[\]"),
        (lambda x: hr.Batch({"x": x[:, None]}), r"expected stream x: int64\[\], got x: int64\[1\]"),
        (lambda x: hr.Batch({"z": x}), r"Faulty declares stream 'x', which is missing in a batch with \['z'\]"),
        (lambda x: hr.Batch({"x": x[1:]}, rows=len(x)), r"Faulty.*\bx\b.*\b3\b"),
        (lambda x: {"x": x}, r"Faulty .*\bdict\b"),
    ],
    ids=["too many rows", "dtype", "shape", "stream", "rows that are not there", "not a batch"],
)
def test_a_source_that_breaks_its_contract_is_named(give: Any, message: str) -> None:
    with pytest.raises(hr.SourceError, match=message):
        next(iter(hr.Feed(Faulty(give), batch_size=SIZE)))


def test_a_source_that_fails_is_reported_with_its_streams_and_cause() -> None:
    def give(x: Tensor) -> hr.Batch:
        raise OSError("the disk is gone")

    with pytest.raises(hr.SourceError, match=r"Faulty failed .* 4 rows of x .*OSError: the disk is gone") as caught:
        next(iter(hr.Feed(Faulty(give), batch_size=SIZE)))
    assert isinstance(caught.value.__cause__, OSError)


def test_two_streams_of_one_name_are_refused() -> None:
    class Twins(Lines):
        @property
        def streams(self) -> Sequence[hr.Stream]:
            return [hr.Stream("x"), hr.Stream("x")]

    with pytest.raises(hr.SourceError, match="unique, got 'x' more than once"):
        hr.Feed(Twins())
