"""What can be found out about an iterable of others: its parts, its state, its length, and why its workers failed."""

from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ..data.fields import take
from ..errors import ConfigError

_NUMBERS = {int, np.int64, np.int32}

EXIT_S = 1.0  # that a worker process takes to end once it has closed its connections


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


def check_unshared(data: Any) -> None:
    """Raises if the data give each worker a share of the rows, as a DistributedSampler does."""
    for part in parts_of(data):
        if getattr(part, "num_replicas", 1) > 1 or (hugging_kind(part) and getattr(part, "_distributed", None)):
            raise ConfigError(
                f"this {type(part).__name__} gives each worker a share of the rows, and headrace shares out every "
                "batch by itself. Use a plain sampler, or the whole data set."
            )


def lost_by_drop_last(data: Any) -> str:
    """Why a loader that gives no batch has none, if its `drop_last` is the reason."""
    if not data.drop_last:
        return ""
    rows = len(data.dataset)
    return f"its {rows} rows do not fill a batch of {data.batch_size}, and drop_last=True drops what does not."


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


def begin(data: Any) -> Iterator[Any]:
    """Begins a pass over data. It gives what `iter(data)` gives; rows of tensors in memory are taken at once."""
    current: Any = iter(data)
    if getattr(current, "_worker_pids_set", False):  # a death is noticed where a batch is awaited: torch would raise
        _remove_worker_pids(id(current))  # in whatever is done
        current._worker_pids_set = False
    fetcher = getattr(current, "_dataset_fetcher", None)
    if type(fetcher) is _MapDatasetFetcher and fetcher.auto_collation and _stacks_tensors(fetcher.collate_fn):
        innermost = fetcher.dataset
        while type(innermost) is Subset and "__getitems__" not in vars(innermost):
            innermost = innermost.dataset
        plain = type(innermost) is TensorDataset and not hasattr(innermost, "__getitems__")
        if plain and all(map(_is_plain, innermost.tensors)):
            current._dataset_fetcher = _RowsAtOnce(fetcher.dataset, True, default_collate, fetcher.drop_last)
    found: Iterator[Any] = current
    return found


class _RowsAtOnce(_MapDatasetFetcher):
    """Takes the rows of a batch by one call per tensor, with the bits that torch gets when it stacks them."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        if type(possibly_batched_index) is list:
            dataset, rows = self.dataset, possibly_batched_index
            try:
                while type(dataset) is Subset:
                    rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
                if set(map(type, rows)) <= _NUMBERS:  # a tensor or a truth value as an index means something else
                    places = torch.as_tensor(rows)
                    return [take(tensor, places) for tensor in dataset.tensors]
            except Exception:
                pass  # rows that are counted from the end are found below, and those that are not there are named
        return super().fetch(possibly_batched_index)  # type: ignore[no-untyped-call]


def _stacks_tensors(collate: Any) -> bool:
    """Whether it is torch's, and nobody has told that to do anything else with tuples of tensors."""
    changed = any(isinstance((), kind) for kind in default_collate_fn_map)
    return collate is default_collate and default_collate_fn_map.get(Tensor) is collate_tensor_fn and not changed


def _is_plain(tensor: Any) -> bool:
    """Whether rows that are taken at once are laid out as those that are stacked."""
    plain = type(tensor) is Tensor and tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    return plain and tensor.is_contiguous() and not tensor.requires_grad


def failure_of(error: Exception, current: Any) -> str:
    """Says why a pass has failed: a worker that ends closes its connections first, and torch may look too soon."""
    states = zip(getattr(current, "_workers", ()), getattr(current, "_workers_status", ()), strict=False)
    workers = {each.sentinel: each for each, in_use in states if in_use and isinstance(error, OSError | EOFError)}
    gone = [workers[end] for end in wait([*workers], EXIT_S if workers else 0)]
    for worker in gone:
        worker.join(EXIT_S)  # otherwise it may have no exit code yet
    if gone:
        said = "; ".join(f"{worker.pid}, exit code {worker.exitcode}" for worker in gone)
        return f"a DataLoader worker exited unexpectedly (process {said})"
    return f"{type(error).__name__}: {error}"


_HUGGING = {
    "datasets.arrow_dataset": ("Dataset",),
    "datasets.iterable_dataset": ("IterableDataset",),
    "datasets.dataset_dict": ("DatasetDict", "IterableDatasetDict"),
}


def hugging_kind(data: Any) -> str:
    """Which of Hugging Face's data sets it is, by name; "" for all else, such as those of a `datasets.py` of a user."""
    found = (kind.__name__ for kind in type(data).__mro__ if kind.__name__ in _HUGGING.get(kind.__module__, ()))
    return next(found, "")
