"""Sources that keep all promises, or say which they do not make; and small tables that do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
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
