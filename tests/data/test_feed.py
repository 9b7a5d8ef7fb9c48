"""A Feed gives the batches of its source, an epoch per iteration, whatever it stages ahead and wherever."""

import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kit.own_data import Elsewhere, Pulled, counted
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import headrace as hr

ROWS, SIZE = 23, 4
DEADLINE_S = 400.0  # it bounds waits only


def eventually(fact: Callable[[], bool], within_s: float = DEADLINE_S) -> bool:
    deadline = time.monotonic() + within_s
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.001)
    return fact()


Threads = Callable[[], list[threading.Thread]]


@pytest.fixture(autouse=True)
def threads() -> Iterator[Threads]:
    """The feed threads that this test has started; none may be left."""
    before = set(threading.enumerate())

    def started() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "headrace-feed" and t not in before]

    yield started
    assert eventually(lambda: not started())


COLUMNS = {"x": torch.arange(ROWS), "y": torch.ones(ROWS, 2)}


def host(rows: int = ROWS, look: Callable[[Tensor], None] = lambda rows: None) -> Elsewhere:
    return Elsewhere({"x": torch.arange(rows), "y": torch.arange(2.0 * rows).view(rows, 2)}, look)


SOURCES: dict[str, Callable[[], hr.Source]] = {
    "in memory": lambda: hr.Reader(hr.ArrayTable(COLUMNS)),
    "prefetched": lambda: hr.Reader(Elsewhere(COLUMNS)),
    "ends with None": lambda: counted(ROWS),
    "flags its ends": lambda: counted(ROWS, ends="flag", marks_ends=False),
    "prefetched, ends with None": lambda: counted(ROWS, thread_safe=True),
    "prefetched, flags its ends": lambda: counted(ROWS, ends="flag", thread_safe=True),
}


def seen(batch: hr.Batch) -> tuple[Any, ...]:
    return batch["x"].tolist(), batch.rows, batch.total, batch.cursor


def pulled(source: hr.Source, epochs: int = 1) -> list[list[tuple[Any, ...]]]:
    """What a source gives when nothing stands between."""
    found: list[list[tuple[Any, ...]]] = []
    initial = source.state_dict()
    for _ in range(epochs):
        found.append([])
        while sum(row[1] for row in found[-1]) < ROWS:
            batch: Any = source.next_batch(SIZE)
            found[-1].append((*seen(batch)[:3], batch.cursor or source.state_dict()))
        if not batch.ends_epoch:
            source.load_state_dict(initial)
    return found


# --- the same batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_an_iteration_is_an_epoch_and_a_list_of_it_is_not_corrupted(kind: str) -> None:
    for macrobatch in ("auto", 1, 7, 12, 1000):
        source = SOURCES[kind]()
        initial = source.state_dict()
        with hr.Feed(source, batch_size=SIZE, macrobatch=macrobatch) as feed:
            epochs = []
            for _ in range(3):
                epochs.append(list(feed))
                if feed.finished:
                    source.load_state_dict(initial)
        assert [[seen(batch) for batch in epoch] for epoch in epochs] == pulled(SOURCES[kind](), epochs=3)
        for epoch in epochs:
            assert [batch.ends_epoch for batch in epoch] == [False] * 5 + [True]


def test_macrobatches_are_counted_and_their_ends_are_shown() -> None:
    for kind in ("in memory", "prefetched"):
        with hr.Feed(SOURCES[kind](), batch_size=SIZE, macrobatch=7) as feed:
            assert (feed.rows, feed.batches, feed.macrobatches) == (8, 6, 3)
            for _ in range(2):
                places = [(feed.macrobatch, feed.ends_macrobatch) for _ in feed]
                assert places == [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True)]


def test_a_reader_that_is_finished_gives_no_more() -> None:
    with hr.Feed(hr.Reader(host(), max_epochs=2), batch_size=SIZE) as feed:
        assert [len(list(feed)) for _ in range(4)] == [6, 6, 0, 0]
        assert feed.finished


# --- ahead, but not too far ------------------------------------------------------------------------------


def test_at_most_two_macrobatches_live_at_once() -> None:
    class Itself(Elsewhere):
        """Gives the numbers of its rows in the memory in which it was asked for them."""

        def take(self, indices: Tensor) -> hr.Batch:
            count(indices)
            return hr.Batch({"x": indices})

    staged: list[StorageWeakRef] = []
    crowds: list[int] = []

    def living() -> int:
        return sum(not memory.expired() for memory in staged)

    def count(indices: Tensor) -> None:
        eventually(lambda: living() < 2, within_s=DEADLINE_S / 2)  # the caller may be about to let go of the one before
        crowds.append(living() + 1)
        staged.append(StorageWeakRef(indices.untyped_storage()))

    with hr.Feed(hr.Reader(Itself({"x": torch.arange(400)})), batch_size=SIZE, macrobatch=20) as feed:
        for batch in feed:
            assert batch.rows == SIZE
            assert eventually(lambda: len(crowds) > feed.macrobatch), "nothing is staged ahead"
            if not feed.ends_macrobatch and feed.macrobatch % 5 == 1:
                assert not eventually(lambda: len(crowds) > feed.macrobatch + 1, within_s=0.02)
    assert set(crowds) == {1, 2}


# --- the thread ------------------------------------------------------------------------------------------


def test_a_feed_that_nobody_holds_takes_its_thread_along(threads: Threads) -> None:
    for batch in hr.Feed(hr.Reader(host()), batch_size=SIZE):
        assert batch.rows
    gc.collect()
    assert eventually(lambda: not threads())


# --- what fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", [1, 3])
def test_a_failing_table_is_reported_with_its_streams_and_cause(take: int, threads: Threads) -> None:
    calls = []

    def fail(indices: Tensor) -> None:
        calls.append(indices)
        if len(calls) == take:
            raise OSError("the disk is gone")

    feed = iter(hr.Feed(hr.Reader(host(look=fail)), batch_size=SIZE, macrobatch=8))
    good = [seen(next(feed)) for _ in range(2 * (take - 1))]
    assert good == pulled(hr.Reader(host()))[0][: len(good)]
    with pytest.raises(hr.SourceError, match=r"Reader failed .* 8 rows of x, y .*OSError: the disk") as caught:
        next(feed)
    assert isinstance(caught.value.__cause__, OSError)
    assert f"'position': {8 * (take - 1)}," in str(caught.value), "where the failing rows begin"
    assert eventually(lambda: not threads())


@pytest.mark.parametrize("kind", SOURCES)
def test_an_epoch_that_was_left_goes_on_after_the_last_batch_given(kind: str) -> None:
    """What was staged with it is not lost: neither for the next iteration nor, after close, for another reader."""
    whole = pulled(SOURCES[kind]())[0]
    source = SOURCES[kind]()
    with hr.Feed(source, batch_size=SIZE, macrobatch=12) as feed:
        assert seen(next(iter(feed))) == whole[0]
        assert seen(next(iter(feed))) == whole[1]
    with hr.Feed(source, batch_size=SIZE) as feed:
        assert [seen(batch) for batch in feed] == whole[2:]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("ends", ["None", "flag"])
@pytest.mark.parametrize("threaded", [False, True])
def test_an_epoch_of_a_source_without_state_that_was_left_goes_on_too(threaded: bool, ends: str, closed: bool) -> None:
    """Nobody could read again what was read ahead of it, so it is kept."""
    feed = hr.Feed(counted(ROWS, ends=ends, state=False, thread_safe=threaded), batch_size=SIZE, macrobatch=8)
    epochs = []
    for _ in range(2):
        rows: list[int] = []
        while len(rows) < ROWS:
            for batch in feed:
                rows += batch["x"].tolist()
                if len(rows) % 3:
                    break
            if closed:
                feed.close()
        epochs.append(rows)
    feed.close()
    assert epochs == [list(range(ROWS))] * 2


# --- a read that takes long --------------------------------------------------------------------------------


class Gate:
    """Holds up one read, until it is opened."""

    def __init__(self, held: int) -> None:
        self._left, self.entered, self.opened = held, threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self.entered.set()
            assert self.opened.wait(DEADLINE_S)


def wait_no_longer(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    for name, limit_s in limits.items():
        monkeypatch.setattr(sys.modules[hr.Feed.__module__], name, limit_s)


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("order", ["none", "full"])
def test_a_read_that_takes_long_is_left_and_no_row_is_lost(
    order: str, epochs: bool, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of it, it moves nothing that is read later."""
    wait_no_longer(monkeypatch, JOIN_TIMEOUT_S=0.01)
    gate = Gate(held=2)

    def made(before: Callable[[Tensor], None]) -> Any:
        reader = hr.Reader(host(look=before), order)
        return hr.head(reader, ROWS) if epochs else reader

    source = made(gate)
    feed = hr.Feed(source, batch_size=SIZE, macrobatch=SIZE)
    found = [next(iter(feed))]
    assert gate.entered.wait(DEADLINE_S)
    with pytest.warns(UserWarning, match=r"\(x, y\) is still being read 0\.01 s after .* Nobody waits for that"):
        feed.close()
    assert source.state_dict() == found[0].cursor
    wait_no_longer(monkeypatch, JOIN_TIMEOUT_S=DEADLINE_S)
    found.append(next(iter(feed)))
    feed.close()
    gate.opened.set()
    assert eventually(lambda: not threads())
    assert source.state_dict() == found[1].cursor
    with feed:
        found += list(feed)
    plain = made(lambda indices: None)
    assert [batch["x"].tolist() for batch in found] == [plain.pull(SIZE)["x"].tolist() for _ in found]
    assert sum(batch.rows for batch in found) == ROWS


class Held(Pulled):
    """A source of one's own, which a read moves."""

    def __init__(self, gate: Gate) -> None:
        super().__init__({"x": torch.arange(ROWS)}, thread_safe=True)
        self.gate = gate

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        self.gate()
        return batch


def test_a_read_that_moves_the_source_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_no_longer(monkeypatch, JOIN_TIMEOUT_S=0.01)
    gate: Any = Gate(held=3)
    source = Held(gate)
    with hr.Feed(source, batch_size=SIZE, macrobatch=SIZE) as feed:
        first = next(iter(feed))
        assert gate.entered.wait(DEADLINE_S)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            said: Any = []
            monkeypatch.setattr(
                warnings, "showwarning", lambda text, *_, **__: said.append(str(text)) or gate.opened.set()
            )
            feed.close()
        wait_no_longer(monkeypatch, JOIN_TIMEOUT_S=DEADLINE_S)
        assert source.state_dict() == first.cursor
        rest = list(feed)
    assert said[0].startswith("Held (x) is still being read 0.01 s after its feed was left. That read is waited for")
    assert [batch["x"].tolist() for batch in [first, *rest]] == [rows for rows, *_ in pulled(counted(ROWS))[0]]


def test_a_read_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch, threads: Threads) -> None:
    wait_no_longer(monkeypatch, JOIN_TIMEOUT_S=0.01, GIVE_UP_S=0.01)
    gate = Gate(held=3)
    feed = hr.Feed(Held(gate), batch_size=SIZE, macrobatch=SIZE)
    next(iter(feed))
    assert gate.entered.wait(DEADLINE_S)
    with (
        pytest.warns(UserWarning, match="still being read"),
        pytest.raises(hr.SourceError, match=r"Held \(x\) has given no batch for 0.02 s"),
    ):
        feed.close()
    gate.opened.set()
    assert eventually(lambda: not threads())


def test_a_source_without_state_that_fails_tells_how_many_rows_it_gave() -> None:
    class Failing(Pulled):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
            if self.at == 8:
                raise OSError("the disk is gone")
            return super().next_batch(size)

    feed = iter(hr.Feed(Failing({"x": torch.arange(ROWS)}, state=False), batch_size=SIZE))
    with pytest.raises(hr.SourceError, match=r"Failing failed while reading up to 4 rows of x after 8 rows: OSError"):
        list(feed)
