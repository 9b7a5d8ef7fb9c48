"""Gives each worker whole batches of a loader, for strategies in which every worker makes updates of its own."""

from collections.abc import Iterable, Iterator

import torch

from ..data.batch import Batch, Macrobatch, State
from ..data.shard import WHOLE, Shard
from ..data.source import Source
from ..data.wrapped import SourceWrapper
from .comm import Comm


class Dealt(SourceWrapper):
    """The batches of a source, dealt in turn: of W workers, each gets every W-th batch.

    All workers read all batches. In the last round of an epoch, some workers may get none.
    """

    def __init__(self, source: Source, workers: int) -> None:
        super().__init__(source)
        self._workers = workers

    def state_dict(self) -> State | None:
        return self._source.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._source.load_state_dict(state)

    def batches(self, size: int) -> int | None:
        batches = self._source.batches(size)
        return None if batches is None else -(-batches // self._workers)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.only()

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        dealt: list[Batch] = []
        batch: Batch | None = None
        while len(dealt) < shard.count and not (dealt and dealt[-1].ends_epoch):
            batch = self._source.pull(size)
            if batch is None:
                break
            if shard.count > 1:
                self.compare_batch(batch)
            dealt.append(batch)
        if not dealt:
            return None
        last, total = dealt[-1], sum(batch.total for batch in dealt)
        mine = dealt[shard.index] if shard.index < len(dealt) else Batch({}, 0)
        ends, finishes = last.ends_epoch or batch is None, batch is None
        return Macrobatch(
            mine.fields, [mine.rows], [total], [last.cursor], ends, finishes=finishes, aliases=self.aliases
        )


def as_long_as_any(feed: Iterable[Batch], comm: Comm) -> Iterator[Batch]:
    """The batches of sources of one's own that shard: a worker that has none is given an empty one while others have.

    An epoch ends for all where the last of them ends it.
    """
    batches, cursor, ended = iter(feed), None, False
    while True:
        batch = None if ended else next(batches, None)
        ended = batch is None or batch.ends_epoch
        vector = torch.tensor([0 if batch is None else batch.total, int(not ended)])
        comm.all_reduce(vector, "max")
        total, ends = int(vector[0]), not vector[1]
        if not total:
            return
        if batch is None:
            batch = Batch({}, 0, total=total, cursor=cursor)
        cursor, batch.ends_epoch = batch.cursor, ends
        yield batch
        if ends:
            return
