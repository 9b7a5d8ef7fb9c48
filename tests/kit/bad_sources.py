"""Sources that break one promise each, and what is said of them: most are `Numbers` with another member."""

import random
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.testing.makers import dense_table
from kit.good_sources import WHOLE, Numbers, Round, Words

Bad = tuple[str, Any, str]


def bad(promise: str, name: str, told: str, base: type[hr.Source] = Numbers, **members: Any) -> Bad:
    """A source of this name with these members, the promise that it breaks, and what is said of it."""
    return promise, type(name, (base,), members), told


def other(**columns: Any) -> Any:
    """Fields some of which are made in another way."""
    return lambda self, x: {**Numbers.fields(self, x), **{name: make(x) for name, make in columns.items()}}


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

    at = property(lambda self: self.state["at"], lambda self, at: self.state.update(at=at))

    def state_dict(self) -> Any:
        return dict(self.state)

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class LoadsOnlyFresh(Numbers):
    """What it read ahead is not dropped when it is rewound."""

    over = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        batch = None if self.over else super().next_batch(size, shard)
        self.over = batch is None
        return batch


class BeginsAgain(Numbers):
    """It says that it is finished once, though it has a state."""

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        batch = super().next_batch(size, shard)
        self.at = 0 if batch is None else self.at
        return batch


class ShardsBySteps(Numbers):
    """Every row goes to one worker, but to another one than is said."""

    def made(self, first: int, last: int, total: int) -> Any:
        return hr.Batch(self.fields(self.rows), total=total, ends_epoch=self.ends())

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        self.rows = torch.arange(self.at - rows + shard.index, self.at, shard.count)
        return 0, 0


class ShardsByTime(Numbers):
    """A worker's part depends on its own earlier pulls: no other number can go on."""

    count = 1

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        self.count = shard.count if self.at <= rows else self.count
        return hr.Shard(shard.index % self.count, self.count).of(rows)

    def state_dict(self) -> Any:
        return {"at": self.at, "count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.count = state["at"], state["count"]


class UnevenItems(Words):
    """The first worker gets one sequence, and the last one all others."""

    def part(self, rows: int, shard: hr.Shard) -> tuple[int, int]:
        cuts = [0, *[min(1, rows)] * (shard.count - 1), rows]
        return cuts[shard.index], cuts[shard.index + 1]


class StateThatMoves(Numbers):
    def state_dict(self) -> Any:
        self.at = min(self.n, self.at + 1)
        return {"at": self.at}


class FlaggedIfItCrosses(hr.Reader):
    """A batch that just reaches the end does not say so."""

    def __init__(self) -> None:
        super().__init__(dense_table(10), cross_epochs=True)

    def next_macrobatch(self, size: int, rows: int, shard: hr.Shard = WHOLE) -> Any:
        found: Any = super().next_macrobatch(size, rows, shard)
        found.ends_epoch &= size == 1 or found.cursors[-1]["position"] != 0
        return found


class DropsTheRest(Numbers):
    marks_ends, batches = False, hr.Source.batches

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> hr.Batch | None:
        return super().next_batch(size, shard) if self.at + size <= self.n else None

    def made(self, first: int, last: int, total: int) -> Any:
        return hr.Batch(self.fields(torch.arange(first, last)), last - first, total=total)


class CursorBefore(Numbers):
    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
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


NONE = hr.Source.state_dict, hr.Source.load_state_dict
EMPTY = lambda self, size, shard=WHOLE: Numbers.next_batch(self, size, shard) or hr.Batch(self.fields(torch.arange(0)))  # noqa: E731
UP = lambda self, size, shard=WHOLE: Numbers.next_batch(self, size + (size == 4), shard)  # noqa: E731

BAD: list[Bad] = [
    bad(
        "restore",
        "OffByOne",
        "from the state after 1 batches, batch 0: expected .*x=\\[1\\].*, got .*x=\\[0\\]",
        load_state_dict=lambda self, state: setattr(self, "at", max(0, state["at"] - 1)),
    ),
    bad("restore", "CannotLoad", "raised SourceError: CannotLoad cannot be resumed", load_state_dict=NONE[1]),
    ("rewind", LoadsOnlyFresh, "after the end|back at batch 0"),
    bad(
        "rewind",
        "NeverAgain",
        "expected 11 rows, begun again by itself, got None again",
        state_dict=NONE[0],
        load_state_dict=NONE[1],
        elastic=False,
    ),
    ("end", BeginsAgain, "size 1, asked a second time: expected None, got .*x=\\[0\\]"),
    bad("end", "EndlessThatEnds", "expected a batch, being endless, got None", endless=True),
    bad(
        "end",
        "NeverEnds",
        "size 1, batch 999: expected the end of the epoch within 1000 batches",
        Round,
        marks_ends=False,
        ends=lambda self: False,
    ),
    bad(
        "end",
        "NoneForAnEmptyShard",
        "shard 0 of 2: expected an empty Batch, or None for every shard, got None for some",
        made=lambda self, a, b, total: Numbers.made(self, a, b, total) if b > a else None,
    ),
    bad("rows", "EmptyAtTheEnd", "expected rows, or None at the end", next_batch=EMPTY),
    bad("rows", "NothingAtAll", "expected a batch at least, got None at once", n=0),
    bad(
        "shards",
        "ShardsLoseTheRest",
        "2 workers",
        part=lambda self, rows, shard: tuple((shard.index + k) * (rows // shard.count) for k in (0, 1)),
    ),
    bad(
        "shards",
        "TotalOfTheShard",
        "size 1, batch 0, shard 0 of 2: expected total=1, of all shards, got 0",
        made=lambda self, a, b, total: Numbers.made(self, a, b, b - a),
    ),
    ("balance", ShardsBySteps, "size 1, batch 0, shard 0 of 2: expected rows 0 to 0 of the batch, got 1 rows"),
    ("balance", UnevenItems, "within one sequence of"),
    ("workers", ShardsByTime, "size 1, batch 1, 3 workers from the state of one of 1"),
    bad("size", "TooLarge", "next_batch\\(4, .*expected at most 4 rows, got 5", next_batch=UP),
    bad("size", "PackedTooFull", "next_batch\\(4, .*expected at most 4 items of 'words', got 5", Words, next_batch=UP),
    bad(
        "streams",
        "WrongDtypeWhenEmpty",
        "expected stream x: int64\\[\\], got x: float32\\[\\]",
        fields=other(x=lambda x: x if len(x) else torch.tensor([])),
    ),
    bad(
        "streams",
        "StreamUndeclared",
        "expected the streams \\['x', 'v'\\], got \\['z'\\] beside them",
        fields=other(z=lambda x: x),
    ),
    bad("streams", "StreamsOfOneName", "unique, got 'x' more than once", streams=[hr.Stream("x"), hr.Stream("x")]),
    bad(
        "state",
        "SetInTheState",
        "state at 'state/seen/rows/0' holds a set",
        state_dict=lambda self: {"at": self.at, "seen": {"rows": [{1, 2}]}},
    ),
    bad(
        "state",
        "StateFromTheSecondBatchOn",
        "at the end: expected None, as before the first batch, got",
        state_dict=lambda self: {"at": self.at} if self.at else None,
    ),
    ("same", StateThatMoves, "another source, batch 0"),
    bad(
        "random",
        "EverybodysGenerator",
        "expected the global generators left alone",
        fields=other(v=lambda x: torch.randn(len(x), 2)),
    ),
    bad(
        "random",
        "EverybodysRandom",
        "expected the global generators left alone",
        fields=other(v=lambda x: torch.full((len(x), 2), random.random())),
    ),
    bad("marks", "FlaggedNever", "before None: expected ends_epoch=True", ends=lambda self: False),
    bad("marks", "FlaggedWithoutSayingSo", "expected no ends_epoch without marks_ends", marks_ends=False),
    ("marks", FlaggedIfItCrosses, "size 4, batch 4: expected ends_epoch=True"),
    ("epoch", DropsTheRest, "size 3, epoch 0: expected the 11 rows of an epoch, got 9, 0 too many, and 2 lost"),
    ("cursor", CursorBefore, 'expected {"at": 1}, got {"at": 0}'),
    ("value", LiveTensor, "the first state, looked at at the end: expected ….*torch.float32.3.:.*, got …"),
    ("value", KeepsTheState, "what load_state_dict was given"),
    ("value", Buffer, "batch 0, looked at after the last: expected .*x=\\[0\\].*, got .*x=\\[10\\]"),
    ("macrobatch", OtherMacrobatches, "size 3, in macrobatches of 6 rows, batch 0"),
    ("threads", OfOneThread, "AttributeError"),
    bad(
        "batches",
        "WrongNumberOfBatches",
        "batches\\(3\\): expected 3, got 4",
        batches=lambda self, size: self.n // size,
    ),
    bad("declared", "SizedByNothing", "sized_by: expected 'rows', or of \\[\\], got words", sized_by="words"),
]
NAMED = {make.__name__: make for _, make, _ in BAD}
