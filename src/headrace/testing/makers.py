"""Small tables whose values identify their row and item.

Each has a stream `row` with the number of the row.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..data.arrays import ArrayTable
from ..data.ragged import Ragged
from ..data.sparse import Sparse

STRIDE = 1000
"""Item k of row i is `i * STRIDE + k`."""


def dense_table(rows: int, width: int = 3) -> ArrayTable:
    """`x` is of shape (width,): number k of row i is i * STRIDE + k."""
    numbers = torch.arange(rows)
    return ArrayTable({"row": numbers, "x": (numbers[:, None] * STRIDE + torch.arange(width)).float()})


def ragged_table(name: str, lengths: Sequence[int]) -> ArrayTable:
    """Sequences of these lengths as stream `name`: item k of row i is i * STRIDE + k."""
    rows, items, offsets = _items(lengths)
    return ArrayTable({"row": torch.arange(len(lengths)), name: Ragged(rows * STRIDE + items, offsets)})


def sparse_table(rows: int, dim: int = 20) -> ArrayTable:
    """`words`: row i has i % 4 numbers, number k of them i + k / 8, at index i % (dim - 3) + k; `y` is i % 3."""
    numbers = torch.arange(rows)
    owner, items, offsets = _items((numbers % 4).tolist())
    words = Sparse(owner % (dim - 3) + items, owner + items / 8, offsets, dim)
    return ArrayTable({"row": numbers, "words": words, "y": numbers % 3})


def sparse_sequences(lengths: Sequence[int], dim: int = 20) -> ArrayTable:
    """`words`: sequences of one-hot words, item k of row i being word (i + 7k) % dim; `label` is i % 5."""
    owner, items, offsets = _items(lengths)
    words = Ragged(Sparse.one_hot((owner + 7 * items) % dim, dim), offsets)
    numbers = torch.arange(len(lengths))
    return ArrayTable({"row": numbers, "words": words, "label": numbers % 5})


def _items(lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of every item its row and its number within the row; and the offsets of the rows."""
    offsets = torch.tensor([0, *accumulate(lengths)])
    rows = torch.arange(len(lengths)).repeat_interleave(offsets.diff())
    return rows, torch.arange(int(offsets[-1])) - offsets[rows], offsets
