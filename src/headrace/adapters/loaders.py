"""Sources that read a DataLoader, an IterableDataset, or anything else that can be iterated again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from ..data.batch import ANY, Batch, Macrobatch, State, Stream, torch_dtype
from ..data.fields import Field, has_rows
from ..data.shard import WHOLE, Shard
from ..data.source import Source, check_names, part_of
from ..errors import SourceError
from .passes import Passes, collates, stacks
from .samples import Names, collated, fields_of

TIMEOUT_S = 300.0


class Iterated(Source):
    """Reads an iterable, epoch after epoch, and can go back to any batch.

    Data with `state_dict` and `load_state_dict` (a StatefulDataLoader) go back to their own state, saved after every
    batch. For all others the epoch begins again: with torch's, NumPy's and Python's random numbers, the generators and
    the epoch of the sampler as they were, and the batches that were used are dropped. That is exact wherever the order
    comes from those, whoever draws for the samples: worker processes, or this one. Not exact is what is drawn for
    samples by workers that stay for the next epoch (`persistent_workers`) or that are those of a StatefulDataLoader,
    as nobody saves where they stand; nor by this process, if the length is not known, as it reads one batch ahead.

    Worker processes that fail end in a `SourceError`: what was raised, a signal, or nothing within `timeout_s`.
    `streams` spares the look at the first batch that finds them out.
    """

    marks_ends = True

    def __init__(
        self,
        data: Iterable[Any],
        unit: str,
        names: Names,
        streams: Sequence[Stream] | None,
        timeout_s: float,
    ) -> None:
        self._name, self._names = named(data), None if names is None else tuple(names)
        self._passes = Passes(data, self._name, unit, timeout_s)
        self._streams: tuple[Stream, ...] | None = None
        if streams is not None:
            self._learn(streams)

    @property
    def streams(self) -> Sequence[Stream]:
        if self._streams is None:
            self._passes.waiting = self.waiting
            self._learn(self._common([Stream.of(*item) for item in self._fields([self._passes.peek()]).items()]))
        return self._streams or ()

    @property
    def level(self) -> str:
        found = f"by replay: the epoch of the {self._name} begins again, and the batches that were used are dropped"
        if self._passes.exact:
            found = f"exactly, after any batch, by the {self._name}'s own state"
        return f"{found}; {forgotten}" if (forgotten := self._passes.forgotten) else found

    def state_dict(self) -> State:
        return self._passes.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._passes.load_state_dict(state)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        self._passes.waiting = self.waiting
        items, ended = self._passes.pull(self._count(size))
        return Batch(self._fields(items), cursor=self.state_dict(), ends_epoch=ended)

    def _count(self, size: int) -> int:
        return size

    def _common(self, streams: list[Stream]) -> list[Stream]:
        """What all batches have of these streams, which are those of the first."""
        return streams

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        raise NotImplementedError

    def _learn(self, streams: Sequence[Stream]) -> None:
        check_names(streams)
        self._streams = tuple(streams)
        self._passes.who = f"{self._name} ({', '.join(stream.name for stream in streams)})"


class LoaderSource(Iterated):
    """Reads the batches of a loader, in its own sizes: tuples, dicts, or `Batch`es. See `Iterated`.

    `names` are those of the parts of a tuple, where they are not "x" or ("x", "y"). What can be iterated once only, a
    generator, has one epoch. Of one batch to the next the sizes of dimensions may differ, as those of padding do.
    """

    own_size = True

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        names: Names = None,
        streams: Sequence[Stream] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(loader, "batches", names, streams, timeout_s)
        self.aliases = not collates(loader)
        self._uniform = stacks(loader)

    def batches(self, size: int) -> int | None:
        return self._passes.length

    def pull(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        declared = self.streams
        batch = self.next_batch(size)
        assert batch is not None
        self._check(batch, declared)
        if shard.count > 1:
            self.compare_batch(batch)
        return part_of(batch, shard, batch.cursor)

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        """One batch of the loader's: they may differ in shape, and none is asked for before it is needed."""
        batch = self.pull(size, shard)
        assert batch is not None
        cursors, aliases = [batch.cursor], self.aliases
        return Macrobatch(batch.fields, [batch.rows], [batch.total], cursors, batch.ends_epoch, aliases=aliases)

    def _count(self, size: int) -> int:
        return 1

    def _common(self, streams: list[Stream]) -> list[Stream]:
        return streams if self._uniform else [replace(s, shape=(ANY,) * len(s.shape)) for s in streams]

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        return fields_of(items[0], self._names, self._name)

    def _check(self, batch: Batch, declared: Sequence[Stream]) -> None:
        if not batch.rows:
            raise SourceError(f"{self._passes.who} gave a batch without rows.")
        for stream in declared:
            if stream.name not in batch.fields:
                raise SourceError(f"{self._passes.who} gave a batch with the streams {list(batch)} only.")
            if not _like(batch.fields[stream.name], stream):
                raise SourceError(
                    f"{self._passes.who}: expected {stream}, got {Stream.of(stream.name, batch[stream.name])}. "
                    "The batches of a loader agree in streams, dtypes and dimensions."
                )


class SampleSource(Iterated):
    """Reads the samples of an IterableDataset of torch or Hugging Face, and collates them into batches.

    They are read in this process; for worker processes, wrap them in a DataLoader. `names` and `sequences` are those of
    `from_dataset`. See `Iterated`.
    """

    aliases = False  # samples are stacked

    def __init__(
        self,
        samples: Iterable[Any],
        *,
        names: Names = None,
        sequences: Sequence[str] = (),
        streams: Sequence[Stream] | None = None,
    ) -> None:
        self._sequences = tuple(sequences)
        super().__init__(samples, "samples", names, streams, TIMEOUT_S)

    def batches(self, size: int) -> int | None:
        return None if self._passes.length is None else -(-self._passes.length // size)

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        return collated(items, self._names, self._sequences, self._name)


def named(data: Any) -> str:
    """The name of a loader or an iterable in messages."""
    if isinstance(data, DataLoader):
        return f"{type(data).__name__} of {type(data.dataset).__name__}"
    return type(data).__name__


def _like(field: Field, declared: Stream) -> bool:
    """Whether it is a field of this stream, but for the sizes of its dimensions."""
    if isinstance(field, Tensor):  # nearly always
        dense = not declared.sequence and declared.layout == "dense"
        return dense and field.dtype == torch_dtype(declared.dtype) and field.dim() == len(declared.shape) + 1
    if not has_rows(field):
        return True
    kinds = [(s.dtype, s.layout, s.sequence, len(s.shape)) for s in (Stream.of(declared.name, field), declared)]
    return kinds[0] == kinds[1]
