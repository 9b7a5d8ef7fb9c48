"""The kit for sources finds nothing to say of good ones, and names the promise that a bad one breaks."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.bad_sources import BAD, NAMED
from kit.good_sources import (
    LINES,
    MAKERS,
    WHOLE,
    Endless,
    EndlessUnshardedRestarting,
    Graphs,
    Numbers,
    OfItsOwnSize,
    OneColumn,
    PerWorker,
    Restarting,
    Round,
    Sentences,
    Shuffled,
    Unsharded,
    WholeGraphs,
)

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.testing import sources
from headrace.testing.makers import dense_table, sparse_table
from headrace.testing.sources import check_source

KINDS = hr.Order.KINDS
QUICK = {"sizes": (1, 3, 4), "limit_s": 5.0}


# --- good sources ----------------------------------------------------------------------------------------


READERS: dict[str, dict[str, Any]] = {
    **{kind: {"order": kind, "block": 4} for kind in KINDS},
    "crossing": {"cross_epochs": True},
    "blocks, crossing, cut": {"order": "blocks", "block": 4, "cross_epochs": True, "max_samples": 17},
    "blocks, mixed": {"order": "blocks", "block": 3, "mix": 2},
    "two epochs": {"max_epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_reader_keeps_its_promises_in_every_order(name: str) -> None:
    table = dense_table(11)
    report = check_source(lambda: hr.Reader(table, seed=3, **READERS[name]), sizes=(4, 12), rows=table)
    assert set(report.checked) >= {"shards", "balance", "workers", "restore", "rewind", "threads", "epoch", "marks"}
    assert report.skipped == {}


BY_ITEMS: list[tuple[str, dict[str, Any]]] = [
    ("ragged", {}),
    ("ragged", {"cross_epochs": True}),
    ("sparse sequences", {"max_epochs": 2}),
    ("sparse sequences", {"cross_epochs": True, "max_samples": 13}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*((name, {"seed": 2}) for name in MAKERS), *BY_ITEMS], ids=str)
def test_a_reader_keeps_its_promises_over_every_table_and_sized_by_items(name: str, options: dict[str, Any]) -> None:
    table = MAKERS[name]()
    sized: dict[str, Any] = {"count": "words"} if (name, options) in BY_ITEMS else {}
    sizes = (4, 60) if sized else (4,)
    check_source(lambda: hr.Reader(table, **{"seed": 1, **sized, **options}), sizes=sizes, workers=(2, 5), rows=table)


def test_a_source_of_sparse_words_with_a_label_per_sequence_keeps_its_promises() -> None:
    report = check_source(lambda: Sentences(LINES), sizes=(1, 4, 7, 100), rows=5)
    assert report.skipped == {}
    assert {"shards", "balance", "workers", "restore", "threads"} <= set(report.checked)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "skipped"),
    [
        (Restarting, {"restore", "workers"}),
        (Unsharded, {"threads"}),
        (Endless, {"epoch"}),
        (EndlessUnshardedRestarting, {"restore", "workers", "epoch", "threads", "rewind"}),
    ],
)
def test_a_source_that_does_less_keeps_its_promises_and_the_others_are_listed(
    make: type[Sentences], skipped: set[str]
) -> None:
    report = check_source(lambda: make(LINES), sizes=(1, 4), batches=30, workers=(1, 3))
    assert set(report.skipped) == skipped
    assert not set(report.skipped) & (set(report.checked) - {"rewind"})
    assert all(f"not checked: {promise}: " in str(report) for promise in skipped)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Numbers, Shuffled, Graphs, WholeGraphs, OfItsOwnSize, PerWorker, Round, OneColumn])
def test_a_source_of_any_kind_keeps_its_promises(make: type[Numbers]) -> None:
    report = check_source(make, sizes=(4, 30), rows=11)
    assert set(report.skipped) <= {"shards", "workers", "stream 'graph'"}
    if issubclass(make, Graphs):
        assert "not checked: stream 'graph': it holds a Graph, whose values cannot be compared." in str(report)


def test_a_report_says_how_often_each_promise_was_kept() -> None:
    report = check_source(PerWorker, **QUICK)
    assert str(report).startswith("PerWorker keeps its promises: calls (")
    assert str(report).endswith("  not checked: workers: elastic is False.")
    assert min(report.checked.values()) >= 1


# --- what was wrong with CNTK's example ------------------------------------------------------------------


class Example(hr.Source):
    """The user-defined source of CNTK's manual, as it is there but for what each class below mends.

    The loop counts features and labels, takes sequences by their numbers modulo the workers, and wraps around.
    """

    shards = True
    marks_ends = True
    sized_by = "words"
    lines = (
        LINES.replace("7 ", "0 ").replace("12 ", "1 ").replace("20 ", "2 ").replace("31 ", "3 ").replace("40 ", "4 ")
    )

    def __init__(self) -> None:
        self.data: dict[int, dict[str, Any]] = {}
        for line in self.lines.splitlines():
            number, word, *label = line.split("|")
            entry = self.data.setdefault(int(number), {"words": []})
            entry["words"].append(int(word.split()[1].split(":")[0]))
            if label:
                entry["label"] = [float(one) for one in label[0].split()[1:]]
        self.sequences, self.next = sorted(self.data), 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("words", (600,), layout="sparse", sequence=True), hr.Stream("label", (5,))]

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        words: list[list[int]] = []
        labels: list[list[float]] = []
        ends = False
        while sum(map(len, words)) < size:
            if self.next == len(self.sequences):
                ends, self.next = True, 0
            entry = self.data[self.sequences[self.sequences[self.next]]]
            if self.sequences[self.next] % shard.count != shard.index:
                continue
            if words and sum(map(len, words)) + len(entry["words"]) > size:
                break
            words.append(entry["words"])
            labels.append(entry["label"])
            self.next += 1
        ids = torch.tensor([word for sequence in words for word in sequence])
        offsets = torch.tensor([0, *map(len, words)]).cumsum(0)
        label = torch.from_numpy(np.asarray(labels, dtype=np.float32))
        return hr.Batch({"words": Ragged(Sparse.one_hot(ids, 600), offsets), "label": label}, ends_epoch=ends)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class ExampleOfOtherNumbers(Example):
    lines = LINES


class ExampleWithoutFlags(Example):
    """Never ends, and does not say where epochs do."""

    marks_ends = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        batch.ends_epoch = False
        return batch


@pytest.mark.parametrize(
    ("make", "promise", "told"),
    [
        (ExampleOfOtherNumbers, "calls", "raised IndexError"),
        (ExampleWithoutFlags, "end", "within 100 batches"),
    ],
)
def test_the_bugs_of_the_example_are_found(make: type[Example], promise: str, told: str) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)^{make.__name__} broke the promise '{promise}'.*{told}"):
        check_source(make, sizes=(1, 4), batches=100)


def test_the_late_end_of_the_example_is_found() -> None:
    """It says that an epoch has ended with the first batch of the next one."""
    with pytest.raises(AssertionError, match=r"'marks'.*\n  size 1, batch 10: expected .* having had 6 rows, got"):
        check_source(Example, sizes=(1, 4), workers=(1,))


# --- bad sources -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("promise", "make", "told"), BAD, ids=[f"{b[0]}-{b[1].__name__}" for b in BAD])
def test_a_source_that_breaks_a_promise_is_told_which(promise: str, make: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{make.__name__} broke the promise '{promise}': .*\n.*({told})"):
        check_source(make, **QUICK)


def test_a_factory_that_gives_one_source_again_and_again_is_told() -> None:
    shared = Numbers()
    with pytest.raises(AssertionError, match=r"^Numbers broke the promise 'same': .*\n.*another source"):
        check_source(lambda: shared, **QUICK)


def test_the_message_says_promise_place_what_was_expected_and_what_came() -> None:
    with pytest.raises(AssertionError) as caught:
        check_source(NAMED["ShardsLoseTheRest"], **QUICK)
    assert str(caught.value) == (
        "ShardsLoseTheRest broke the promise 'shards': "
        "the parts of all shards, in their order, make up the whole batch.\n"
        "  size 1, batch 0, 2 workers: expected 1 of 1 rows, x=[0], v=[[0.0, 0.0]], got the parts "
        "0 of 1 rows, x=[], v=[] | 0 of 1 rows, x=[], v=[]."
    )


@pytest.mark.slow
def test_a_source_that_waits_for_ever_is_left_behind() -> None:
    woken = threading.Event()

    class Waiting(Numbers):
        def made(self, first: int, last: int, total: int) -> Any:
            if first == 5:
                woken.wait(60)
            return super().made(first, last, total)

    try:
        with pytest.raises(AssertionError, match=r"(?s)'calls'.*batch 5: next_batch\(1, .* for 1 s; it is at .*wait"):
            check_source(Waiting, limit_s=1)
    finally:
        woken.set()


@pytest.mark.slow
def test_the_loop_without_end_of_the_example_is_found_and_ended() -> None:
    before = threading.active_count()
    told = r"next_batch\(1, Shard\(index=\d, count=2\)\) has not come back for 0\.2 s; it is at .*py, line"
    with pytest.raises(AssertionError, match=rf"(?s)^Example broke the promise 'calls'.*{told}"):
        check_source(Example, sizes=(1,), limit_s=0.2)
    for thread in threading.enumerate():
        if thread.name == "headrace-check":
            thread.join(10)
    assert threading.active_count() <= before


def test_a_factory_that_makes_no_source_is_told_so() -> None:
    with pytest.raises(AssertionError, match=r"'calls'.*\n  the factory: expected a Source, got ArrayTable"):
        check_source(lambda: dense_table(3))  # type: ignore[arg-type,return-value]
    with pytest.raises(AssertionError, match=r"'calls'.*\n  the factory raised FileNotFoundError: no such file"):
        check_source(lambda: (_ for _ in ()).throw(FileNotFoundError("no such file")))


@pytest.mark.slow
def test_an_epoch_of_other_rows_than_the_author_knows_is_told() -> None:
    few: dict[str, Any] = {"sizes": (4,), "workers": (1,)}
    check_source(lambda: hr.Reader(dense_table(5)), rows=dense_table(5), **few)
    for rows in (6, dense_table(6)):
        with pytest.raises(AssertionError, match=r"'epoch'.*\n.*expected 6, got 5"):
            check_source(lambda: hr.Reader(dense_table(5)), rows=rows, **few)
    with pytest.raises(AssertionError, match=r"'epoch'.*\n.*the rows of the table.*5 too many, and 5 lost"):
        check_source(lambda: hr.Reader(dense_table(5)), rows=sparse_table(5), **few)


def test_every_promise_is_broken_by_a_source_here() -> None:
    """So that no check can be lost unseen."""
    assert {promise for promise, *_ in BAD} | {"calls"} == set(sources.PROMISES)
