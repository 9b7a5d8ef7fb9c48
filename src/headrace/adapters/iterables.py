"""Sources that read what others iterate over: a DataLoader, an IterableDataset, a list of batches, any iterable.

There are two ways back to a batch. Where the iterable keeps a state of its own, that state is loaded. Otherwise its
epoch begins again with the random numbers that it began with, and the items that were used already are dropped.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from ..data.batch import ANY, Batch, Macrobatch, State, Stream
from ..data.fields import Field, Pieces, map_tensors
from ..data.shard import WHOLE, Shard
from ..data.source import Source, check_batch, check_names, part_of
from ..errors import ConfigError, SourceError
from ..length import as_count
from ..store import rng
from ..store.codec import decode, encode
from . import loaders
from .loaders import hugging_kind
from .samples import Names, collated, fields_of

_CPU, _END = torch.device("cpu"), object()
_AGAIN = "Pass a list, a DataLoader, or an object whose __iter__ gives a new iterator every time."


class Iterated(Source):
    """Reads an iterable, epoch after epoch, and can go back to any batch.

    Data with `state_dict` and `load_state_dict`, such as a StatefulDataLoader, restore their own state, which is saved
    after every batch. All others begin the epoch again with the random states of torch, NumPy and Python, the
    generators and the epoch of the sampler that it began with, and drop the batches that were used. This is exact if
    the order and the samples draw from these. Some random states cannot be saved: those of workers that stay for the
    next epoch (`persistent_workers`), those of a StatefulDataLoader's workers, and that of this process if the length
    is not known, because it reads one batch ahead.

    A worker process that has ended is noticed within 5 s. `DataLoader(timeout=)` limits the wait for one that hangs. If
    `streams` is given, the first batch is not read to find them out.
    """

    marks_ends = True
    aliases = False  # samples are stacked, and batches are stacked or copied
    _unit = "batches"
    _uniform = True  # whether all rows have one shape
    _records = True  # views are made faster than without gradients, and there are many; batches are detached

    def __init__(self, data: Iterable[Any], names: Names = None, streams: Sequence[Stream] | None = None) -> None:
        loaders.check_unshared(data)
        self._data, self._names, self._length = data, None if names is None else tuple(names), loaders.length_of(data)
        dataset = f" of {type(data.dataset).__name__}" if isinstance(data, DataLoader) else ""
        self._name = self._who = f"{type(data).__name__}{dataset}"
        self._exact = loaders.has_exact_state(data)
        self._once = isinstance(data, Iterator)  # maybe: nobody can tell whether it begins again when asked to
        self._sized = isinstance(data, DataLoader) and self._length is not None  # its length is right
        self._may_draw = not isinstance(data, list | tuple) and not getattr(data, "num_workers", 0)  # in this process
        self.generators = loaders.generators_of(data)
        self._made = loaders.settings_of(data, self._exact)
        self._pass: Iterator[Any] | None = None
        self._pulled_ahead, self._peeked = list[Any](), list[Any]()  # the next item; the first, of an iterator
        self._rewound = False  # whether an epoch has been begun in its middle, by a state of the data's own
        self._epoch = self._given = 0  # where it stands: the epoch, and how many of its items have been given
        self._random: State | None = None  # those that the epoch began with, once it has
        self._generators: list[Tensor] | None = None
        self._own: State | None = None
        self._stayed: bool | None = None  # whether the epoch began with workers that had stayed; None: not known yet
        self._streams: tuple[Stream, ...] | None = None
        if streams is not None:
            self._learn(streams)

    @property
    def streams(self) -> Sequence[Stream]:
        if self._streams is None:
            first = [Stream.of(*item) for item in self._fields([self._peek()]).items()]
            self._learn(first if self._uniform else [replace(s, shape=(ANY,) * len(s.shape)) for s in first])
        return self._streams or ()

    @property
    def level(self) -> str:
        found = f"by replay: the epoch of the {self._name} begins again, and the batches that were used are dropped"
        if self._exact:
            found = f"exactly, after any batch, by the {self._name}'s own state"
        return f"{found}; {lost}" if (lost := loaders.lost_at_resume(self._data, self._exact)) else found

    def _kept(self, item: Any) -> Any:
        """What is kept of an item until a batch is made of it."""
        return item

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        raise NotImplementedError

    def _learn(self, streams: Sequence[Stream]) -> None:
        check_names(streams)
        self._streams = tuple(streams)
        self._who = f"{self._name} ({', '.join(stream.name for stream in streams)})"

    def _pull(self, count: int) -> tuple[list[Any], bool]:
        """The next items, and whether the epoch ends with them. Where it stands is known before any item after them."""
        items: list[Any] = []
        if self._sized and self._length:
            count = min(count, self._length - self._given)
        while len(items) < count and (item := self._next()) is not _END:
            items.append(item)
        if not items:
            raise SourceError(self._empty())
        self._given += len(items)
        ended = len(items) < count
        if self._exact and not ended:
            tensors: dict[str, Tensor] = {}
            own = json.dumps(encode(self._data.state_dict(), tensors, f"state of {self._who}"))  # type: ignore[attr-defined]
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            self._own = {"json": own, "tensors": tensors, "generators": self._generator_states()}
        if not ended and not (self._sized and self._given != self._length):
            stood = rng.standing() if self._may_draw else None
            ended = (item := self._next()) is _END
            self._pulled_ahead = [] if ended else [item]
            if self._may_draw and not ended and rng.standing() != stood:
                self._may_draw = False  # once is enough
                loaders.warn_of_draws_ahead(self._name)
        if ended:
            self._end_pass()
            self._epoch, self._given = self._epoch + 1, 0
            self._random = self._generators = self._own = self._stayed = None
        return items, ended

    def _peek(self) -> Any:
        """The first item of an epoch, without a trace: the random numbers and the state are put back."""
        before, generators, stayed = rng.capture(_CPU), self._generator_states(), loaders.has_workers(self._data)
        parts = [] if self._once else [(part, part.state_dict()) for part in loaders.stateful_parts(self._data)]
        self._pass = self._new_pass()
        first = self._fetch()
        if self._once:
            self._pass, self._peeked = None, [first]
        else:
            self._end_pass(ends_workers=not stayed)
            for part, state in parts:
                part.load_state_dict(state)
            self._restore(before, generators)
        if first is _END:
            raise SourceError(self._empty())
        return self._kept(first)

    def _next(self) -> Any:
        """The next item, as it is kept, or `_END`."""
        if self._pulled_ahead:
            return self._pulled_ahead.pop()
        if self._pass is None:
            self._begin()
        item = self._fetch()
        return item if item is _END else self._kept(item)

    def _fetch(self) -> Any:
        assert self._pass is not None
        try:
            return next(self._pass)
        except StopIteration:
            if self._sized and 0 < self._given < (self._length or 0):
                raise SourceError(
                    f"{self._who} says that it has {self._length} batches, and ended after {self._given}. "
                    "Correct the length of its sampler."
                ) from None
            return _END
        except Exception as error:
            why = loaders.failure_of(error, self._pass)
            self._end_pass(ends_workers=True)
            self.waiting()  # workers that a signal has ended, which asks this process to stop, have not failed
            raise SourceError(
                f"{self._who} failed after {self._given} {self._unit} of epoch {self._epoch}: {why}"
            ) from error

    def _begin(self) -> None:
        """Begins the epoch, or goes back to where it was left."""
        if self._given:
            self._begin_again()
            return
        if self._generators is not None:
            self._restore(None, self._generators)
        if self._stayed is None:
            self._stayed = loaders.has_workers(self._data)
        self._keep_workers(self._stayed)
        if self._rewound and hugging_kind(self._data):
            self._data.load_state_dict({})  # type: ignore[attr-defined]
        self._random, self._generators = rng.capture(_CPU), self._generator_states()
        self._pass = self._new_pass()

    def _begin_again(self) -> None:
        """Begins the epoch as it began, and gives nothing that was given; the random numbers at hand are untouched."""
        before, own = rng.capture(_CPU), self._own
        try:
            if own is None:
                self._keep_workers(bool(self._stayed))
            self._restore(self._random, self._generators or [])
            if own is not None:
                self._data.load_state_dict(decode(json.loads(own["json"]), own["tensors"]))  # type: ignore[attr-defined]
                self._rewound, self._peeked = True, []
            self._pass = self._new_pass()
            if own is not None:
                self._restore(None, own["generators"])
            for k in range(0 if own is not None else self._given):
                if self._fetch() is _END:
                    raise SourceError(
                        f"{self._who} ended after {k} {self._unit} of epoch {self._epoch}, of which {self._given} had "
                        f"been used when the run was saved. {_AGAIN if self._once else 'Read the same data.'}"
                    )
        except BaseException:
            self._end_pass(ends_workers=True)
            raise
        finally:
            rng.restore(before, _CPU)

    def _new_pass(self) -> Iterator[Any]:
        for part in loaders.parts_of(self._data):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self._epoch)
        peeked, self._peeked = self._peeked, []
        try:
            return chain(peeked, loaders.begin(self._data)) if peeked else loaders.begin(self._data)
        except Exception as error:
            raise SourceError(
                f"{self._who} cannot begin epoch {self._epoch}: {type(error).__name__}: {error}"
            ) from error

    def _keep_workers(self, wanted: bool) -> None:
        """Starts or ends workers that stay: a loader draws one more number when it starts its workers."""
        has = loaders.has_workers(self._data)
        if wanted and not has:
            before, generators = rng.capture(_CPU), self._generator_states()
            self._new_pass()
            self._restore(before, generators)
        elif has and not wanted:
            loaders.end_workers(self._data, self._data._iterator)  # type: ignore[attr-defined]

    def _end_pass(self, ends_workers: bool = False) -> None:
        """Forgets what was given ahead, and ends the worker processes, unless they stay for the next epoch."""
        current, self._pass, self._pulled_ahead = self._pass, None, []
        if ends_workers or not loaders.keeps_workers(self._data):
            loaders.end_workers(self._data, current)

    def _generator_states(self) -> list[Tensor]:
        """Where the generators of the order stand."""
        return [generator.get_state() for generator in self.generators]

    def _restore(self, random: State | None, generators: list[Tensor]) -> None:
        if random is not None:
            rng.restore(random, _CPU)
        for generator, state in zip(self.generators, generators, strict=True):
            generator.set_state(state)

    def _empty(self) -> str:
        if self._sized and (why := loaders.lost_by_drop_last(self._data)):
            return f"{self._who} gives nothing: {why}"
        if self._once and self._epoch:
            return f"{self._who} is an iterator, which can be read once, and has been: no more epochs. {_AGAIN}"
        return f"{self._who} gives no {self._unit} in epoch {self._epoch}."

    def state_dict(self) -> State:
        """As plain values and tensors, none of which is changed later."""
        return {
            "epoch": self._epoch,
            "given": self._given,
            "random": self._random if self._given else None,
            "generators": self._generator_states() if self._generators is None else self._generators,
            "own": self._own,
            "stayed": loaders.has_workers(self._data) if self._stayed is None else self._stayed,
            "made": self._made,
        }

    def load_state_dict(self, state: State) -> None:
        """Goes back to a state, with the next item."""
        if missing := [key for key in self.state_dict() if key not in state]:
            raise SourceError(f"this is not a state of {self._who}: it lacks {', '.join(missing)}.")
        both = {key: (state["made"].get(key), self._made.get(key)) for key in self._made | state["made"]}
        if differ := [f"{key}: saved {saved!r}, now {now!r}" for key, (saved, now) in both.items() if saved != now]:
            raise SourceError(
                f"{self._who} cannot go back to a state of another loader ({'; '.join(differ)}). Make it as it was."
            )
        if self._once and self._pass is not None:
            if (state["epoch"], state["given"]) != (self._epoch, self._given):
                raise SourceError(f"{self._who} is an iterator, which cannot go back. {_AGAIN}")
            return
        self._end_pass()
        self._epoch, self._given = int(state["epoch"]), int(state["given"])
        self._random, self._generators, self._own = state["random"], state["generators"], state["own"]
        self._stayed = bool(state["stayed"])

    def passed(self) -> None:
        self._stayed = loaders.keeps_workers(self._data)


class LoaderSource(Iterated):
    """Reads the batches of a loader as they are: tuples, dicts, or `Batch`es. See `Iterated`.

    `names` are the names of the parts of a tuple, by default "x" or ("x", "y"). A generator, which can be iterated only
    once, has one epoch. Sizes of dimensions may differ between batches, as with padding. With `accumulate`, an update
    is made from this many batches, or from fewer at the end of an epoch. The model gets each batch in its own shape,
    and the loss is the mean over all of their rows or items.
    """

    own_size = True

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        names: Names = None,
        streams: Sequence[Stream] | None = None,
        accumulate: int = 1,
    ) -> None:
        if (count := as_count(accumulate)) is None:
            raise ConfigError(f"accumulate= is a number of the loader's batches, 1 or more; got {accumulate!r}.")
        self._stacks = isinstance(loader, DataLoader) and loader.collate_fn is default_collate  # into new memory
        super().__init__(loader, names, streams)
        self.accumulate = count
        self._made |= {"accumulate": count} if count > 1 else {}
        # Any rows may be stacked with any others: not those that are padded, batches of one, or a sampler's
        several = self._stacks and (loader.batch_size or 0) > 1  # type: ignore[attr-defined]
        self._uniform = several and type(loader.sampler) in (RandomSampler, SequentialSampler)  # type: ignore[attr-defined]
        self._form, self._rows = dict[str, Any](), 0  # of the last batch

    def batches(self, size: int) -> int | None:
        return None if self._length is None else -(-self._length // self.accumulate)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch:
        return self.next_macrobatch(size, size).only()

    def pull(self, size: int, shard: Shard = WHOLE) -> Batch:
        batch = self.next_batch(size)
        if shard.count > 1:
            self.compare_batch(batch)
            batch = part_of(batch, shard, batch.cursor)
        return batch

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch:
        """One batch of the loader's: they may differ in shape, and none is asked for before it is needed."""
        if shard.count > 1:
            batch = self.pull(size, shard)
            return Macrobatch(batch.fields, [batch.rows], [batch.total], [batch.cursor], batch.ends_epoch)
        declared = self._streams or self.streams
        batches, ended = self._pull(self.accumulate)
        fields = batches[0] if len(batches) == 1 else self._fields(batches)
        count = self._rows_of(fields, declared)
        return Macrobatch(fields, [count], [count], [self.state_dict()], ended)

    def _kept(self, item: Any) -> dict[str, Field]:
        """The fields of a batch, copied: the batch after it, which may be read ahead, may have the same memory."""
        fields = fields_of(item, self._names, self._name)
        return fields if self._stacks else {name: map_tensors(field, torch.clone) for name, field in fields.items()}

    def _rows_of(self, fields: dict[str, Field], declared: Sequence[Stream]) -> int:
        """The number of rows of a batch, which has to be as declared. One of the form of the last one is."""
        for name, field in fields.items():
            if type(field) is not Tensor or self._form.get(name) != (field.shape, field.dtype):
                break
        else:
            if len(fields) == len(self._form):
                return self._rows
        batch = Batch(fields)
        if not batch.rows:
            raise SourceError(f"{self._who} gave a batch without rows.")
        for part in batch.split(batch.rows):
            check_batch(part, declared, self._who)
        self._form = {name: isinstance(field, Tensor) and (field.shape, field.dtype) for name, field in fields.items()}
        self._rows = batch.rows
        return self._rows

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        return Pieces.of(items, self._name)


class SampleSource(Iterated):
    """Reads the samples of an IterableDataset of torch or Hugging Face, and collates them into batches.

    They are read in this process; for worker processes, wrap them in a DataLoader. `sequences` are the streams whose
    samples differ in their first dimension. See `Iterated`.
    """

    _unit = "samples"
    _records = False  # samples are stacked, which would keep the gradients that some may have

    def __init__(self, samples: Iterable[Any], sequences: Sequence[str] = ()) -> None:
        self._sequences = tuple(sequences)
        super().__init__(samples)

    def batches(self, size: int) -> int | None:
        return None if self._length is None else -(-self._length // size)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch:
        samples, ended = self._pull(size)
        return Batch(self._fields(samples), cursor=self.state_dict(), ends_epoch=ended)

    def _fields(self, items: list[Any]) -> dict[str, Field]:
        return collated(items, self._names, self._sequences, self._name)
