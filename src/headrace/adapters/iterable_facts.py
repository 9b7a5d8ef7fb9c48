"""What can be found out about an iterable of others: its parts, its state, its length."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..data.batch import Batch, Stream, torch_dtype
from ..data.fields import Field, has_rows
from ..errors import SourceError
from .samples import hugging_kind


@runtime_checkable
class Stateful(Protocol):
    """An iterable with a state of its own: a StatefulDataLoader, a streamed data set."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


def parts_of(data: Any) -> list[Any]:
    """The data and what they are made of, as far as it may know of epochs or draw numbers."""
    if not isinstance(data, DataLoader):
        return [data]
    nested = [data.batch_sampler, getattr(data.batch_sampler, "sampler", None), data.sampler]
    found = [data, *nested, data.dataset]
    return [part for k, part in enumerate(found) if part is not None and all(part is not p for p in found[:k])]


def generators_of(data: Any) -> list[torch.Generator]:
    """The generators that the order is drawn from, besides the global ones."""
    found = [getattr(part, "generator", None) for part in parts_of(data)]
    unique = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
    return list(unique.values())


def stateful_parts(data: Any) -> list[Any]:
    """What a look at the first item would move: data sets that are read in this process and know where they stand."""
    if isinstance(data, DataLoader):
        data = data.dataset if not data.num_workers else None
    known = isinstance(data, Stateful) and isinstance(data, Iterable)
    return [data] if known and not hugging_kind(data) else []


def has_exact_state(data: Any) -> bool:
    """Whether it has a `state_dict` of its own, from which it resumes exactly."""
    if not isinstance(data, Stateful):
        return False
    if not isinstance(data, DataLoader):
        return not _forgets_rows(data)
    if isinstance(data.dataset, IterableDataset):  # torchdata 0.11 miscounts what it has skipped of one without state
        return isinstance(data.dataset, Stateful) and not _forgets_rows(data.dataset)
    # Without workers, it goes through the order of others again with the random numbers of the moment.
    order = data.sampler if data.batch_sampler is None else data.batch_sampler
    return data.num_workers > 0 or type(order).__module__.startswith("torchdata.") or isinstance(order, Stateful)


def _forgets_rows(data: Any) -> bool:
    """Whether it has a shuffle buffer of Hugging Face, whose rows are not part of its state."""
    waiting = [getattr(data, "_ex_iterable", None)] if hugging_kind(data) else []
    while waiting:
        part = waiting.pop()
        if "BufferShuffled" in type(part).__name__:
            return True
        if part is not None:
            waiting += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or [])]
    return False


def lost_at_resume(data: Any, exact: bool) -> str:
    """What a resume does not bring back, in a clause: the random state of worker processes cannot be saved.

    The workers of a replay begin as they began, unless they had stayed from the epoch before.
    """
    if not isinstance(data, DataLoader) or not data.num_workers:
        return ""
    whose = "its workers" if exact else "workers that stay for the next epoch (persistent_workers)"
    return f"not so what {whose} draw at random for samples" if exact or data.persistent_workers else ""


def length_of(data: Any) -> int | None:
    """How many items an epoch has. That of a loader of an IterableDataset is a guess, so it is not taken."""
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def is_like(field: Field, declared: Stream) -> bool:
    """Whether it is a field of this stream, but for the sizes of its dimensions."""
    if isinstance(field, Tensor):  # nearly always
        dense = not declared.sequence and declared.layout == "dense"
        return dense and field.dtype == torch_dtype(declared.dtype) and field.dim() == len(declared.shape) + 1
    if not has_rows(field):
        return True
    kinds = [(s.dtype, s.layout, s.sequence, len(s.shape)) for s in (Stream.of(declared.name, field), declared)]
    return kinds[0] == kinds[1]


def expect(batch: Batch, declared: Sequence[Stream], who: str) -> None:
    """Raises on a batch of a loader that is not like those before it."""
    if not batch.rows:
        raise SourceError(f"{who} gave a batch without rows.")
    for stream in declared:
        if stream.name not in batch.fields:
            raise SourceError(f"{who} gave a batch with the streams {list(batch.fields)} only.")
        if not is_like(batch.fields[stream.name], stream):
            raise SourceError(
                f"{who}: expected {stream}, got {Stream.of(stream.name, batch[stream.name])}. "
                "The batches of a loader agree in streams, dtypes and dimensions."
            )
