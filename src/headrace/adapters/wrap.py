"""Data of torch: a Dataset as a Table, a DataLoader or an IterableDataset as a Source."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ..data.arrays import ArrayTable
from ..data.source import Source, Table
from ..data.views import Concat, View
from .iterables import hugging_kind
from .loaders import LoaderSource, SampleSource
from .named import Names, by_name
from .samples import Samples


def wrap(data: Any) -> Table | Source | None:
    """What torch or Hugging Face calls data, or an iterable of batches, as a Table or a Source; `None` for others."""
    if hugging_kind(data):
        from .huggingface import from_hugging_face

        return from_hugging_face(data)
    if isinstance(data, DataLoader):
        return LoaderSource(data)
    if isinstance(data, IterableDataset):
        return SampleSource(data)
    if isinstance(data, Dataset):
        return from_dataset(data)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return LoaderSource(data)
    return None


def from_dataset(dataset: Any, *, names: Names = None, sequences: Sequence[str] = ()) -> Table:
    """A torch Dataset as a Table, to be shuffled, shared out and resumed as any other.

    A TensorDataset is used in place, a Subset or a ConcatDataset through its numbers, all at the speed of arrays. Of
    others the rows are asked for one by one (or by `__getitems__`, where they have that), and collated as torch's
    `default_collate` does. A sample is a tensor ("x"), a pair ("x" and "y"), a tuple whose parts `names` names, or a
    flat dict. `sequences` are those streams whose tensors differ in their first dimension from row to row.

    A row is to be the same whenever it is asked for: what is random belongs into `map`, whose draws are resumed.
    """
    if isinstance(dataset, TensorDataset) and _plain(dataset, TensorDataset):
        return ArrayTable(by_name(dataset.tensors, names, type(dataset).__name__))
    if isinstance(dataset, Subset) and _plain(dataset, Subset):
        indices = torch.as_tensor(np.asarray(dataset.indices), dtype=torch.int64)
        return View(from_dataset(dataset.dataset, names=names, sequences=sequences), indices)
    if isinstance(dataset, ConcatDataset) and _plain(dataset, ConcatDataset):
        return Concat([from_dataset(part, names=names, sequences=sequences) for part in dataset.datasets])
    return Samples(dataset, names, sequences)


def _plain(dataset: Any, kind: type) -> bool:
    """Whether it reads its rows as its kind does, rather than in a way of its own."""
    return all(
        getattr(type(dataset), name, None) is getattr(kind, name, None) for name in ("__getitem__", "__getitems__")
    )
