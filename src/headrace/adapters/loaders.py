"""What can be found out about an iterable of others: its parts, its state, its length, and why its workers failed."""

from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Protocol, runtime_checkable

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, IterableDataset

from .samples import hugging_kind

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


def noticed_when_awaited(current: Any) -> Iterator[Any]:
    """A pass over data, in which a death is noticed where a batch is awaited: torch would raise in whatever is done."""
    if getattr(current, "_worker_pids_set", False):
        _remove_worker_pids(id(current))
        current._worker_pids_set = False
    found: Iterator[Any] = current
    return found


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
