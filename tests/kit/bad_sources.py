"""Sources that break one promise each, and what is said of them."""

import random
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.testing.makers import dense_table
from kit.good_sources import LINES, WHOLE, Numbers, Round, Sentences, Shuffled


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
