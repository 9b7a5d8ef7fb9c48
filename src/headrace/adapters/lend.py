"""headrace's tables and sources as a torch Dataset of ready batches, for other trainers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from ..data.batch import Batch, State
from ..data.fields import Field, map_tensors
from ..data.reader import Reader
from ..data.source import WHOLE, Shard, Source, Table
from ..errors import ConfigError, SourceError
from ..length import whole
from .adapt import as_data

MOST_WORKERS = 1024


def as_dataset(
    data: Any, batch_size: int, *, order: str = "full", seed: int = 0, shard: Shard = WHOLE
) -> "TorchBatches":
    """Makes a torch IterableDataset of ready batches, from a table (read in this order) or a source.

    ```python
    batches = as_dataset(table, 128)
    loader = DataLoader(batches, batch_size=None, num_workers=2)
    for epoch in range(10):
        batches.set_epoch(epoch)
        for batch in loader:  # a dict of tensors
            ...
    ```

    Each iteration is the epoch that was set, the first if none was: as with torch's DistributedSampler, whoever forgets
    to set it reads the same order again. Any number of loader workers gives the same batches in the same order; of a
    table each reads only what it gives, of a source it reads all. `state_dict` and `load_state_dict` are those of
    torchdata's StatefulDataLoader, and of a loop of your own. `shard`: the part of every batch that one of several
    workers of a distributed training gets.
    """
    size = whole(batch_size)
    if size is None:
        raise ConfigError(f"batch_size= is a whole number, at least 1, got {batch_size!r}.")
    found = as_data(data)
    reads: _Reads = (
        _ByNumber(found, size, order, seed, shard) if isinstance(found, Table) else _InTurn(found, size, shard)
    )
    return TorchBatches(reads)


class TorchBatches(IterableDataset[dict[str, Field]]):
    """Ready batches for a DataLoader with `batch_size=None`. See `as_dataset`."""

    def __init__(self, reads: "_Reads") -> None:
        self._reads = reads
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that stay see a later one, too
        self._pending: State | None = None  # where the next iteration begins, if not at the beginning
        self._begun = torch.zeros(MOST_WORKERS, dtype=torch.bool)  # which loader workers have begun there
        self._at: State | None = None  # where this one is

    def __len__(self) -> int:
        if (count := self._reads.count()) is None:
            raise TypeError("nobody knows how many batches an epoch has")
        return count

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration gives."""
        self._epoch.fill_(epoch)

    def state_dict(self) -> State:
        """Where the iteration stands, in this process."""
        if self._at is None:
            return self._pending or _state(int(self._epoch), 0, 1)
        return dict(self._at)

    def load_state_dict(self, state: State) -> None:
        """The next iteration of that epoch goes on from there."""
        if missing := [key for key in _state(0, 0, 1) if key not in state]:
            raise SourceError(f"this is not a state of batches that headrace lends: it lacks {', '.join(missing)}.")
        self._pending, self._at = dict(state), None
        self._begun = torch.zeros(MOST_WORKERS, dtype=torch.bool).share_memory_()  # so that it is done once
        self.set_epoch(int(state["epoch"]))

    def __iter__(self) -> Iterator[dict[str, Field]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, first = int(self._epoch), worker
        pending, self._pending, self._at = self._pending, None, None
        if pending is not None and (pending["epoch"] != epoch or self._begun[worker]):
            pending = None
        if pending is not None:
            self._begun[worker] = True
            if pending["ended"]:
                return
            first = _place(pending, worker, workers)
        for number, batch in self._reads.batches(epoch, first, workers, pending):
            self._at = _state(epoch, number + workers, workers, batch)
            yield {name: field if info is None else map_tensors(field, _uncut) for name, field in batch.fields.items()}


class _ByNumber:
    """Reads any batch of a table without those before it."""

    def __init__(self, table: Table, size: int, order: str, seed: int, shard: Shard) -> None:
        self._reading, self._size, self._shard = Reader(table, order, seed).reading, size, shard

    def count(self) -> int | None:
        return self._reading.batches(self._size)

    def batches(self, epoch: int, first: int, step: int, saved: State | None) -> Iterator[tuple[int, Batch]]:
        """Every `step`th batch of an epoch, with its number."""
        start = epoch * self._reading.order.n
        ahead = self._reading.ahead(start)
        for number in range(first, self.count() or 0, step):
            found = self._reading.fetch(start + number * self._size, self._size, shard=self._shard, ahead=ahead)
            assert found is not None
            batch = found.only()
            yield number, Batch(batch.fields, batch.rows, ends_epoch=batch.ends_epoch)


class _InTurn:
    """Reads the batches of a source in sequence, and gives some of them."""

    def __init__(self, source: Source, size: int, shard: Shard) -> None:
        self._source, self._size, self._shard = source, size, shard
        self._starts = {0: source.state_dict()}
        """Where the epochs begin, as far as that is known."""
        self._turn = 0  # which iteration reads: there is one source for all

    def count(self) -> int | None:
        return self._source.batches(self._size)

    def batches(self, epoch: int, first: int, step: int, saved: State | None) -> Iterator[tuple[int, Batch]]:
        """Every `step`th batch of an epoch, with its number; `saved` tells where the source stood after one of them."""
        self._turn, number = self._turn + 1, 0
        if saved is None or saved["source"] is None:
            self._find(epoch)
        else:
            self._source.load_state_dict(saved["source"])
            number = saved["next"] - saved["step"] + 1
        for k, batch in self._rest(epoch, number):
            if k >= first and (k - first) % step == 0:
                yield k, batch

    def _rest(self, epoch: int, number: int) -> Iterator[tuple[int, Batch]]:
        """The batches from here to the end of the epoch, with their numbers."""
        turn = self._turn
        while (batch := self._pull(turn)) is not None:
            if batch.ends_epoch:
                self._starts.setdefault(epoch + 1, batch.cursor)
            yield number, batch
            if batch.ends_epoch:
                return
            number += 1

    def _pull(self, turn: int) -> Batch | None:
        if turn != self._turn:
            raise SourceError(
                "a later iteration of these batches has begun, and both read one source. Finish one before the next, "
                "or lend another source to each: as_dataset(...)."
            )
        macrobatch = self._source.next_macrobatch(self._size, self._size, self._shard)
        return None if macrobatch is None else macrobatch.only()

    def _find(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, and reads what lies between if it has to."""
        start = self._starts[0]
        if start is None:
            return  # it cannot be rewound, and begins again by itself
        if not self._source.marks_ends:
            self._source.load_state_dict(start)  # it ends with an epoch, and every one begins there
            return
        known = max(each for each in self._starts if each <= epoch)
        self._source.load_state_dict(self._starts[known] or start)
        for before in range(known, epoch):
            for _ in self._rest(before, 0):
                pass


_Reads = _ByNumber | _InTurn


def _state(epoch: int, following: int, step: int, batch: Batch | None = None) -> State:
    """Where an iteration stands: the number of the batch that follows, and how far apart those are that it gives."""
    source, ended = (None, False) if batch is None else (batch.cursor, batch.ends_epoch)
    return {"epoch": epoch, "next": following, "step": step, "source": source, "ended": ended}


def _place(state: State, worker: int, workers: int) -> int:
    """The number of the first batch that a worker gives."""
    if state["step"] == 1:  # said by the process that the workers share out to
        return int(state["next"]) + worker
    if state["step"] != workers:
        raise SourceError(
            f"this state was saved with {state['step']} loader workers, now there are {workers}. Take as many."
        )
    return int(state["next"])


def _uncut(tensor: Tensor) -> Tensor:
    """Without the rest of the memory that it is a view of: what goes to another process goes with all of it."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
