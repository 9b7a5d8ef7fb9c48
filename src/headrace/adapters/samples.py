"""A torch Dataset as a Table; and samples and batches of others, tuples or dicts, as fields by stream name."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

from ..data.arrays import ArrayTable
from ..data.batch import ANY, Batch, Stream
from ..data.fields import Field, Opaque, Rows, cat, map_tensors, unmasked
from ..data.ragged import Ragged
from ..data.reader import Reader
from ..data.shard import WHOLE, Shard
from ..data.source import Table, forwarded
from ..data.views import Concat, View
from ..data.wrapped import SourceWrapper
from ..errors import DataError, HeadraceError, SourceError
from ..store import rng

AT_ONCE = 512  # samples collated together: so few are still in the processor's cache when they are
Names = Sequence[str] | None
_CPU = torch.device("cpu")


class TextColumn(list[str]):
    """A column of text of a loader's batch, which reaches the step as the list that it is."""

    def to(self, device: Any) -> "TextColumn":
        """The same: text is on no device."""
        return self


class NestedFields(dict[str, Any]):
    """A dict within a loader's batch, which reaches the model as the dict that it is."""

    def to(self, device: Any) -> "NestedFields":
        """The same dict with its tensors on a device."""
        return NestedFields({name: part.to(device) for name, part in self.items()})


def from_dataset(
    dataset: Any,
    *,
    names: Names = None,
    sequences: Sequence[str] = (),
    collate: Callable[[list[Any]], Any] | None = None,
    order: str = "full",
    seed: int = 0,
) -> Any:
    """Reads a torch Dataset as a Table, which can be shuffled, shared out and resumed like any other.

    A TensorDataset is used in place, a Subset or a ConcatDataset through its numbers, all at the speed of arrays. The
    rows of others are read one by one (or by `__getitems__`, if they have it), and collated as by torch's
    `default_collate`. A sample is a tensor ("x"), a pair ("x" and "y"), a tuple whose parts `names` names, or a
    flat dict. `sequences` are those streams whose tensors differ in their first dimension from row to row.

    A Dataset is read in the thread that trains. One whose rows take long is faster in the processes of a DataLoader.

    `collate` makes a batch of a list of samples, as that of a DataLoader does, and may pad it to its longest row. The
    Dataset is then a source, in an `order` by a `seed`, that resumes exactly after any batch. `predict` reads it in the
    order of the Dataset.

    A row has to be the same each time it is read: make random changes in `Trainer(augment=)`, which resumes exactly.
    """
    if collate is not None:
        return CollatedSource(Samples(dataset, names, sequences, collate), order, seed)
    if isinstance(dataset, TensorDataset) and _plain(dataset, TensorDataset):
        return ArrayTable(by_name(dataset.tensors, names, type(dataset).__name__))
    if isinstance(dataset, Subset) and _plain(dataset, Subset):
        indices = torch.as_tensor(np.asarray(dataset.indices), dtype=torch.int64)
        return View(from_dataset(dataset.dataset, names=names, sequences=sequences), indices)
    if isinstance(dataset, ConcatDataset) and _plain(dataset, ConcatDataset):
        parts = dataset.datasets
        return Concat([from_dataset(part, names=names, sequences=sequences) for part in parts])
    return Samples(dataset, names, sequences)


def _plain(dataset: Any, kind: type) -> bool:
    """Whether it reads its rows as its kind does, rather than in a way of its own."""
    return all(
        getattr(type(dataset), name, None) is getattr(kind, name, None) for name in ("__getitem__", "__getitems__")
    )


class Samples(Table):
    """The samples of a map-style dataset as a Table. The first sample tells its streams."""

    streams: Sequence[Stream] = ()

    def __init__(
        self,
        dataset: Any,
        names: Names = None,
        sequences: Sequence[str] = (),
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.dataset, self._names, self._sequences, self._collate = dataset, names, tuple(sequences), collate
        self._who, self._length = type(dataset).__name__, _length(dataset)
        if not self._length:
            raise DataError(f"{self._who} has no rows: there is nothing to read.")
        self._many = callable(getattr(dataset, "__getitems__", None))
        before, stood = rng.capture(_CPU), rng.standing()
        self.streams = tuple(self.take(torch.zeros(1, dtype=torch.int64)).streams)
        if rng.standing() != stood:
            rng.restore(before, _CPU)
            warnings.warn(
                f"{self._who} draws random numbers for its samples. As a Table it is read before its rows are trained "
                "on, so that no resume is exact. Draw them in Trainer(augment=f), or pass a DataLoader of it.",
                stacklevel=_level(),
            )

    def __len__(self) -> int:
        return self._length

    def take(self, indices: Tensor) -> Batch:
        if not len(indices):
            one = self._collated([0])
            return Batch({name: field[:0] for name, field in one.items()}, 0)  # type: ignore[index]
        at_once = AT_ONCE if self._collate is None else len(indices)
        parts = [self._collated(rows.tolist()) for rows in indices.split(at_once)]
        return Batch({name: cat([part[name] for part in parts]) for name in parts[0]}, len(indices))

    def _collated(self, rows: list[int]) -> dict[str, Field]:
        if self._collate is not None:
            return fields_of(self._collate(list(self._samples(rows))), self._names, self._who)
        return collated(self._samples(rows), self._names, self._sequences, self._who)

    def _samples(self, rows: list[int]) -> Sequence[Any]:
        if self._many:
            try:
                found: Sequence[Any] = self.dataset.__getitems__(rows)
                return found
            except HeadraceError:
                raise
            except Exception as error:
                for row in rows:
                    self._sample(row)
                raise SourceError(f"{self._who} failed at rows {_listed(rows)}: {_error_text(error)}.") from error
        return [self._sample(row) for row in rows]

    def _sample(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except HeadraceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._who} failed at row {row}: {_error_text(error)}.") from error


class CollatedSource(SourceWrapper):
    """Batches that a function makes of the samples of a dataset, whose sizes may differ.

    Every worker makes all of a batch and keeps its part: a part by itself might be padded to another length.
    """

    def __init__(self, samples: Samples, order: str, seed: int) -> None:
        reader = Reader(ArrayTable({"row": torch.arange(len(samples))}), order, seed)
        super().__init__(reader, thread_safe=False, aliases=True, shards=False)
        self._samples = samples
        self.streams = [replace(stream, shape=(ANY,) * len(stream.shape)) for stream in samples.streams]

    streams: Sequence[Stream] = ()
    title: str = forwarded("_samples._who")
    batches = forwarded("_source.batches")
    state_dict = forwarded("_source.state_dict")
    load_state_dict = forwarded("_source.load_state_dict")

    def in_order(self) -> "CollatedSource":
        """The same samples as they stand in the dataset, from the first on."""
        return CollatedSource(self._samples, "none", 0)

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        rows = self._source.next_batch(size)
        if rows is None:
            return None
        fields = self._samples.take(rows["row"]).fields
        return Batch(fields, rows.rows, total=rows.total, cursor=rows.cursor, ends_epoch=rows.ends_epoch)


def _level() -> int:
    """How many frames above the caller the first line outside of the library is."""
    library, frame, level = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == library:
        frame, level = frame.f_back, level + 1
    return level


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise DataError(
            f"{type(dataset).__name__} has no __len__: its rows cannot be counted. Give it one, or make it an "
            "IterableDataset."
        ) from None


def _listed(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (" and others" if len(rows) > 8 else "")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# --- by name -----------------------------------------------------------------------------------------------

_GIVEN = ("x", "y")
"""The names of a sample's parts, where none are given."""


def by_name(item: Any, names: Names, who: str) -> dict[str, Any]:
    """The parts of a sample or a batch: one is "x", two are "x" and "y", a dict and a named tuple name their own.

    `names` are those of the parts; of a dict, the ones that are wanted.
    """
    if isinstance(item, Batch):
        item = item.fields
    elif hasattr(item, "_asdict"):
        item = item._asdict()
    if isinstance(item, dict) or (not isinstance(item, tuple | list | Tensor) and isinstance(item, Mapping)):
        return _chosen(item, names, who)
    parts = list(item) if isinstance(item, tuple | list) else [item]
    given = names or _GIVEN[: len(parts)]
    if len(given) != len(parts):
        said = f"{len(names)} names" if names else "no names"
        wanted = f"names=({', '.join(repr(name) for name in (*'abcdefgh'[: len(parts) - 1], 'y'))})"
        raise SourceError(
            f"{who} gives {len(parts)} parts and there are {said} for them. "
            f"Name them: hr.from_dataset(data, {wanted}), or of a loader hr.LoaderSource(loader, {wanted})."
        )
    return dict(zip(given, parts, strict=True))


def fields_of(item: Any, names: Names, who: str) -> dict[str, Field]:
    """The fields of a batch that a loader has made."""
    if type(item) in (list, tuple) and _are_plain(item):  # as nearly all are
        given = names or _GIVEN[: len(item)]
        if len(given) == len(item):
            return dict(zip(given, item, strict=True))
    return {name: _field(name, part, who) for name, part in by_name(item, names, who).items()}


def _are_plain(parts: Sequence[Any]) -> bool:
    for part in parts:  # noqa: SIM110 - this is a hot loop
        if type(part) is not Tensor or not part.dim() or part.requires_grad:
            return False
    return True


def _chosen(item: Mapping[Any, Any], names: Names, who: str) -> dict[str, Any]:
    if strange := [key for key in item if not isinstance(key, str)]:
        raise SourceError(f"{who} gives a dict with the key {strange[0]!r}. Streams are named by text.")
    if missing := [name for name in names or () if name not in item]:
        raise SourceError(f"{who} gives no {missing[0]!r}. It has: {', '.join(item)}.")
    return {name: item[name] for name in names or item}


def _field(name: str, part: Any, who: str) -> Field:
    if isinstance(part, Tensor) and part.dim():
        return part.detach()
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufc":
        part = unmasked(part, f"{who}: {name!r}")
        part = torch.from_numpy(np.ascontiguousarray(part))
    elif isinstance(part, list | tuple) and part and all(type(number) in (int, float, bool) for number in part):
        part = torch.tensor(part)
    if isinstance(part, Tensor) and part.dim() == 0:
        raise SourceError(
            f"{who}: {name!r} is a single number, not rows: this gives samples where batches are expected. "
            "Give a loader a batch_size; a list of samples is hr.samples([...])."
        )
    if isinstance(part, Rows | Opaque):
        return map_tensors(part, torch.detach)  # type: ignore[no-any-return]
    if isinstance(part, list | tuple) and part and all(isinstance(each, str) for each in part):
        return TextColumn(part)
    if isinstance(part, Mapping) and part:
        return NestedFields({str(key): _field(f"{name}.{key}", each, who) for key, each in part.items()})
    raise SourceError(f"{who}: {name!r} is {described(part)}. {advice(part)}")


def described(part: Any) -> str:
    """Says in a few words what something is."""
    if isinstance(part, str | bytes):
        return "text"
    if isinstance(part, list | tuple) and part:
        return f"a {type(part).__name__} of {type(part[0]).__name__}"
    return f"a {type(part).__name__}"


def advice(part: Any) -> str:
    """Says what to do about something that is no stream."""
    if isinstance(part, Mapping) or (isinstance(part, list | tuple) and part and not isinstance(part[0], str | bytes)):
        return "Give each part a name of its own in one flat dict, or pass a DataLoader, whose batches may hold dicts."
    return (
        "Make numbers of it, pass a DataLoader, whose batches may hold text, or leave it out: hr.from_dataset(data, "
        "names=('x', 'y')), or of a loader hr.LoaderSource(loader, names=('x', 'y')), says which streams are wanted."
    )


def collated(samples: Sequence[Any], names: Names, sequences: Sequence[str], who: str) -> dict[str, Field]:
    """The rows that samples make: stacked as torch's `default_collate` does, those of `sequences` end to end."""
    columns = columns_of(samples, names, who)
    if unheard := [name for name in sequences if name not in columns]:
        raise SourceError(f"{who} gives no {unheard[0]!r} that sequences= could name. It has: {', '.join(columns)}.")
    return {name: _stacked(name, parts, name in sequences, who) for name, parts in columns.items()}


def columns_of(samples: Sequence[Any], names: Names, who: str) -> dict[str, Sequence[Any]]:
    """The parts of samples by name, those of all samples together; samples are of one kind."""
    known = by_name(samples[0], names, who)
    kind = type(samples[0])
    if kind in (tuple, list) and all(type(each) is kind and len(each) == len(known) for each in samples):
        return dict(zip(known, zip(*samples, strict=True), strict=True))
    rows = [by_name(sample, names, who) for sample in samples]
    for k, row in enumerate(rows):
        if row.keys() != known.keys():
            raise SourceError(f"{who}: sample {k} of a batch has the parts {list(row)}, sample 0 has {list(known)}.")
    return {name: [row[name] for row in rows] for name in known}


def _stacked(name: str, parts: Sequence[Any], sequence: bool, who: str) -> Field:
    if isinstance(parts[0], list | tuple):
        parts = [_numbers(name, part, who) for part in parts]
    arrays = isinstance(parts[0], Tensor | np.ndarray)
    if sequence:
        if not arrays:
            raise SourceError(f"{who}: {name!r} is {described(parts[0])}, not a sequence of items.")
        return Ragged.of(parts)
    if not arrays and not isinstance(parts[0], int | float | complex | np.generic):
        raise SourceError(f"{who}: {name!r} is {described(parts[0])}. {advice(parts[0])}")
    if isinstance(parts[0], np.ma.MaskedArray):
        parts = [unmasked(part, f"{who}: a sample of {name!r}") for part in parts]
    try:
        stacked: Field = default_collate(list(parts))
        return stacked
    except (RuntimeError, TypeError, ValueError) as error:
        raise SourceError(f"{who}: {name!r} cannot be stacked: {_odd(name, parts) or error}") from error


def _odd(name: str, parts: Sequence[Any]) -> str:
    """What is wrong with rows of several shapes."""
    shapes = [tuple(getattr(part, "shape", ())) for part in parts]
    for shape in shapes:
        if shape != shapes[0]:
            return (
                f"it has the shape {list(shapes[0])} in one row and {list(shape)} in another. "
                f"If these are sequences, say so: hr.from_dataset(data, sequences=({name!r},))."
            )
    return ""


def _numbers(name: str, part: Any, who: str) -> Tensor:
    """A sample's list of numbers, or of lists of them, as a tensor."""
    try:
        if any(isinstance(item, Tensor | np.ndarray) for item in part):
            raise TypeError
        return torch.tensor(part)
    except (TypeError, ValueError, RuntimeError):
        raise SourceError(f"{who}: {name!r} is {described(part)}. {advice(part)}") from None
