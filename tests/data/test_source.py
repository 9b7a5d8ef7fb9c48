"""Sources that users write: trained on, scored and predicted from, rewound between epochs; and those that err."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from kit.own_data import Elsewhere, Pulled, counted
from kit.small import data, same, trainer
from torch import Tensor

import headrace as hr

X, Y = data()  # batches of 16, 16, 16 and 2
ROWS, SIZE = 23, 4


def source(**options: Any) -> Pulled:
    return Pulled({"x": X, "y": Y}, **options)


KINDS: dict[str, Callable[[], Pulled]] = {
    "ends with None": source,
    "has no state, and begins again after None": lambda: source(state=False),
    "marks its ends": lambda: source(ends="flag"),
    "marks its ends, and gives None too": lambda: source(ends="both"),
    "is read ahead": lambda: source(thread_safe=True, shards=True),
}


# --- trained on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_trains_for_several_epochs_as_the_same_rows_in_memory_do(kind: str) -> None:
    rows, ours, arrays = KINDS[kind](), trainer(macrobatch=32), trainer(order="none")
    seen = [(info.epoch, info.batch, info.ends_epoch) for info in ours.steps(rows, epochs=3)]
    history = arrays.fit((X, Y), epochs=3, progress=False)
    assert seen == [(e + (b == 4), b, b == 4) for e in range(3) for b in (1, 2, 3, 4)]
    assert ours.history.last == pytest.approx(history.last)
    assert same(ours, arrays)
    assert rows.given[:12] == [0, 16, 32, 48] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_scored_and_predicted_whole_every_time(kind: str) -> None:
    rows, ours = KINDS[kind](), trainer()
    history = ours.fit((X, Y), val=rows, epochs=3, progress=False)
    assert len(history["val/loss"]) == 3
    expected = ours.validate((X, Y))
    assert history.last["val/loss"] == pytest.approx(expected["val/loss"])
    for _ in range(2):
        assert ours.validate(rows) == pytest.approx(expected)
        torch.testing.assert_close(ours.predict(rows), ours.predict(X))


def test_a_source_that_ends_for_good_is_told_so() -> None:
    class Dead(Pulled):
        def state_dict(self) -> None:
            return None

    with pytest.raises(hr.DataError, match=r"no rows.*state_dict"):
        trainer().fit(Dead({"x": X, "y": Y}), epochs=3, progress=False)


@pytest.mark.parametrize("call", ["fit", "validate", "predict"])
def test_a_source_without_rows_is_told_so(call: str) -> None:
    options = {"epochs": 1, "progress": False} if call == "fit" else {}
    with pytest.raises(hr.DataError, match="no rows"):
        getattr(trainer(), call)(Pulled({"x": X[:0], "y": Y[:0]}), **options)


def test_what_goes_wrong_in_a_source_is_named_and_chained() -> None:
    class Broken(Pulled):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            if self.at >= 32:
                raise OSError("the disk is gone")
            return super().next_batch(size)

    with pytest.raises(hr.SourceError, match=r"Broken.*x, y.*'at': 32.*OSError: the disk is gone") as caught:
        trainer().fit(Broken({"x": X, "y": Y}), epochs=1, progress=False)
    assert isinstance(caught.value.__cause__, OSError)


# --- epochs and state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 23])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_source_that_has_ended_is_not_asked_until_it_is_rewound(rows: int, threaded: bool) -> None:
    """Asked on ahead, by the thread, it would say again that it has ended: an epoch without batches."""
    asked = threading.Semaphore(0)

    class Ended(Pulled):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            batch = super().next_batch(size, shard)
            if batch is None:
                asked.release()
            return batch

    ended = Ended({"x": torch.arange(rows)}, thread_safe=threaded)
    with hr.Feed(ended, batch_size=SIZE) as feed:
        for _ in range(3):
            assert torch.cat([batch["x"] for batch in feed]).tolist() == list(range(rows))
            assert feed.finished
            assert asked.acquire(timeout=400)
            assert not asked.acquire(timeout=0.1)
            ended.load_state_dict({"at": 0})


def test_a_cursor_is_a_value_even_if_the_source_gives_its_own_state() -> None:
    class Live(Pulled):
        def state_dict(self) -> dict[str, Any]:
            return self.__dict__

    cursors = [batch.cursor["at"] for batch in hr.Feed(Live({"x": torch.arange(ROWS)}), batch_size=SIZE)]
    assert cursors == [4, 8, 12, 16, 20, 23]


def test_a_source_may_give_the_same_batches_again() -> None:
    """Kept ready in memory, for epoch after epoch: the cursor is that of the pull, not of the first one."""
    kept = [hr.Batch({"x": torch.arange(SIZE)}, ends_epoch=ends) for ends in (False, False, True)]

    class Kept(Pulled):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            self.at += 1
            return kept[(self.at - 1) % 3]

    feed = hr.Feed(Kept({"x": torch.arange(SIZE)}), batch_size=SIZE)
    assert [[batch.cursor["at"] for batch in feed] for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


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
    class Graphs(Pulled):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            batch = super().next_batch(size, shard)
            return batch and hr.Batch({"g": Graph(), **(batch.fields if mixed else {})}, batch.rows)

        @property
        def streams(self) -> Sequence[hr.Stream]:
            return [hr.Stream("g"), *(super().streams if mixed else [])]

    batches = list(hr.Feed(Graphs({"x": torch.arange(ROWS)}), device, batch_size=SIZE, macrobatch=macrobatch))
    assert [batch.rows for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert {field.device.type for batch in batches for field in batch.fields.values()} == {device}


# --- a broken contract -----------------------------------------------------------------------------------


class OwnTable(Elsewhere):
    """Gives whatever `make` makes of its batches."""

    make: Callable[[hr.Batch], Any]

    def take(self, indices: Tensor) -> Any:
        return self.make(super().take(indices))


class OwnSource(Pulled):
    make: Callable[[hr.Batch], Any]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> Any:
        batch = super().next_batch(size, shard)
        assert batch is not None
        return self.make(batch)


def changed(batch: hr.Batch, **fields: Any) -> hr.Batch:
    return hr.Batch({**batch.fields, **fields}, batch.rows)


def each(batch: hr.Batch, change: Callable[[Any], Any]) -> Mapping[str, Any]:
    return {name: change(rows) for name, rows in batch.fields.items()}


BROKEN: dict[str, tuple[Callable[[hr.Batch], Any], str]] = {
    "too many rows": (
        lambda b: hr.Batch(each(b, lambda rows: torch.cat([rows, rows]))),
        r"asked for \d+ rows and gave \d+",
    ),
    "no stream y": (
        lambda b: hr.Batch({"x": b["x"]}),
        r"declares stream 'y', .* missing in a batch with \['x'\]",
    ),
    "another dtype": (lambda b: changed(b, y=b["y"].int()), r"expected stream y: int64\[\], got y: int32\[\]"),
    "another shape": (lambda b: changed(b, y=b["y"][:, None]), r"expected stream y: int64\[\], got y: int64\[1\]"),
    "uneven streams": (lambda b: changed(b, y=b["y"][:-1]), r"stream 'y' has \d+ rows in a batch of \d+"),
    "an array": (lambda b: changed(b, y=b["y"].numpy()), "stream 'y' holds a ndarray. Give a tensor"),
    "a dict": (lambda b: dict(b.fields), "gave a dict"),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("kind", [OwnTable, OwnSource])
def test_what_breaks_its_contract_is_named(kind: Any, how: str) -> None:
    made = kind({"x": X, "y": Y})
    made.make, told = BROKEN[how]
    with pytest.raises(hr.SourceError, match=rf"{kind.__name__}.*{told}"):
        next(iter(hr.Feed(hr.Reader(made) if kind is OwnTable else made, batch_size=SIZE)))


def test_without_state_a_source_cannot_be_resumed() -> None:
    class Without(Pulled):
        state_dict, load_state_dict = hr.Source.state_dict, hr.Source.load_state_dict

    without = Without({"x": torch.arange(ROWS)})
    assert {batch.cursor is None for batch in hr.Feed(without, batch_size=SIZE)} == {True}
    with pytest.raises(hr.SourceError, match="Without cannot be resumed"):
        without.load_state_dict(counted(3).state_dict())  # type: ignore[arg-type]
