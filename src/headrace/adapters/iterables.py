"""What is known of an iterable of others: what it is made of, where it stands, whether that can be trusted."""

import json
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from ..data.batch import State
from ..errors import ConfigError
from ..store.codec import decode, encode


@runtime_checkable
class Stateful(Protocol):
    """What can say where it stands, and go back there: a StatefulDataLoader, a streamed data set."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


def by_value(data: Any, who: str) -> State:
    """The state of the data's own, none of it shared with them."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(data.state_dict(), tensors, f"state of {who}"))
    return {"json": text, "tensors": {name: tensor.clone() for name, tensor in tensors.items()}}


def put_back(data: Any, state: State) -> None:
    """Puts the data where a state says that `by_value` gave."""
    data.load_state_dict(decode(json.loads(state["json"]), state["tensors"]))


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


_HUGGING = {
    "datasets.arrow_dataset": ("Dataset",),
    "datasets.iterable_dataset": ("IterableDataset",),
    "datasets.dataset_dict": ("DatasetDict", "IterableDatasetDict"),
}


def hugging_kind(data: Any) -> str:
    """Which of Hugging Face's data sets it is, by name; "" for all else, such as those of a `datasets.py` of a user."""
    found = (kind.__name__ for kind in type(data).__mro__ if kind.__name__ in _HUGGING.get(kind.__module__, ()))
    return next(found, "")


def knows_where_it_stands(data: Any) -> bool:
    """Whether it has a state of its own, and one that is exact."""
    if not isinstance(data, Stateful):
        return False
    if not isinstance(data, DataLoader):
        return not _forgets_rows(data)
    if isinstance(data.dataset, IterableDataset):  # torchdata 0.11 miscounts what it has skipped of one without state
        return isinstance(data.dataset, Stateful) and not _forgets_rows(data.dataset)
    # Without workers, it goes through the order of others again with the random numbers of the moment.
    order = data.sampler if data.batch_sampler is None else data.batch_sampler
    return data.num_workers > 0 or type(order).__module__.startswith("torchdata.") or isinstance(order, Stateful)


def forgotten_of(data: Any, exact: bool) -> str:
    """What is lost of data at a resume, in a clause: nobody can save where the random numbers of a worker stand.

    The workers of a replay begin as they began, unless they had stayed from the epoch before.
    """
    if not isinstance(data, DataLoader) or not data.num_workers:
        return ""
    whose = "its workers" if exact else "workers that stay for the next epoch (persistent_workers)"
    return f"not so what {whose} draw at random for samples" if exact or data.persistent_workers else ""


def _forgets_rows(data: Any) -> bool:
    """Whether it has a shuffle buffer of Hugging Face's, whose rows are not in its state."""
    waiting = [getattr(data, "_ex_iterable", None)] if hugging_kind(data) else []
    while waiting:
        part = waiting.pop()
        if "BufferShuffled" in type(part).__name__:
            return True
        if part is not None:
            waiting += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or [])]
    return False


def length_of(data: Any) -> int | None:
    """How many items an epoch has. That of a loader of an IterableDataset is a guess, so it is not taken."""
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def collates(data: Any) -> bool:
    """Whether its batches are stacked by torch's own `default_collate`: then they are new memory every time."""
    return isinstance(data, DataLoader) and data.collate_fn is default_collate


def stacks(data: Any) -> bool:
    """Whether all rows of a loader have the same shape, because any of them may be stacked with any other.

    It is not known of rows that are padded, of batches of one row, and of rows that a sampler has put together.
    """
    known = collates(data) and data.batch_size is not None and data.batch_size > 1
    return known and type(data.sampler) in (RandomSampler, SequentialSampler)


def made_as(data: Any, *, exact: bool, sized: bool) -> dict[str, Any]:
    """What has to be the same on both sides of a resume."""
    made: dict[str, Any] = {"exact": exact, "length": length_of(data), "batch_size": None, "num_workers": None}
    made["generators"] = len(generators_of(data))
    if isinstance(data, DataLoader):
        made["batch_size"] = data.batch_size
        if exact or not sized:  # otherwise the order is the same with any number
            made["num_workers"] = data.num_workers
    return made


def refuse_shares(data: Any) -> None:
    for part in parts_of(data):
        if getattr(part, "num_replicas", 1) > 1 or (hugging_kind(part) and getattr(part, "_distributed", None)):
            raise ConfigError(
                f"this {type(part).__name__} gives each worker a share of the rows, and headrace shares out every "
                "batch by itself. Use a plain sampler, or the whole data set."
            )
