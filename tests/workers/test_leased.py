"""Leased rows: whole batches of one's own, ends of passes that are known in time, and cursors that go on in a lease."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kit.center_workers import Marks, NothingToReadError, pause

import headrace as hr
from headrace.data.batch import Batch
from headrace.errors import ConfigError, SourceError
from headrace.workers.center import LeaseTerms, Push
from headrace.workers.center_state import CenterState, LocalCenter
from headrace.workers.leased import Leased

ROWS = 20


def table(rows: int = ROWS) -> hr.ArrayTable:
    return hr.ArrayTable({"row": torch.arange(rows)})


class Worker:
    """One worker's data, and the center that lends them."""

    def __init__(self, held: CenterState, index: int, lease: int, epochs: int | None = 2, reader: Any = None) -> None:
        self.center = LocalCenter(held, index, lambda: 0.0, pause)
        self.reader = hr.Reader(table(), seed=3) if reader is None else reader
        rows = self.reader.order.n
        end = None if epochs is None else epochs * rows
        self.center.join(Marks(), LeaseTerms(rows, lease, end), {"w": torch.zeros(1)})
        self.source = Leased(self.reader, self.center)
        self.sequence = 0

    def next(self, size: int) -> Batch | None:
        return self.source.pull(size, hr.Shard(1, 3))

    def next_or_nothing(self, size: int) -> Batch | None:
        try:
            return self.next(size)
        except NothingToReadError:
            return None

    def push(self, batch: Batch) -> None:
        assert batch.cursor is not None
        self.sequence += 1
        push = Push(self.sequence, 0, {"w": torch.ones(1)}, batch.rows, [tuple(batch.cursor["used"])])
        assert self.center.exchange(push).taken

    def batches(self, size: int) -> Iterator[Batch]:
        """Each is pushed when the next is asked for."""
        while (batch := self.next(size)) is not None:
            yield batch
            self.push(batch)


def used(batch: Batch) -> list[int]:
    assert batch.cursor is not None
    return list(batch.cursor["used"])


def test_a_worker_alone_reads_what_its_reader_would_in_batches_that_do_not_cross_leases() -> None:
    worker = Worker(CenterState(), 0, lease=7)
    batches = list(worker.batches(3))
    assert [batch.rows for batch in batches] == 2 * [3, 3, 1, 3, 3, 1, 3, 3]
    plain = hr.Reader(table(), seed=3, max_epochs=2)
    expected = torch.cat([plain.next_batch(ROWS)["row"] for _ in range(2)])  # type: ignore[index]
    assert torch.equal(torch.cat([batch["row"] for batch in batches]), expected)
    assert worker.next(3) is None
    assert worker.next(3) is None, "for ever"


def test_batches_are_whole_the_workers_own() -> None:
    """The shard that the feed asks for is ignored: what is leased is the shard."""
    batch = Worker(CenterState(), 0, lease=8).next(4)
    assert batch is not None
    assert (batch.rows, batch.total, len(batch["row"])) == (4, 4, 4)


def test_each_row_is_read_by_one_worker() -> None:
    held = CenterState()
    workers = [Worker(held, index, lease=4) for index in range(3)]
    seen: list[int] = []
    while any(batches := [worker.next_or_nothing(4) for worker in workers]):
        for worker, batch in zip(workers, batches, strict=True):
            if batch is not None:
                seen += batch["row"].tolist()
                worker.push(batch)
    assert sorted(seen) == sorted(2 * [*range(ROWS)])


def test_an_epoch_of_a_worker_ends_where_its_next_lease_is_of_a_later_one() -> None:
    held = CenterState()
    one, two = Worker(held, 0, lease=10), Worker(held, 1, lease=10)
    first = [one.next(5), two.next(5), one.next(5), two.next(5)]
    assert [batch is not None and batch.ends_epoch for batch in first] == [False, False, True, True]
    assert [used(batch)[1:] for batch in first if batch] == [[0, 5], [10, 15], [5, 10], [15, 20]]


def test_a_pass_ends_once_however_far_back_a_worker_has_to_go() -> None:
    """Rows of an epoch before, which another worker has lost, are part of the pass that is under way."""
    held = CenterState()
    one, two = Worker(held, 0, lease=10, epochs=None), Worker(held, 1, lease=10, epochs=None)
    two.next(5), one.next(5)
    last = one.next(5)
    assert last is not None
    assert last.ends_epoch, "rows 0 to 10 are with the other, and 20 to 30 come next"
    held.leave(1)
    seen = [one.next(10) for _ in range(4)]
    assert [used(batch)[1:] for batch in seen if batch] == [[20, 30], [0, 10], [30, 40], [40, 50]]
    assert [batch is not None and batch.ends_epoch for batch in seen] == [False, False, True, False]


def test_the_last_batch_says_so_before_the_others_have_brought_theirs() -> None:
    held = CenterState()
    one, two = Worker(held, 0, lease=10, epochs=1), Worker(held, 1, lease=10, epochs=1)
    first, _, last, theirs = one.next(5), two.next(5), one.next(5), two.next(5)
    for batch in (last, theirs):
        assert batch is not None
        assert batch.ends_epoch
        assert batch.cursor is not None
        assert batch.cursor["leases"] == []
    for batch in (first, last):
        assert batch is not None
        one.push(batch)
    with pytest.raises(NothingToReadError):
        one.next(10)
    held.leave(1)  # its rows are free again
    again = one.next(10)
    assert again is not None
    assert used(again)[1:] == [10, 20]
    one.push(again)
    assert one.next(10) is None


def test_who_waits_listens_to_whoever_wants_it_to_stop() -> None:
    held = CenterState()
    one, two = Worker(held, 0, lease=20, epochs=1), Worker(held, 1, lease=20, epochs=1)
    one.next(20)
    calls: list[int] = []
    two.center._pause = lambda: None

    def waiting() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    two.source.waiting = waiting
    with pytest.raises(KeyboardInterrupt):
        two.next(20)
    held.ask_to_stop("enough")
    assert two.next(20) is None


def test_the_next_lease_is_asked_for_as_late_as_it_can_be() -> None:
    """Before the last batch of a lease is given, and no sooner, however much is staged at a time."""
    held = CenterState()
    worker = Worker(held, 0, lease=10, epochs=None)
    found = [worker.source.next_macrobatch(2, 100) for _ in range(3)]
    cursors = [cursor for macrobatch in found if macrobatch for cursor in macrobatch.cursors]
    assert [cursor["leases"] for cursor in cursors if cursor][3:6] == [[[1, 8, 10]], [[2, 10, 20]], [[2, 12, 20]]]
    assert [macrobatch.counts for macrobatch in found if macrobatch][:2] == [[2, 2, 2, 2], [2]]


def test_a_macrobatch_is_of_one_lease_and_staging_changes_no_batch() -> None:
    whole, staged = Worker(CenterState(), 0, lease=9), Worker(CenterState(), 0, lease=9)
    one_by_one = [(used(b), b["row"].tolist(), b.ends_epoch) for b in whole.batches(2)]
    seen, at_once = [], 0
    with hr.Feed(staged.source, batch_size=2, macrobatch=100) as feed:
        while len(seen) < len(one_by_one):
            for batch in feed:
                seen.append((used(batch), batch["row"].tolist(), batch.ends_epoch))
                staged.push(batch)
                at_once = max(at_once, feed.macrobatch)
    assert seen == one_by_one
    assert at_once < 2 * len(one_by_one) // 2


LENGTHS = [0, 0, 2, 0, 0, 1, 0, 0, 0, 0] * 3
WORDS = hr.ArrayTable({"words": hr.Ragged.of([torch.arange(n) for n in LENGTHS]), "row": torch.arange(30)})


def test_a_feed_that_is_left_goes_on_after_the_batch_that_was_given_last() -> None:
    worker = Worker(CenterState(), 0, lease=10)
    feed = hr.Feed(worker.source, batch_size=2, macrobatch=8)
    seen = [used(next(iter(feed)))]
    feed.close()
    seen += [used(batch) for batch, _ in zip(feed, range(3), strict=False)]
    assert seen == [[1, 0, 2], [1, 2, 4], [1, 4, 6], [1, 6, 8]]


def test_whole_sequences_are_leased_where_sizes_count_their_items() -> None:
    held = CenterState()
    reader = hr.Reader(WORDS, seed=1, count="words")
    worker = Worker(held, 0, lease=8, epochs=1, reader=reader)
    batches = list(worker.batches(6))
    assert all(batch.items("words") <= 6 for batch in batches)
    assert sorted(torch.cat([batch["row"] for batch in batches]).tolist()) == [*range(30)]
    assert held.status(0.0)["samples"] == 30
    staged = Worker(CenterState(), 0, lease=8, epochs=1, reader=hr.Reader(WORDS, seed=1, count="words"))
    rows, cursors = [], []
    while (found := staged.source.next_macrobatch(6, 60)) is not None:
        for batch in found.batches():
            rows.append(batch["row"].tolist())
            cursors.append(batch.cursor)
            staged.push(batch)
    assert rows == [batch["row"].tolist() for batch in batches]
    assert [c["leases"] for c in cursors if c] == [b.cursor["leases"] for b in batches if b.cursor]


def test_maps_draw_for_a_row_what_they_draw_without_a_center() -> None:
    def noisy(fields: Any, draws: Any) -> Any:
        return {**fields, "row": fields["row"] + draws.integers(0, 1000)}

    mapped = hr.map(table(), noisy)
    plain = hr.Reader(mapped, seed=3, max_epochs=1)
    worker = Worker(CenterState(), 0, lease=6, epochs=1, reader=hr.Reader(mapped, seed=3))
    expected = plain.next_batch(ROWS)
    assert expected is not None
    assert torch.equal(torch.cat([batch["row"] for batch in worker.batches(4)]), expected["row"])


def test_the_limits_of_the_reader_are_not_crossed() -> None:
    reader = hr.Reader(table(), seed=3, max_samples=13)
    worker = Worker(CenterState(), 0, lease=10, epochs=None, reader=reader)
    assert reader.end == 13
    first = worker.next(10)
    assert first is not None
    macrobatch = reader.reading.until(20).fetch(10, 10)
    assert macrobatch is not None
    assert macrobatch.only()["row"].shape == (3,)


def test_only_a_reader_knows_rows_by_number() -> None:
    class Stream(hr.Source):
        streams = (hr.Stream("x"),)

        def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> None:
            return None

    with pytest.raises(ConfigError, match=r"a Stream does not know.*Synchronous"):
        Leased(Stream(), LocalCenter())


def test_another_cursor_is_refused() -> None:
    worker = Worker(CenterState(), 0, lease=5)
    with pytest.raises(SourceError, match="lacks used, leases, pass"):
        worker.source.load_state_dict(hr.Reader(table(), seed=3).state_dict())
    state = worker.source.state_dict()
    with pytest.raises(SourceError, match="seed: saved 4, now 3"):
        worker.source.load_state_dict({**state, "seed": 4})
