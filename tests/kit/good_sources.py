"""Sources that keep all promises, or say which they do not make; and small tables that do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.testing.makers import dense_table, ragged_table, sparse_sequences, sparse_table

WHOLE = hr.Shard()
LENGTHS = [3, 0, 5, 1, 1, 9, 2, 0, 0, 4, 1]
SEQUENCES = [length or 2 for length in LENGTHS]

MAKERS: dict[str, Callable[[], hr.ArrayTable]] = {
    "dense": lambda: dense_table(11),
    "ragged": lambda: ragged_table("words", LENGTHS),
    "sparse": lambda: sparse_table(11),
    "sparse sequences": lambda: sparse_sequences(SEQUENCES),
}


class Numbers(hr.Source):
    """The numbers 0 to 10, in a source that does all there is to do; each bad one below differs in one thing."""

    shards = elastic = thread_safe = marks_ends = True
    n = 11

    def __init__(self) -> None:
        self.at = 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("x", dtype="int64"), hr.Stream("v", (2,))]

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
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

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
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

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        self.at %= self.n
        return super().next_batch(size, shard)


class OneColumn(Numbers):
    """A column of something wider, whose stride stays when a single row is cut out."""

    wide = torch.arange(44).view(11, 4)

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        first = int(x[0]) if len(x) else 0
        return {**super().fields(x), "x": self.wide[first : first + len(x), 0]}


class Words(Numbers):
    """Sized by items: each row has a sequence of one word."""

    sized_by = "words"

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [*super().streams, hr.Stream("words", dtype="int64", sequence=True)]

    def fields(self, x: Tensor) -> Mapping[str, Any]:
        return {**super().fields(x), "words": Ragged(x, torch.arange(len(x) + 1))}


class Plain(Numbers):
    """Does not say where an epoch ends, nor how many batches it has."""

    marks_ends, batches = False, hr.Source.batches

    def ends(self) -> bool:
        return False


class Restarting(Plain):
    """Without state: it begins again by itself."""

    state_dict, load_state_dict = hr.Source.state_dict, hr.Source.load_state_dict
    elastic = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        batch = super().next_batch(size, shard)
        self.at = 0 if batch is None else self.at
        return batch


class Unsharded(Plain):
    """Read whole by every worker."""

    shards = elastic = thread_safe = False

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        assert shard == WHOLE
        return super().next_batch(size)


class Endless(Plain):
    """Row after row, again and again."""

    endless = True

    def next_batch(self, size: int, shard: hr.Shard = WHOLE) -> Any:
        self.at %= self.n
        return super().next_batch(size, shard)


class EndlessUnshardedRestarting(Unsharded, Endless):
    state_dict, load_state_dict = hr.Source.state_dict, hr.Source.load_state_dict
