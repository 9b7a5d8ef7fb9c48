"""The kit for sources finds nothing to say of good ones, and names the promise that a bad one breaks."""

import threading
from typing import Any

import pytest
from kit.bad_sources import BAD, NAMED
from kit.good_sources import (
    MAKERS,
    Endless,
    EndlessUnshardedRestarting,
    Graphs,
    Numbers,
    OfItsOwnSize,
    OneColumn,
    PerWorker,
    Restarting,
    Round,
    Unsharded,
    WholeGraphs,
    Words,
)
from kit.sampled import sampled

import headrace as hr
from headrace.testing import sources
from headrace.testing.makers import dense_table, sparse_table
from headrace.testing.sources import check_source

KINDS = hr.Order.KINDS
QUICK: dict[str, Any] = {"sizes": (1, 3, 4), "limit_s": 100.0}


# --- good sources ----------------------------------------------------------------------------------------


READERS: dict[str, dict[str, Any]] = {
    **{kind: {"order": kind, "block": 4} for kind in KINDS},
    "crossing": {"cross_epochs": True},
    "blocks, crossing, cut": {"order": "blocks", "block": 4, "cross_epochs": True, "max_samples": 17},
    "blocks, mixed": {"order": "blocks", "block": 3, "mix": 2},
    "two epochs": {"max_epochs": 2},
}


@pytest.mark.parametrize("name", sampled(READERS, keep=["full", "blocks", "blocks, crossing, cut", "two epochs"]))
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


@pytest.mark.parametrize(
    ("name", "options"),
    sampled([*((name, {"seed": 2}) for name in MAKERS), *BY_ITEMS], keep=BY_ITEMS[1::2], of=2),
    ids=str,
)
def test_a_reader_keeps_its_promises_over_every_table_and_sized_by_items(name: str, options: dict[str, Any]) -> None:
    table = MAKERS[name]()
    sized: dict[str, Any] = {"count": "words"} if (name, options) in BY_ITEMS else {}
    sizes = (4, 60) if sized else (4,)
    check_source(lambda: hr.Reader(table, **{"seed": 1, **sized, **options}), sizes=sizes, workers=(2, 5), rows=table)


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
    make: type[Numbers], skipped: set[str]
) -> None:
    report = check_source(make, sizes=(1, 4), batches=30, workers=(1, 3))
    assert set(report.skipped) == skipped
    assert not set(report.skipped) & (set(report.checked) - {"rewind"})
    assert all(f"not checked: {promise}: " in str(report) for promise in skipped)


@pytest.mark.parametrize("make", [Numbers, Graphs, WholeGraphs, OfItsOwnSize, PerWorker, Round, OneColumn, Words])
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


def test_a_loop_without_end_is_found_and_ended() -> None:
    class Spinning(Numbers):
        def made(self, first: int, last: int, total: int) -> Any:
            while first == 5:
                pass
            return super().made(first, last, total)

    with pytest.raises(AssertionError, match=r"(?s)'calls'.*batch 5: next_batch\(1, .* for 2 s; it is at .*py, line"):
        check_source(Spinning, sizes=(1,), limit_s=2)
    for thread in threading.enumerate():
        if thread.name == "headrace-check":
            thread.join(60)
    assert not any(thread.name == "headrace-check" for thread in threading.enumerate())


def test_a_factory_that_makes_no_source_is_told_so() -> None:
    with pytest.raises(AssertionError, match=r"'calls'.*\n  the factory: expected a Source, got ArrayTable"):
        check_source(lambda: dense_table(3))  # type: ignore[arg-type,return-value]
    with pytest.raises(AssertionError, match=r"'calls'.*\n  the factory raised FileNotFoundError: no such file"):
        check_source(lambda: (_ for _ in ()).throw(FileNotFoundError("no such file")))


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
