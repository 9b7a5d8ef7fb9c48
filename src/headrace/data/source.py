"""The contract of data: a `Table` gives rows by number, a `Source` gives the next minibatch.

Whoever has random access writes a Table, and gets shuffling, sharding and exact resume from the Reader.
Whoever has a stream writes a Source, and says what it can do.
"""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from torch import Tensor

from ..batch import Batch, Field, State, Stream, concat, split_fields
from ..errors import ConfigError, SourceError


@dataclass(frozen=True)
class Shard:
    """The part of every batch that one of `count` workers reads."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"a shard is one of its count, got index {self.index} of {self.count}.")

    def of(self, rows: int) -> tuple[int, int]:
        """Start and stop of this shard within a batch of `rows` rows; it may be empty."""
        return rows * self.index // self.count, rows * (self.index + 1) // self.count


WHOLE = Shard()


class Cursor(TypedDict):
    """Where a Reader stands: a few integers, the same on every worker."""

    version: int
    seed: int
    order: str
    epoch: int
    position: int
    rows: int
    block: int
    fingerprint: str


@dataclass(slots=True)
class Macrobatch:
    """A run of consecutive minibatches stored together, so that they can be staged in one go."""

    fields: Mapping[str, Field]
    counts: list[int]
    """Rows of each minibatch held here."""
    totals: list[int]
    """Rows of each minibatch over all workers."""
    cursors: Sequence[State | None]
    ends_epoch: bool = False
    """Whether the last minibatch reaches or crosses the end of the epoch."""
    finishes: bool = False
    """Whether the source had nothing more to give after it."""
    ready: Any = field(default=None)
    """What to wait for on the device before reading, if anything."""

    def batches(self) -> list[Batch]:
        """The minibatches, as views."""
        parts = split_fields(self.fields, self.counts) if len(self.counts) > 1 else [dict(self.fields)]
        columns = zip(parts, self.counts, self.totals, self.cursors, strict=True)
        batches = [Batch(part, rows, total=total, cursor=cursor) for part, rows, total, cursor in columns]
        batches[-1].ends_epoch = self.ends_epoch
        for batch in batches if len(batches) > 1 else []:
            batch.whole = self.fields
        return batches

    def tensors(self) -> list[Tensor]:
        return [f for f in self.fields.values() if isinstance(f, Tensor)]


class Source(ABC):
    """Data pulled one minibatch at a time. Give it `streams` and `next_batch`; state, by choice.

    A source is asked for `size` rows of the whole batch and returns its shard's part of them: an empty
    Batch if there is nothing for this shard, `None` once it is finished for every shard. With `state_dict`
    and `load_state_dict` it resumes exactly and is rewound for the next epoch; without them it is pulled
    on, and has to start again by itself.

    It may be asked before its batch is needed: what it draws, it draws from a generator of its own, kept in its state.
    """

    shards = False
    """Whether `next_batch` honours `shard`. If not, each worker reads everything and keeps its part."""
    thread_safe = False
    """Whether it may be pulled from a thread other than the loop's."""
    marks_ends = False
    """Whether the last batch of every epoch has `ends_epoch`. If not, the end shows by `None` only."""

    @property
    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """What every batch holds."""

    @abstractmethod
    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        """The shard's part of the next `size` rows; `None` at the end."""

    def state_dict(self) -> State | None:
        """Where the source stands, as plain values and tensors; `None` if it cannot say."""
        return None

    def load_state_dict(self, state: State) -> None:
        """Goes back to a state that `state_dict` gave."""
        raise SourceError(f"{type(self).__name__} cannot be resumed: it has no load_state_dict.")

    def batches(self, size: int) -> int | None:
        """How many batches of `size` rows an epoch has, where that is known."""
        return None

    def resident(self, device: torch.device) -> bool:
        """Whether the rows are in the memory of this device already, so that nothing needs staging."""
        return False

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        """A run of minibatches of together about `rows` rows, at least one; it ends with an epoch."""
        held: list[Batch] = []
        batch: Batch | None = None
        found = 0
        while found < rows and not (held and (held[-1].ends_epoch or _opaque(held[-1]))):
            batch = self._pull(size, shard)
            if batch is None:
                break
            if not batch.total:
                raise SourceError(f"{type(self).__name__} gave a batch without rows. Return None at the end.")
            held.append(batch)
            found += batch.total
        if not held:
            return None
        ends = held[-1].ends_epoch or batch is None
        counts, totals = [b.rows for b in held], [b.total for b in held]
        return Macrobatch(concat(held), counts, totals, [b.cursor for b in held], ends, finishes=batch is None)

    def _pull(self, size: int, shard: Shard) -> Batch | None:
        batch = self.next_batch(size, shard if self.shards else WHOLE)
        if batch is None:
            return None
        check_batch(batch, self.streams, type(self).__name__, size)
        cursor = copy.deepcopy(self.state_dict() if batch.cursor is None else batch.cursor)
        return _part(batch, WHOLE if self.shards else shard, cursor)


class Table(ABC):
    """Rows by number. Give it `streams`, `__len__` and `take`; everything else comes from the Reader."""

    @property
    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """What every row holds."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def take(self, indices: Tensor) -> Batch:
        """The rows at these numbers (int64, any order), all at once."""

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` to `stop`, as stored."""
        return self.take(torch.arange(start, stop))

    def resident(self, device: torch.device) -> bool:
        """Whether the rows are in the memory of this device already."""
        return False

    def fingerprint(self) -> str:
        """What a resumed run compares: the same rows and streams give the same text."""
        text = "\n".join([str(len(self)), *map(str, self.streams)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_batch(batch: Batch, streams: Sequence[Stream], owner: str, limit: int) -> None:
    """Raises unless a batch holds what its source declared, and no more than was asked."""
    if not isinstance(batch, Batch):
        raise SourceError(f"{owner} gave a {type(batch).__name__}. Return a headrace Batch, or None at the end.")
    if batch.rows > limit:
        raise SourceError(f"{owner} was asked for {limit} rows and gave {batch.rows}. A batch never exceeds its size.")
    for stream in streams:
        if stream.name not in batch:
            raise SourceError(
                f"{owner} declares stream {stream.name!r}, which is missing in a batch with {list(batch)}."
            )
        rows = batch[stream.name]
        if isinstance(rows, Tensor) and stream.layout == "dense" and not stream.sequence:
            got = Stream.of(stream.name, rows)
            if (got.shape, got.dtype) != (stream.shape, stream.dtype):
                raise SourceError(f"{owner}: expected stream {stream}, got {got}. Change the declaration or the rows.")
            if len(rows) != batch.rows:
                raise SourceError(f"{owner}: stream {stream.name!r} has {len(rows)} rows in a batch of {batch.rows}.")


def check_names(streams: Sequence[Stream]) -> None:
    """Raises on two streams of one name."""
    names = [s.name for s in streams]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SourceError(f"stream names must be unique, got {', '.join(map(repr, twice))} more than once.")


def _part(batch: Batch, shard: Shard, cursor: State | None) -> Batch:
    """A shard's part of a batch that was read whole."""
    start, stop = shard.of(batch.rows)
    if stop - start == batch.rows:  # a batch of its own: the source may give the same one again
        return Batch(batch.fields, batch.rows, total=batch.total, cursor=cursor, ends_epoch=batch.ends_epoch)
    if _opaque(batch):
        raise SourceError(
            "a batch with fields that are not tensors cannot be shared by workers: give the source shards."
        )
    fields = {name: rows[start:stop] for name, rows in batch.fields.items() if isinstance(rows, Tensor)}
    return Batch(fields, stop - start, total=batch.total, cursor=cursor, ends_epoch=batch.ends_epoch)


def _opaque(batch: Batch) -> bool:
    return not all(isinstance(f, Tensor) for f in batch.fields.values())
