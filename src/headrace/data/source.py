"""The base classes of data: a `Table` returns rows by number, and a `Source` returns the next batch.

Write a Table for data with random access: a Reader adds shuffling, sharding and exact resume. Write a Source for a
stream of batches, and declare what it can do.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..errors import SourceError, unknown
from .batch import ANY, Batch, Macrobatch, State, Stream, concat, torch_dtype
from .encoding import Categories, Encoding
from .fields import Opaque, has_rows
from .shard import WHOLE, Shard

SOME = 64  # items of a sequence, or bytes of a sparse row, where only a guess can be made


class Source(ABC):
    """Data that are read batch by batch. Override `streams` and `next_batch`, and for exact resume the state methods.

    `next_batch` gets the size of the complete batch and returns the part of this shard: an empty Batch if the shard has
    no rows in it, and `None` after the last batch. A source with `state_dict` and `load_state_dict` resumes exactly,
    and is rewound for the next epoch. A source without them has to start the next epoch by itself.
    `headrace.testing.check_source` tests all of this.

    Batches are read before they are needed, unless the source is `endless` or `marks_ends`, and neither `thread_safe`
    nor `shards`. A source draws random numbers from its own generator, which is part of its state.
    """

    shards = False
    """Whether `next_batch` honours `shard`. If not, each worker reads everything and keeps its part."""
    thread_safe = False
    """Whether it may be pulled from a thread other than the loop's."""
    marks_ends = False
    """Whether the last batch of every epoch has `ends_epoch`. If not, the end shows by `None` only."""
    endless = False
    """Whether it never ends, so that a training on it needs a limit, or an epoch made with `hr.head`."""
    elastic = False
    """Whether another number of workers may go on from its state; one that does not shard always allows it."""
    own_size = False
    """Whether its batches have a size of their own, whatever is asked: those of a loader."""
    sized_by = "rows"
    """What a size counts: rows, or the items of the stream of this name."""
    aliases = True
    """Whether a batch may be a view of memory that the source keeps. A feed copies such batches."""
    generators: Sequence[torch.Generator] = ()
    """The generators from which the order is drawn."""

    _records = False  # whether it is read with gradients on, as in a loop of one's own

    waiting: Callable[[], None] = staticmethod(lambda: None)
    """What a source that waits for others calls every now and then; what it raises is to end the wait."""

    compare_batch: Callable[[Batch], None] = staticmethod(lambda batch: None)
    """Called with every batch of which this worker, who has read it whole, keeps a part."""

    @property
    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """What every batch holds."""

    @abstractmethod
    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        """The shard's part of the next `size` rows; `None` at the end."""

    def state_dict(self) -> State | Any:
        """The position of the source, as plain values and tensors; `None` if it has none."""
        return None

    def load_state_dict(self, state: State) -> None:
        """Restores a state that `state_dict` returned."""
        raise SourceError(f"{type(self).__name__} cannot be resumed: it has no load_state_dict.")

    def passed(self) -> None:
        """Called when a pass was made before: worker processes that stay after a pass are there."""

    def take_over(self, source: "Source", **others: Any) -> None:
        """Copies the attributes of another source (`shards`, `endless`, …); keywords give other values."""
        for name in _TRAITS:
            setattr(self, name, others.get(name, getattr(source, name)))

    def independent_reader(self) -> "Source":
        """A copy with a separate position, for a thread that reads ahead; the source itself if there cannot be one."""
        return self

    @property
    def encoding(self) -> Encoding | None:
        """How the data were read; `None` if it is not known."""
        return None

    @property
    def title(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def level(self) -> str:
        """How exactly a training on it is resumed, in a clause for the log."""
        stateful = type(self).state_dict is not Source.state_dict
        return "exactly, after any batch" if stateful else "between epochs only: it has no state_dict"

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row takes."""
        return sum((SOME if stream.sequence else 1) * _item_bytes(stream) for stream in self.streams)

    @property
    def item_bytes(self) -> float:
        """About how many bytes of whatever a size counts."""
        return self.row_bytes

    def batches(self, size: int) -> int | None:
        """How many batches of this size an epoch has, where that is known."""
        return None

    def resident(self, device: torch.device) -> bool:
        """Whether the rows are in the memory of this device already, so that nothing needs staging."""
        return False

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        """A run of minibatches of together about `rows` rows, at least one; it ends with an epoch."""
        held: list[Batch] = []
        batch: Batch | None = None
        found = 0
        varies = any(stream.varies for stream in self.streams)  # then batches cannot be joined
        while found < rows and not (held and (varies or held[-1].ends_epoch or _is_indivisible(held[-1]))):
            batch = self.pull(size, shard)
            if batch is None:
                break
            if not batch.total:
                raise SourceError(f"{type(self).__name__} gave a batch without rows. Return None at the end.")
            held.append(batch)
            found += size
        if not held:
            return None
        ends = held[-1].ends_epoch or batch is None
        counts, totals = [b.rows for b in held], [b.total for b in held]
        aliases = self.aliases and len(held) == 1  # several are copied together
        cursors = [b.cursor for b in held]
        return Macrobatch(concat(held), counts, totals, cursors, ends, finishes=batch is None, aliases=aliases)

    def pull(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        """The shard's part of the next batch, checked, with its cursor, whether the source shards or not."""
        batch = self.next_batch(size, shard if self.shards else WHOLE)
        if batch is None:
            return None
        check_batch(batch, self.streams, type(self).__name__, None if self.own_size else size, self.sized_by)
        if shard.count > 1 and self.shards:
            self._check_total(batch, shard)
        elif shard.count > 1:
            self.compare_batch(batch)
        cursor = copy.deepcopy(self.state_dict() if batch.cursor is None else batch.cursor)
        return part_of(batch, WHOLE if self.shards else shard, cursor)

    def _check_total(self, batch: Batch, shard: Shard) -> None:
        """Raises unless a shard's part of a batch tells how large the whole is: workers are weighed by that."""
        if batch._tells_total and batch.total >= batch.rows:
            return
        said = f"and total={batch.total}" if batch._tells_total else "without total="
        raise SourceError(
            f"{type(self).__name__} declares shards = True, and gave shard {shard.index} of {shard.count} {batch.rows} "
            f"rows {said}. Say how many rows the whole batch has, of all shards: hr.Batch(fields, total=...)."
        )


def forwarded(path: str) -> Any:
    """An attribute that is another object's, as "table.streams" is the table's: for what is made of that."""
    return property(attrgetter(path))


_TRAITS = [name for name, said in vars(Source).items() if isinstance(said, bool | str) and name[0] != "_"]


class Table(ABC):
    """Data whose rows can be read by number. Override `streams`, `__len__` and `take`; a Reader does the rest."""

    @property
    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """What every row holds."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def take(self, indices: Tensor) -> Batch:
        """The rows with these numbers (int64, in any order), in new memory."""

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` to `stop`, as stored; they may be views, if `aliases` is true."""
        return self.take(torch.arange(start, stop))

    @property
    def aliases(self) -> bool:
        """Whether `rows` may return views of the table's memory. Readers copy them, because a model may change a batch.

        By default it is true if a table overrides `rows`. Set it to False if `rows` always returns copies.
        """
        return type(self).rows is not Table.rows

    def lengths(self, stream: str) -> Tensor:
        """The number of items in each row of a stream of sequences, as int64 on the host, to count items."""
        self.sequence(stream)
        raise SourceError(f"{type(self).__name__} does not know the lengths of {stream!r}. Give it lengths(stream).")

    thread_safe: bool = False
    """Whether rows may be read in several threads at once. If not, they are read in the thread that trains."""
    block: int | None = None
    """How many rows lie together on disk, if any do: what an order by blocks goes by."""

    def stream(self, name: str) -> Stream:
        """The stream of this name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise SourceError(unknown("stream", name, [stream.name for stream in self.streams]))

    def sequence(self, name: str) -> Stream:
        """The stream of this name, which has to have sequences."""
        stream = self.stream(name)
        if not stream.sequence:
            raise SourceError(f"stream {name!r} has no sequences: every row is one item. Count rows.")
        return stream

    @property
    def encoding(self) -> Encoding:
        """How the rows were read, before a map has changed them. An override of `categories` is part of it."""
        overrides = type(self).categories is not Table.categories
        return Encoding(tuple(self.streams), self.categories if overrides else {})

    @property
    def categories(self) -> Categories:
        """The strings that the numbers of a stream stand for, if it was read from strings."""
        names = {stream.name for stream in self.streams}
        return {name: strings for name, strings in self.encoding.categories.items() if name in names}

    @property
    def nulls(self) -> Mapping[str, Any]:
        """What stands for the nulls of each stream, as `open_table` takes it; a mean is a number by now."""
        return self.encoding.nulls

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row takes."""
        return sum(self._items(stream) * _item_bytes(stream) for stream in self.streams)

    def _items(self, stream: Stream) -> float:
        """About how many items a row has of a stream."""
        if not stream.sequence:
            return 1.0
        try:
            lengths = torch.as_tensor(self.lengths(stream.name))
        except SourceError:
            return SOME
        return float(lengths.sum()) / max(1, len(lengths))

    def resident(self, device: torch.device) -> bool:
        """Whether the rows are in the memory of this device already."""
        return False

    def fingerprint(self) -> str:
        """A text that a resumed run compares: the same rows and streams give the same text."""
        return fingerprint_of(len(self), *self.streams, *sorted(self.categories.items()), *sorted(self.nulls.items()))


def fingerprint_of(*values: object) -> str:
    """A short hash of these values: of bytes as they are, of others as text."""
    text = b"\n".join(each if isinstance(each, bytes) else str(each).encode() for each in values)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def check_batch(
    batch: Batch, streams: Sequence[Stream], owner: str, limit: int | None = None, count: str = "rows"
) -> None:
    """Raises unless a batch holds what its source declared, and no more than was asked."""
    if not isinstance(batch, Batch):
        raise SourceError(f"{owner} gave a {type(batch).__name__}. Return a headrace Batch, or None at the end.")
    found = batch.rows if count == "rows" else batch.items(count)
    if limit is not None and found > limit and (count == "rows" or batch.rows > 1):
        what = "rows" if count == "rows" else f"items of {count!r}"
        raise SourceError(f"{owner} was asked for {limit} {what} and gave {found}. A batch never exceeds its size.")
    for stream in streams:
        if stream.name not in batch:
            raise SourceError(
                f"{owner} declares stream {stream.name!r}, which is missing in a batch with {list(batch.fields)}."
            )
        rows = batch[stream.name]
        if not has_rows(rows):
            if not isinstance(rows, Opaque):
                kind = type(rows).__name__
                raise SourceError(
                    f"{owner}: stream {stream.name!r} holds a {kind}. Give a tensor: torch.as_tensor(...)."
                )
            continue
        got = Stream.of(stream.name, rows)
        if not got.fits(stream):
            raise SourceError(f"{owner}: expected stream {stream}, got {got}. Change the declaration or the rows.")
        if len(rows) != batch.rows:
            raise SourceError(f"{owner}: stream {stream.name!r} has {len(rows)} rows in a batch of {batch.rows}.")


def _item_bytes(stream: Stream) -> float:
    """About how many bytes an item takes; a guess for a sparse one."""
    if stream.layout == "sparse":
        return SOME
    return math.prod(SOME if size == ANY else size for size in stream.shape) * torch_dtype(stream.dtype).itemsize


def check_names(streams: Sequence[Stream]) -> None:
    """Raises unless these are streams, each with a name of its own."""
    if isinstance(streams, Stream) or callable(streams) or not all(isinstance(s, Stream) for s in streams):
        raise SourceError(f"streams is a list of Stream, or a property that gives one; got {streams!r}.")
    names = [s.name for s in streams]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SourceError(f"stream names must be unique, got {', '.join(map(repr, twice))} more than once.")


def check_fixed(streams: Sequence[Stream]) -> None:
    """Raises on sizes that differ between batches: the rows of a table or a file have one shape."""
    if loose := [stream for stream in streams if stream.varies]:
        raise SourceError(
            f"{loose[0]}: -1 stands for a size that differs between the batches of a Source, and rows by number have "
            "one shape. Declare the size, or sequences: hr.Stream(..., sequence=True)."
        )


def part_of(batch: Batch, shard: Shard, cursor: State | None) -> Batch:
    """A shard's part of a batch that was read whole."""
    start, stop = shard.of(batch.rows)
    if stop - start == batch.rows:  # a batch of its own: the source may give the same one again
        return Batch(batch.fields, batch.rows, total=batch.total, cursor=cursor, ends_epoch=batch.ends_epoch)
    if _is_indivisible(batch):
        raise SourceError("a batch with fields that have no rows cannot be shared by workers: give the source shards.")
    fields = {name: rows[start:stop] for name, rows in batch.fields.items()}
    return Batch(fields, stop - start, total=batch.total, cursor=cursor, ends_epoch=batch.ends_epoch)


def _is_indivisible(batch: Batch) -> bool:
    """Whether a batch has a field that can be neither cut nor joined."""
    return not all(has_rows(field) for field in batch.fields.values())
