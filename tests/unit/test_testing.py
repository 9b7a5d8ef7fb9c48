"""The kits know good sources and tables, and name the promise that a bad one breaks."""

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kit.sampled import sampled
from torch import Tensor

import headrace as hr
from headrace.field import Ragged, Sparse
from headrace.testing import (
    check_source,
    check_table,
    dense_table,
    ragged_table,
    sources,
    sparse_sequences,
    sparse_table,
    tables,
)

WHOLE = hr.Shard()
LENGTHS = [3, 0, 5, 1, 1, 9, 2, 0, 0, 4, 1]
SEQUENCES = [length or 2 for length in LENGTHS]
KINDS = hr.Order.KINDS
QUICK = {"sizes": (1, 3, 4), "limit_s": 5.0}

MAKERS: dict[str, Callable[[], hr.ArrayTable]] = {
    "dense": lambda: dense_table(11),
    "ragged": lambda: ragged_table("words", LENGTHS),
    "sparse": lambda: sparse_table(11),
    "sparse sequences": lambda: sparse_sequences(SEQUENCES),
}

# --- the small tables ------------------------------------------------------------------------------------


def test_the_values_of_the_small_tables_tell_row_and_item() -> None:
    batches = {name: make().take(torch.tensor([6, 2])) for name, make in MAKERS.items()}
    assert all(batch["row"].tolist() == [6, 2] for batch in batches.values())
    assert batches["dense"]["x"].tolist() == [[6000, 6001, 6002], [2000, 2001, 2002]]
    assert [row.tolist() for row in batches["ragged"]["words"]] == [[6000, 6001], [2000, 2001, 2002, 2003, 2004]]
    words = batches["sparse"]["words"]
    assert [words[k : k + 1].indices.tolist() for k in range(2)] == [[6, 7], [2, 3]]
    assert words.values.tolist() == [6, 6.125, 2, 2.125]
    assert [row.ids.tolist() for row in batches["sparse sequences"]["words"]] == [[6, 13], [2, 9, 16, 3, 10]]
    assert batches["sparse sequences"]["label"].tolist() == [1, 2]


@pytest.mark.parametrize("name", MAKERS)
def test_the_small_tables_keep_their_promises(name: str) -> None:
    report = check_table(MAKERS[name])
    assert report.subject == "ArrayTable"
    assert {"take", "rows", "same", "fingerprint", "threads", "value"} <= set(report.checked)
    assert set(report.skipped) == {"categories", "augment"}
    assert ("lengths" in report.checked) == (name in ("ragged", "sparse sequences"))


# --- good sources ----------------------------------------------------------------------------------------


ORDERS = [
    *((kind, {"cross_epochs": crosses}) for kind in KINDS for crosses in (False, True)),
    ("full", {"max_epochs": 2}),
    ("full", {"max_samples": 17}),
    ("blocks", {"max_samples": 17, "cross_epochs": True}),
]


@pytest.mark.takes_turns
@pytest.mark.parametrize(("order", "options"), sampled(ORDERS, keep=[ORDERS[-1]], of=6), ids=str)
def test_a_reader_keeps_its_promises_in_every_order(order: str, options: dict[str, Any]) -> None:
    table = dense_table(11)
    report = check_source(lambda: hr.Reader(table, order, seed=3, block=4, **options), sizes=(4,), rows=table)
    assert set(report.checked) >= {"shards", "balance", "workers", "restore", "rewind", "threads", "epoch", "marks"}
    assert report.skipped == {}


def test_a_reader_keeps_its_promises_with_batches_larger_than_its_table() -> None:
    for crosses in (False, True):
        check_source(lambda: hr.Reader(dense_table(5), cross_epochs=crosses), sizes=(7, 12), rows=5)  # noqa: B023


@pytest.mark.parametrize("mix", sampled([2, 50], keep=[2], of=2))
def test_a_reader_keeps_its_promises_with_mixed_blocks(mix: int) -> None:
    check_source(lambda: hr.Reader(dense_table(11), "blocks", block=3, mix=mix), sizes=(4,), rows=dense_table(11))


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("name", "cross_epochs"), sampled(itertools.product(MAKERS, (False, True)), keep=[("sparse sequences", True)], of=7)
)
def test_a_reader_keeps_its_promises_over_every_table(name: str, cross_epochs: bool) -> None:
    table = MAKERS[name]()
    check_source(lambda: hr.Reader(table, seed=1, cross_epochs=cross_epochs), sizes=(4,), workers=(2, 5), rows=table)


BOUNDS: list[dict[str, Any]] = [{}, {"cross_epochs": True}, {"max_epochs": 2}, {"max_samples": 13}]
BY_ITEMS = [*itertools.product(["ragged", "sparse sequences"], BOUNDS)]


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("name", "options"), sampled(BY_ITEMS, keep=[("ragged", {"cross_epochs": True})], of=7), ids=str
)
def test_a_reader_keeps_its_promises_sized_by_items(name: str, options: dict[str, Any]) -> None:
    table = MAKERS[name]()
    check_source(lambda: hr.Reader(table, seed=1, count="words", **options), sizes=(4, 60), rows=table)


class Sentences(hr.Source):
    """Sparse words and one label per sequence, from lines as CNTK has them: `id |x word:1 |y 0 1 0`."""

    sized_by = "words"
    shards = elastic = thread_safe = True

    def __init__(self, lines: str, dim: int = 600) -> None:
        words: dict[str, list[int]] = {}
        labels: dict[str, list[float]] = {}
        for line in lines.splitlines():
            name, word, *label = line.split("|")
            words.setdefault(name, []).append(int(word.removeprefix("x ").partition(":")[0]))
            if label:
                labels[name] = [float(number) for number in label[0].split()[1:]]
        self.words, self.labels, self.dim, self.at = list(words.values()), torch.tensor(list(labels.values())), dim, 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        label = hr.Stream("label", (self.labels.shape[1],))
        return [hr.Stream("words", (self.dim,), layout="sparse", sequence=True), label]

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        if self.at == len(self.words):
            return None
        start, self.at = self.at, self.stop(size)
        lengths = torch.tensor([len(sequence) for sequence in self.words[start : self.at]])
        cuts = lengths.cumsum(0) * shard.count <= lengths.sum() * torch.tensor([[shard.index], [shard.index + 1]])
        first, last = (start + cuts.sum(1)).tolist()
        return self.made(first, last, self.at - start)

    def stop(self, size: int) -> int:
        """Where the batch ends that begins now: whole sequences, at least one."""
        stop, held = self.at + 1, len(self.words[self.at])
        while stop < len(self.words) and held + len(self.words[stop]) <= size:
            held, stop = held + len(self.words[stop]), stop + 1
        return stop

    def made(self, first: int, last: int, total: int) -> hr.Batch:
        sequences = self.words[first:last]
        ids = torch.tensor([word for sequence in sequences for word in sequence], dtype=torch.int64)
        offsets = torch.tensor([0, *map(len, sequences)]).cumsum(0)
        words = Ragged(Sparse.one_hot(ids, self.dim), offsets)
        return hr.Batch({"words": words, "label": self.labels[first:last]}, total=total)

    def state_dict(self) -> dict[str, Any] | None:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


LINES = """7 |x 560:1 |y 1 0 0 0 0
7 |x 0:1
7 |x 0:1
12 |x 560:1 |y 0 1 0 0 0
12 |x 0:1
12 |x 0:1
12 |x 424:1
20 |x 160:1 |y 0 0 1 0 0
20 |x 5:1
31 |x 460:1 |y 0 0 0 1 0
31 |x 3:1
31 |x 3:1
31 |x 425:1
31 |x 8:1
40 |x 1:1 |y 0 0 0 0 1
"""


def test_a_source_of_sparse_words_with_a_label_per_sequence_keeps_its_promises() -> None:
    report = check_source(lambda: Sentences(LINES), sizes=(1, 4, 7, 100), rows=5)
    assert report.skipped == {}
    assert {"shards", "balance", "workers", "restore", "threads"} <= set(report.checked)


class Restarting(Sentences):
    """Without state: it begins again by itself."""

    state_dict, load_state_dict = hr.Source.state_dict, hr.Source.load_state_dict
    elastic = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        if batch is None:
            self.at = 0
        return batch


class Unsharded(Sentences):
    """Read whole by every worker."""

    shards = elastic = thread_safe = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        assert shard == WHOLE
        return super().next_batch(size)


class Endless(Sentences):
    """Sentence after sentence, again and again."""

    endless = True

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        self.at %= len(self.words)
        return super().next_batch(size, shard)


class EndlessUnshardedRestarting(Unsharded, Endless):
    state_dict, load_state_dict = hr.Source.state_dict, hr.Source.load_state_dict


@pytest.mark.takes_turns
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


class Numbers(hr.Source):
    """The numbers 0 to 10, in a source that does all there is to do; each bad one below differs in one thing."""

    shards = elastic = thread_safe = marks_ends = True
    n = 11

    def __init__(self) -> None:
        self.at = 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("x", dtype="int64"), hr.Stream("v", (2,))]

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        if self.at >= self.n:
            return None
        start, self.at = self.at, min(self.n, self.at + size)
        first, last = self.part(self.at - start, shard)
        return self.made(start + first, start + last, self.at - start)

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        return shard.of(rows)

    def made(self, first: int, last: int, total: int) -> Any:
        return hr.Batch(self.fields(torch.arange(first, last)), last - first, total=total, ends_epoch=self.ends())

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {"x": x, "v": torch.stack([x, -x], 1).float()}

    def ends(self) -> bool:
        return self.at == self.n

    def batches(self, size: int) -> int | None:
        return -(-self.n // size)

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class Shuffled(Numbers):
    """Drawn from a generator of its own, which is kept in the state as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = self.seeded()
        self.drawn = self.draw()

    def seeded(self) -> torch.Generator:
        return torch.Generator().manual_seed(5)

    def draw(self) -> Tensor:
        return torch.randperm(self.n, generator=self.generator)

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return super().fields(self.drawn[x])

    def state_dict(self) -> Any:
        return {"at": self.at, "drawn": self.drawn, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.drawn = state["at"], state["drawn"]
        self.generator.set_state(state["generator"])


class Graph:
    """A field that has no rows."""

    def to(self, device: Any, *, non_blocking: bool = False) -> "Graph":
        return self


class Graphs(Numbers):
    """Beside the numbers something that cannot be cut: the source shards it by itself."""

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [*super().streams, hr.Stream("graph")]

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "graph": Graph()}


class WholeGraphs(Graphs):
    shards = False


class OfItsOwnSize(Numbers):
    """Four rows, whatever is asked."""

    own_size, batches = True, hr.Source.batches

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        return super().next_batch(4, shard)


class PerWorker(Numbers):
    """A state of its own for every worker, with which no other number can go on."""

    elastic = False

    def __init__(self) -> None:
        super().__init__()
        self.mine = 0

    def made(self, first: int, last: int, total: int) -> Any:
        self.mine += last - first
        return super().made(first, last, total)

    def state_dict(self) -> Any:
        return {"at": self.at, "mine": self.mine}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.mine = state["at"], state["mine"]


class Round(Numbers):
    """Epoch after epoch without a None, each batch up to the end of one."""

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        self.at %= self.n
        return super().next_batch(size, shard)


class OneColumn(Numbers):
    """A column of something wider, whose stride stays when a single row is cut out."""

    wide = torch.arange(44).view(11, 4)

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        first = int(x[0]) if len(x) else 0
        return {**super().fields(x), "x": self.wide[first : first + len(x), 0]}


@pytest.mark.takes_turns
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


class ExampleOfUnequalLabels(Example):
    lines = Example.lines.replace("|y 0 0 1 0 0", "|y 0 0 1")


class ExampleOfMissingLabels(Example):
    lines = Example.lines.replace(" |y 0 0 1 0 0", "")


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
        (ExampleOfUnequalLabels, "streams", r"expected stream label: float32\[5\], got label: float32\[3\]"),
        (ExampleOfMissingLabels, "calls", "raised KeyError: 'label'"),
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


class LiveState(Numbers):
    def state_dict(self) -> Any:
        return self.__dict__


class LiveTensor(Numbers):
    """A long state, at the end of which a tensor goes on changing."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = torch.zeros(3)

    def made(self, first: int, last: int, total: int) -> Any:
        self.counted += 1
        return super().made(first, last, total)

    def state_dict(self) -> Any:
        return {"at": self.at, "names": ["a long name"] * 40, "z": self.counted}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.counted = state["at"], state["z"].clone()


class KeepsTheState(Numbers):
    def __init__(self) -> None:
        self.state = {"at": 0}

    at = property(lambda self: self.state["at"], lambda self, at: self.state.update(at=at))  # type: ignore[assignment]

    def state_dict(self) -> Any:
        return dict(self.state)

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class OffByOne(Numbers):
    def load_state_dict(self, state: Any) -> None:
        self.at = max(0, state["at"] - 1)


class RowsOfEpochsOnly(Numbers):
    """Goes back to the beginning, whatever the state."""

    def load_state_dict(self, state: Any) -> None:
        self.at = 0


class CannotLoad(Numbers):
    load_state_dict = hr.Source.load_state_dict


class LoadsOnlyFresh(Numbers):
    """What it read ahead is not dropped when it is rewound."""

    def __init__(self) -> None:
        super().__init__()
        self.over = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = None if self.over else super().next_batch(size, shard)
        self.over = batch is None
        return batch


class BeginsAgain(Numbers):
    """It says that it is finished once, though it has a state."""

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        self.at = 0 if batch is None else self.at
        return batch


class NeverAgain(Numbers):
    state_dict, load_state_dict, elastic = hr.Source.state_dict, hr.Source.load_state_dict, False


class EndlessThatEnds(Numbers):
    endless = True


class NeverEnds(Round):
    marks_ends = False

    def ends(self) -> bool:
        return False


class EmptyAtTheEnd(Numbers):
    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        return super().next_batch(size, shard) or hr.Batch(self.fields(torch.arange(0)))


class NothingAtAll(Numbers):
    n = 0


class NoneForAnEmptyShard(Numbers):
    def made(self, first: int, last: int, total: int) -> Any:
        return super().made(first, last, total) if last > first else None


class ShardsOverlap(Numbers):
    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        first, last = shard.of(rows)
        return first, min(last + 1, rows)


class ShardsLoseTheRest(Numbers):
    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        share = rows // shard.count
        return shard.index * share, (shard.index + 1) * share


class ShardsBySteps(Numbers):
    """Every row goes to one worker, but to another one than is said."""

    def made(self, first: int, last: int, total: int) -> Any:
        return hr.Batch(self.fields(self.rows), total=total, ends_epoch=self.ends())

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        self.rows = torch.arange(self.at - rows + shard.index, self.at, shard.count)
        return 0, 0


class ShardsUneven(Numbers):
    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        share = -(-rows // shard.count)
        return min(rows, shard.index * share), min(rows, (shard.index + 1) * share)


class ShardsIgnored(Numbers):
    """Says that it shards, and gives everyone everything."""

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        return 0, rows


class ShardsByTime(Numbers):
    """A worker's part depends on its own earlier pulls: no other number can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 1

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        self.count = shard.count if self.at <= rows else self.count
        return hr.Shard(shard.index % self.count, self.count).of(rows)

    def state_dict(self) -> Any:
        return {"at": self.at, "count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.count = state["at"], state["count"]


class TotalOfTheShard(Numbers):
    def made(self, first: int, last: int, total: int) -> Any:
        return super().made(first, last, last - first)


class TooLarge(Numbers):
    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        return super().next_batch(size + (size == 4), shard)


class PackedTooFull(Sentences):
    def __init__(self) -> None:
        super().__init__(LINES)

    def stop(self, size: int) -> int:
        return min(super().stop(size) + 1, len(self.words)) if size > 3 else super().stop(size)


class UnevenItems(Sentences):
    """By rows, where items are counted: one worker gets the long sequences."""

    def __init__(self) -> None:
        super().__init__("".join(f"{k} |x 1:1 |y 1\n" * (30 if k == 7 else 1 + 3 * (k > 2)) for k in range(8)))

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        if self.at == len(self.words):
            return None
        start, self.at = self.at, self.stop(size)
        first = min(self.at, start + 1)
        cuts = [start, *[first] * (shard.count - 1), self.at] if shard.count > 1 else [start, self.at]
        return self.made(cuts[shard.index], cuts[shard.index + 1], self.at - start)


class WrongDtype(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "x": x.int()}


class WrongDtypeWhenEmpty(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return super().fields(x) if len(x) else {**super().fields(x), "x": torch.tensor([])}


class WrongShape(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "x": x[:, None]}


class SequencesUndeclared(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "x": Ragged(x, torch.arange(len(x) + 1))}


class SparseUndeclared(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        v = Sparse(torch.zeros(2 * len(x), dtype=torch.int64), None, torch.arange(len(x) + 1) * 2, 2)
        return {**super().fields(x), "v": v}


class StreamMissing(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {"x": x}


class StreamUndeclared(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "z": x}


class StreamsOfOneName(Numbers):
    streams = [hr.Stream("x"), hr.Stream("x")]  # type: ignore[assignment]  # noqa: RUF012


class GivesADict(Numbers):
    def made(self, first: int, last: int, total: int) -> Any:
        return self.fields(torch.arange(first, last))


class SetInTheState(Numbers):
    def state_dict(self) -> Any:
        return {"at": self.at, "seen": {"rows": [{1, 2}]}}


class TupleInTheState(Numbers):
    """JSON would give a list back."""

    def state_dict(self) -> Any:
        return {"at": self.at, "place": (self.at, 0)}


class StateFromTheSecondBatchOn(Numbers):
    def state_dict(self) -> Any:
        return {"at": self.at} if self.at else None


class StateUpToTheEnd(Numbers):
    def state_dict(self) -> Any:
        return {"at": self.at} if self.at < self.n else None


class StateThatMoves(Numbers):
    def state_dict(self) -> Any:
        self.at = min(self.n, self.at + 1)
        return {"at": self.at}


class Unseeded(Shuffled):
    def seeded(self) -> torch.Generator:
        generator = torch.Generator()
        generator.seed()
        return generator


class UnseededWithoutState(Unseeded):
    state_dict, load_state_dict, elastic = hr.Source.state_dict, hr.Source.load_state_dict, False


class EverybodysGenerator(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "v": torch.randn(len(x), 2)}


class EverybodysNumpy(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "v": torch.from_numpy(np.random.rand(len(x), 2)).float()}


class EverybodysRandom(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "v": torch.full((len(x), 2), random.random())}


class GeneratorNotInTheState(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "v": torch.randn(len(x), 2, generator=self.generator)}


class FlaggedLate(Round):
    """The first batch of the next epoch says that the last one has ended."""

    late = False

    def ends(self) -> bool:
        now, self.late = self.late, self.at == self.n
        return now

    def state_dict(self) -> Any:
        return {"at": self.at, "late": self.late}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.late = state["at"], state["late"]

    batches = hr.Source.batches


class FlaggedEarly(Numbers):
    def ends(self) -> bool:
        return self.at == self.n - 1

    batches = hr.Source.batches


class FlaggedNever(Numbers):
    def ends(self) -> bool:
        return False


class FlaggedWithoutSayingSo(Numbers):
    marks_ends = False


class FlaggedIfItCrosses(hr.Reader):
    """A batch that just reaches the end does not say so."""

    def __init__(self) -> None:
        super().__init__(dense_table(10), cross_epochs=True)

    def next_macrobatch(self, size: int, rows: int, shard: hr.Shard = WHOLE) -> Any:
        found = super().next_macrobatch(size, rows, shard)
        found.ends_epoch &= size == 1 or found.cursors[-1]["position"] != 0
        return found


class DropsTheRest(Numbers):
    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        return super().next_batch(size, shard) if self.at + size <= self.n else None

    def ends(self) -> bool:
        return self.at + 1 > self.n - (self.at % 3 if self.at > 8 else 0)

    marks_ends, batches = False, hr.Source.batches

    def made(self, first: int, last: int, total: int) -> Any:
        return hr.Batch(self.fields(torch.arange(first, last)), last - first, total=total)


class FillsUpTheRest(Numbers):
    """The last batch is filled up with its last row."""

    shards = elastic = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        self.size = size
        return super().next_batch(size)

    def made(self, first: int, last: int, total: int) -> Any:
        x = torch.arange(first, first + self.size).clamp(max=10)
        return hr.Batch(self.fields(x), ends_epoch=self.ends())


class CursorBefore(Numbers):
    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        before, batch = self.state_dict(), super().next_batch(size, shard)
        if batch is not None:
            batch.cursor = before
        return batch


class Buffer(Numbers):
    """Every batch is a view of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(100, dtype=torch.int64)

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "x": self.buffer[: len(x)].copy_(x)}


class OtherMacrobatches(Numbers):
    """Its batches have half the size where several are asked for."""

    def next_macrobatch(self, size: int, rows: int, shard: hr.Shard = WHOLE) -> Any:
        return super().next_macrobatch(max(1, size // 2) if rows > size else size, rows, shard)


class OfOneThread(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.local = threading.local()
        self.local.at = 0

    def made(self, first: int, last: int, total: int) -> Any:
        self.local.at += 1
        return super().made(first, last, total)


class WrongNumberOfBatches(Numbers):
    def batches(self, size: int) -> int | None:
        return self.n // size


class SizedByNothing(Numbers):
    sized_by = "words"


class SizedByRowsOfNumbers(Numbers):
    sized_by = "x"


class OneStream(Numbers):
    streams = hr.Stream("x", dtype="int64")  # type: ignore[assignment]


class StreamsAsAMethod(Numbers):
    def streams(self) -> Any:  # type: ignore[override]
        return [hr.Stream("x", dtype="int64")]


class OfNumpy(Numbers):
    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "x": x.numpy()}


class Shared(Numbers):
    pass


SHARED = Shared()

BAD: list[tuple[str, Any, str, str]] = [
    ("restore", OffByOne, "from the state after 1 batches, batch 0: expected .*x=\\[1\\].*, got .*x=\\[0\\]", ""),
    ("restore", RowsOfEpochsOnly, "from the state after 1 batches", ""),
    ("restore", CannotLoad, "raised SourceError: CannotLoad cannot be resumed", ""),
    ("restore", GeneratorNotInTheState, "from the state after 1 batches", ""),
    ("rewind", LoadsOnlyFresh, "after the end|back at batch 0", ""),
    ("rewind", NeverAgain, "expected 11 rows, begun again by itself, got None again", ""),
    ("end", BeginsAgain, "size 1, asked a second time: expected None, got .*x=\\[0\\]", ""),
    ("end", EndlessThatEnds, "expected a batch, being endless, got None", ""),
    ("end", NeverEnds, "size 1, batch 999: expected the end of the epoch within 1000 batches", ""),
    (
        "end",
        NoneForAnEmptyShard,
        "shard 0 of 2: expected an empty Batch, or None for every shard, got None for some",
        "",
    ),
    ("rows", EmptyAtTheEnd, "expected rows, or None at the end", ""),
    ("rows", NothingAtAll, "expected a batch at least, got None at once", ""),
    ("shards", ShardsOverlap, "2 workers: expected .*x=\\[0\\].*the parts .*", ""),
    ("shards", ShardsLoseTheRest, "2 workers", ""),
    ("balance", ShardsBySteps, "size 1, batch 0, shard 0 of 2: expected rows 0 to 0 of the batch, got 1 rows", ""),
    ("shards", ShardsIgnored, "2 workers", ""),
    ("shards", TotalOfTheShard, "size 1, batch 0, shard 0 of 2: expected total=1, of all shards, got 0", ""),
    ("balance", ShardsUneven, "shard 0 of 2: expected rows 0 to 0 of the batch, got 1 rows", ""),
    ("balance", UnevenItems, "within one sequence of", ""),
    ("workers", ShardsByTime, "size 1, batch 1, 3 workers from the state of one of 1", ""),
    ("size", TooLarge, "next_batch\\(4, .*expected at most 4 rows, got 5", ""),
    ("size", PackedTooFull, "next_batch\\(4, .*expected at most 4 items of 'words', got 7", ""),
    ("streams", WrongDtype, "expected stream x: int64\\[\\], got x: int32\\[\\]", ""),
    ("streams", WrongDtypeWhenEmpty, "expected stream x: int64\\[\\], got x: float32\\[\\]", ""),
    ("streams", WrongShape, "expected stream x: int64\\[\\], got x: int64\\[1\\]", ""),
    ("streams", SequencesUndeclared, "got x: sequences of int64", ""),
    ("streams", SparseUndeclared, "got v: sparse float32\\[2\\]", ""),
    ("streams", StreamMissing, "declares stream 'v', which is missing", ""),
    ("streams", StreamUndeclared, "expected the streams \\['x', 'v'\\], got \\['z'\\] beside them", ""),
    ("streams", StreamsOfOneName, "unique, got 'x' more than once", ""),
    ("streams", OneStream, "streams raised SourceError: streams is a list of Stream", ""),
    ("streams", StreamsAsAMethod, "streams is a list of Stream, or a property that gives one", ""),
    ("streams", OfNumpy, "stream 'x' holds a ndarray. Give a tensor", ""),
    ("streams", GivesADict, "gave a dict", ""),
    ("state", SetInTheState, "state at 'state/seen/rows/0' holds a set", ""),
    ("state", TupleInTheState, "state at 'state/place' holds .*tuple", ""),
    ("state", StateFromTheSecondBatchOn, "at the end: expected None, as before the first batch, got", ""),
    ("state", StateUpToTheEnd, "batch 10: expected a state, as there was one before, got None", ""),
    ("same", StateThatMoves, "another source, batch 0", ""),
    ("same", Unseeded, "another source, batch \\d+: expected", ""),
    ("same", UnseededWithoutState, "another source, batch \\d+: expected", ""),
    ("same", lambda: SHARED, "another source", "Shared"),
    ("random", EverybodysGenerator, "expected the global generators left alone", ""),
    ("random", EverybodysNumpy, "expected the global generators left alone", ""),
    ("random", EverybodysRandom, "expected the global generators left alone", ""),
    ("marks", FlaggedLate, "size 1, batch 22: expected ends_epoch=False, the first epoch having had 12 rows, got", ""),
    ("marks", FlaggedEarly, "before None: expected ends_epoch=True", ""),
    ("marks", FlaggedNever, "before None: expected ends_epoch=True", ""),
    ("marks", FlaggedWithoutSayingSo, "expected no ends_epoch without marks_ends", ""),
    ("marks", FlaggedIfItCrosses, "size 4, batch 4: expected ends_epoch=True", ""),
    (
        "epoch",
        DropsTheRest,
        "size 3, epoch 0: expected the 11 rows of an epoch, got 9, 0 too many, and 2 lost",
        "",
    ),
    ("epoch", FillsUpTheRest, "size 3, epoch 0: .*got 12, 1 too many, and 0 lost", ""),
    ("cursor", CursorBefore, 'expected {"at": 1}, got {"at": 0}', ""),
    ("value", LiveState, "the first state, looked at at the end: expected .*0.*, got .*11", ""),
    ("value", LiveTensor, "the first state, looked at at the end: expected ….*torch.float32.3.:.*, got …", ""),
    ("value", KeepsTheState, "what load_state_dict was given", ""),
    ("value", Buffer, "batch 0, looked at after the last: expected .*x=\\[0\\].*, got .*x=\\[10\\]", ""),
    ("macrobatch", OtherMacrobatches, "size 3, in macrobatches of 6 rows, batch 0", ""),
    ("threads", OfOneThread, "AttributeError", ""),
    ("batches", WrongNumberOfBatches, "batches\\(3\\): expected 3, got 4", ""),
    ("declared", SizedByNothing, "sized_by: expected 'rows', or of \\[\\], got words", ""),
    ("declared", SizedByRowsOfNumbers, "got x", ""),
]


@pytest.mark.parametrize(("promise", "make", "told", "name"), BAD, ids=[f"{b[0]}-{b[3] or b[1].__name__}" for b in BAD])
def test_a_source_that_breaks_a_promise_is_told_which(promise: str, make: Any, told: str, name: str) -> None:
    with pytest.raises(
        AssertionError, match=rf"^{name or make.__name__} broke the promise '{promise}': .*\n.*({told})"
    ):
        check_source(make, **QUICK)


def test_the_message_says_promise_place_what_was_expected_and_what_came() -> None:
    with pytest.raises(AssertionError) as caught:
        check_source(ShardsLoseTheRest, **QUICK)
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


def test_an_epoch_of_other_rows_than_the_author_knows_is_told() -> None:
    few: dict[str, Any] = {"sizes": (4,), "workers": (1,)}
    check_source(lambda: hr.Reader(dense_table(5)), rows=dense_table(5), **few)
    for rows in (6, dense_table(6)):
        with pytest.raises(AssertionError, match=r"'epoch'.*\n.*expected 6, got 5"):
            check_source(lambda: hr.Reader(dense_table(5)), rows=rows, **few)
    with pytest.raises(AssertionError, match=r"'epoch'.*\n.*the rows of the table.*5 too many, and 5 lost"):
        check_source(lambda: hr.Reader(dense_table(5)), rows=sparse_table(5), **few)


# --- bad tables ------------------------------------------------------------------------------------------


class Squares(hr.Table):
    """Sequences and numbers, by hand; each bad one below differs in one thing."""

    n = 9

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("x", (2,)), hr.Stream("s", dtype="int64", sequence=True)]

    def __len__(self) -> int:
        return self.n

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch(self.fields(indices), len(indices))

    def fields(self, indices: Tensor) -> dict[str, Any]:
        counts = indices % 3
        values = indices.repeat_interleave(counts)
        return {
            "x": torch.stack([indices, indices**2], 1).float(),
            "s": Ragged(values, torch.cat([counts[:0], torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])),
        }

    def lengths(self, stream: str) -> Tensor:
        return torch.arange(self.n) % 3


class LengthsUnknown(Squares):
    lengths = hr.Table.lengths


class NoRows(Squares):
    n = 0


class Coded(Squares):
    categories = {"s": [str(k) for k in range(9)]}  # type: ignore[assignment]  # noqa: RUF012


class Drawing(Squares):
    augments = "host"

    def augment(self, fields: Any, draws: Any) -> Any:
        return {**fields, "x": fields["x"] + draws.uniform(2)}


@pytest.mark.parametrize("make", [Squares, LengthsUnknown, NoRows, Coded, Drawing])
def test_a_table_of_any_kind_keeps_its_promises(make: type[Squares]) -> None:
    report = check_table(make)
    assert ("lengths" in report.skipped) == (make is LengthsUnknown)
    assert ("categories" in report.checked) == (make is Coded)
    assert ("augment" in report.checked) == (make is Drawing)


class Sorts(Squares):
    """As a file is read best, and never put back in order."""

    def take(self, indices: Tensor) -> hr.Batch:
        return super().take(indices.sort().values)


class Unique(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        return super().take(indices.unique_consecutive())


class RepeatsFail(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        if len(indices.unique()) < len(indices):
            raise RuntimeError("twice")
        return super().take(indices)


class NoneFails(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        return super().take(indices[indices >= indices.min()])


class SlicesShort(Squares):
    def rows(self, start: int, stop: int) -> hr.Batch:
        return self.take(torch.arange(start, max(start, stop - 1)))


class SlicesElsewhere(Squares):
    def rows(self, start: int, stop: int) -> hr.Batch:
        return self.take(torch.arange(start, stop).flip(0))


class LengthsOfFloats(Squares):
    def lengths(self, stream: str) -> Tensor:
        return super().lengths(stream).int()


class LengthsWrong(Squares):
    def lengths(self, stream: str) -> Tensor:
        return super().lengths(stream).flip(0)


class OfChance(Squares):
    """A row is another one each time it is taken."""

    def __init__(self) -> None:
        self.taken = 0

    def fields(self, indices: Tensor) -> dict[str, Any]:
        self.taken += 1
        return {**super().fields(indices), "x": torch.full((len(indices), 2), float(self.taken))}


class OfTheMaker(Squares):
    """Another table has other rows."""

    made = iter(range(1000))

    def __init__(self) -> None:
        self.number = next(self.made)

    def fields(self, indices: Tensor) -> dict[str, Any]:
        return {**super().fields(indices), "x": torch.full((len(indices), 2), float(self.number))}


class OneBuffer(Squares):
    def __init__(self) -> None:
        self.buffer = torch.empty(100, 2)

    def fields(self, indices: Tensor) -> dict[str, Any]:
        fields = super().fields(indices)
        return {**fields, "x": self.buffer[: len(indices)].copy_(fields["x"])}


class FingerprintOfTheObject(Squares):
    def fingerprint(self) -> str:
        return str(id(self))


class FingerprintOfTheMoment(Squares):
    moments = iter(range(1000))

    def fingerprint(self) -> str:
        return str(next(self.moments))


class DoublesOfFloats(Squares):
    def fields(self, indices: Tensor) -> dict[str, Any]:
        fields = super().fields(indices)
        return {**fields, "x": fields["x"].double()}


class ExtraStream(Squares):
    def fields(self, indices: Tensor) -> dict[str, Any]:
        return {**super().fields(indices), "z": indices}


class Grows(Squares):
    def __len__(self) -> int:
        self.n += 1
        return self.n


class ExpectsToMuch(Squares):
    shift = 0

    def expect(self, start: int, stop: int, *, now: bool) -> None:
        self.shift = start

    def fields(self, indices: Tensor) -> dict[str, Any]:
        return super().fields(indices + self.shift)


class CodedTooHigh(Squares):
    categories = {"s": ["a", "b"]}  # type: ignore[assignment]  # noqa: RUF012


class CodedElsewhere(Squares):
    categories = {"z": ["a", "b"]}  # type: ignore[assignment]  # noqa: RUF012


class DrawsUndeclared(Drawing):
    def augment(self, fields: Any, draws: Any) -> Any:
        return {**super().augment(fields, draws), "z": draws.uniform()}


class DrawsByPlace(Drawing):
    """The same numbers for the first row of every batch."""

    def augment(self, fields: Any, draws: Any) -> Any:
        return {**fields, "x": fields["x"] + torch.arange(len(fields["x"]))[:, None]}


class OfOneThreadOnly(Squares):
    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def take(self, indices: Tensor) -> hr.Batch:
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().take(indices)


class OneStreamOfSquares(Squares):
    streams = hr.Stream("x", (2,))  # type: ignore[assignment]


class SquaresOfNumpy(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        batch = super().take(indices)
        return hr.Batch({**batch.fields, "x": batch["x"].numpy()}, batch.rows)


class Hangs(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        while len(indices) == 3:
            time.sleep(0.01)
        return super().take(indices)


BAD_TABLES: list[tuple[str, Any, str]] = [
    ("take", Sorts, "take of all rows backwards: expected row 8, got another row at place 0"),
    ("take", Unique, "one row thrice, number of rows: expected 3, got 1"),
    ("take", RepeatsFail, "one row thrice raised RuntimeError: twice"),
    ("take", NoneFails, "take of no rows raised RuntimeError"),
    ("rows", SlicesShort, r"rows\(\d+, \d+\), number of rows: expected \d, got \d"),
    ("rows", SlicesElsewhere, r"rows\(\d+, \d+\): expected row \d, got another"),
    ("lengths", LengthsOfFloats, "expected torch.int64, got torch.int32"),
    ("lengths", LengthsWrong, r"lengths\('s'\): expected \[0, 1, 2.*, got \[2, 1, 0"),
    ("same", OfChance, "all rows of another table|take of all rows"),
    ("same", OfTheMaker, "all rows of another table"),
    ("value", OneBuffer, "all rows, after another take"),
    ("fingerprint", FingerprintOfTheObject, "of another table"),
    ("fingerprint", FingerprintOfTheMoment, "asked again"),
    ("streams", DoublesOfFloats, r"expected stream x: float32\[2\], got x: float64\[2\]"),
    ("streams", OneStreamOfSquares, "streams raised SourceError: streams is a list of Stream"),
    ("streams", SquaresOfNumpy, "stream 'x' holds a ndarray. Give a tensor"),
    ("streams", ExtraStream, r"got \['z'\] beside them"),
    ("declared", Grows, "len, asked again: expected 10, got 11"),
    ("expect", ExpectsToMuch, "take after expect"),
    ("categories", CodedTooHigh, r"categories\['s'\]: expected 9 at least, got 2"),
    ("categories", CodedElsewhere, r"expected streams of \['x', 's'\], got z"),
    ("augment", DrawsByPlace, "in two parts"),
    ("streams", DrawsUndeclared, r"augment of rows 0 to 9: expected the declared streams, got \['z'\] beside them"),
    ("threads", OfOneThreadOnly, "raised RuntimeError: made in another thread"),
    ("calls", Hangs, "take of one row thrice has not come back for 1 s"),
]


@pytest.mark.takes_turns
@pytest.mark.parametrize(("promise", "make", "told"), BAD_TABLES, ids=[f"{b[0]}-{b[1].__name__}" for b in BAD_TABLES])
def test_a_table_that_breaks_a_promise_is_told_which(promise: str, make: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{make.__name__} broke the promise '{promise}': .*\n.*({told})"):
        check_table(make, limit_s=1 if make is Hangs else 10)


def test_every_promise_is_broken_by_something_here() -> None:
    """So that no check can be lost unseen."""
    assert {promise for promise, *_ in BAD} | {"calls"} == set(sources.PROMISES)
    assert {promise for promise, *_ in BAD_TABLES} == set(tables.PROMISES)
