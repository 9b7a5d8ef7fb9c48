"""What can be found out about an iterable of others: its parts, its state, its length, and why its workers failed."""

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from multiprocessing.connection import wait
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, dataloader, default_collate

from ..data.fields import take
from ..errors import ConfigError

_NUMBERS = {int, np.int64, np.int32}
_PARTS = {"dataset", "auto_collation", "collate_fn", "drop_last"}  # of a fetcher of torch's
_MARKS = {"torch", "autograd", "profiler", "record_function", "_profile_name", "_sampler_iter", "_reset", "_next_data"}
_MARKS |= {"_num_yielded", "_dataset_kind", "_DatasetKind", "Iterable", "_IterableDataset_len_called", "_dataset"}
_MARKS |= {"_num_workers", "warnings", "warn"}  # of a method of its iterators
_profiler_enabled = getattr(torch.autograd, "_profiler_enabled", lambda: True)

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


def warn_of_draws_ahead(name: str) -> None:
    """Warns of random numbers that are drawn for a batch before the batch before it has been used."""
    warnings.warn(
        f"{name} draws random numbers for its samples in this process, and may end after any batch, so it is read "
        "one batch ahead. A model that draws numbers too gets others than in a loop by hand, and no resume is exact. "
        "Read it in a worker process: DataLoader(..., num_workers=1), with batch_size=None if it gives batches.",
        stacklevel=2,
    )


def length_of(data: Any) -> int | None:
    """How many items an epoch has. That of a loader of an IterableDataset is a guess, so it is not taken."""
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def settings_of(data: Any, exact: bool) -> dict[str, Any]:
    """Settings that must be the same when a state is loaded as when it was saved."""
    length, workers = length_of(data), None
    is_loader = isinstance(data, DataLoader)
    if is_loader and (exact or length is None):  # otherwise the order is the same with any number
        workers = data.num_workers
    found = {"exact": exact, "length": length, "batch_size": data.batch_size if is_loader else None}
    return found | {"num_workers": workers, "generators": len(generators_of(data))}


def keeps_workers(data: Any) -> bool:
    """Whether the worker processes of a loader stay for the next epoch."""
    return bool(getattr(data, "persistent_workers", False))


def has_workers(data: Any) -> bool:
    """Whether a loader has worker processes that have stayed."""
    return keeps_workers(data) and getattr(data, "_iterator", None) is not None


def end_workers(data: Any, current: Any) -> None:
    """Ends the worker processes of a pass, if it has any."""
    if (end := getattr(current, "_shutdown_workers", None)) is not None:
        end()
        if getattr(data, "_iterator", None) is current:
            data._iterator = None


def begin(data: Any) -> Iterator[Any]:
    """Begins a pass over data. It gives what `iter(data)` gives, with less of torch's own work where that is known."""
    current: Any = iter(data)
    forget = getattr(torch._C, "_remove_worker_pids", None)
    if forget and getattr(current, "_worker_pids_set", False):  # a death is noticed where a batch is awaited: torch
        forget(id(current))  # would raise in whatever is done
        current._worker_pids_set = False
    fetcher = getattr(current, "_dataset_fetcher", None)
    if fetcher is not None and _stacks_rows(fetcher):
        current._dataset_fetcher = _Rows(fetcher)
    found: Iterator[Any] = _Batches(current) if _only_marks(current) else current
    return found


def _only_marks(current: Any) -> bool:
    """Whether torch makes batches in this process and does no more around it than to mark and count them."""
    if type(current) is not getattr(dataloader, "_SingleProcessDataLoaderIter", None):
        return False
    code = getattr(type(current).__next__, "__code__", None)
    return code is not None and set(code.co_names) == _MARKS and not isinstance(current._dataset, IterableDataset)


class _Batches:
    """The batches that torch makes in this process, without a mark for the profiler while none is at work."""

    def __init__(self, current: Any) -> None:
        self._current = current

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._current) if _profiler_enabled() else self._current._next_data()


class _Rows:
    """Fetches the rows of a batch, with the bits that torch's fetcher gets; of tensors in memory all at once."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher, self.dataset = fetcher, fetcher.dataset
        innermost = self.dataset
        while type(innermost) is Subset and "__getitems__" not in vars(innermost):
            innermost = innermost.dataset
        plain = type(innermost) is TensorDataset and not hasattr(innermost, "__getitems__")
        self._at_once = plain and all(map(_is_plain, innermost.tensors))

    def fetch(self, wanted: Any) -> Any:
        if self._at_once and type(wanted) is list:
            dataset, rows = self.dataset, wanted
            try:
                while type(dataset) is Subset:
                    rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset
                if set(map(type, rows)) <= _NUMBERS:  # a tensor or a truth value as an index means something else
                    places = torch.as_tensor(rows)
                    return [take(tensor, places) for tensor in dataset.tensors]
            except Exception:
                pass  # rows that are counted from the end are found below, and those that are not there are named
        if hasattr(self.dataset, "__getitems__"):
            return self._fetcher.fetch(wanted)
        return _collated([self.dataset[row] for row in wanted])


def _collated(samples: list[Any]) -> Any:
    """What torch's `default_collate` makes of samples; the parts of tuples are not looked at one by one."""
    try:
        columns: list[Any] = [*zip(*samples, strict=True)] if type(samples[0]) is tuple else []
    except (IndexError, TypeError, ValueError):
        columns = []
    if not columns:
        return default_collate(samples)
    return [torch.stack(column) if _is_row(column[0]) else default_collate(column) for column in columns]


def _is_row(part: Any) -> bool:
    return type(part) is Tensor and part.layout == torch.strided and not part.is_nested


def _stacks_rows(fetcher: Any) -> bool:
    """Whether torch's fetcher stacks rows by torch's own function, which nobody has extended, and does no more.

    All of this is private to torch. Where anything is not as it is known, batches are read in the plain way.
    """
    try:
        from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        known = type(fetcher) is _MapDatasetFetcher and vars(fetcher).keys() == _PARTS and fetcher.auto_collation
        if not known or fetcher.collate_fn is not default_collate:
            return False
        if default_collate_fn_map.get(Tensor) is not collate_tensor_fn:
            return False
        if any(isinstance((), kind) for kind in default_collate_fn_map):
            return False
        return _tried(_MapDatasetFetcher, _MapDatasetFetcher.fetch)
    except Exception:
        return False


@cache
def _tried(kind: Any, fetch: Any) -> bool:
    """Whether a fetcher of this kind, whose method this is, collates the rows that it is asked for."""
    [found] = kind([(torch.tensor(row),) for row in range(3)], True, default_collate, False).fetch([2, 0])
    return type(found) is Tensor and found.tolist() == [2, 0]


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
