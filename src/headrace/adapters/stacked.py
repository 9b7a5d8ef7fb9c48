"""Stacks a list of samples into a table in memory: `samples`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.arrays import ArrayTable
from ..data.fields import unmasked
from ..data.ragged import Ragged
from ..errors import DataError
from .samples import columns_of


def samples(data: Sequence[Any]) -> ArrayTable:
    """Stacks samples into a table, which `fit`, `predict`, `validate` and `step` take.

    A sample is a dict of streams, a tuple of x and y as a Dataset gives it, or x alone, a tensor, an array or a number.
    A stream whose samples differ in their first dimension holds sequences.
    """
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise DataError(f"samples() takes a list of samples, got a {type(data).__name__}.")
    if not data:
        raise DataError("samples() takes at least one sample, got none.")
    if lists := [k for k, sample in enumerate(data) if isinstance(sample, list)]:
        raise DataError(
            f"sample {lists[0]} is a list. Give an array, a tuple (x, y), or a dict: {{'x': [...], 'y': ...}}."
        )
    columns = columns_of(data, None, "samples()")
    return ArrayTable({name: _stacked(name, parts) for name, parts in columns.items()})


def _stacked(name: str, parts: Sequence[Any]) -> Tensor | Ragged:
    """The rows of a stream; sequences where they differ in their first dimension."""
    rows = [_row(name, k, part) for k, part in enumerate(parts)]
    if len({row.shape for row in rows}) == 1:
        return torch.stack(rows)
    if not all(row.dim() and row.shape[1:] == rows[0].shape[1:] for row in rows):
        k, odd = next((k, row) for k, row in enumerate(rows) if row.shape != rows[0].shape)
        raise DataError(
            f"stream {name!r}: sample {k} has the shape {list(odd.shape)}, sample 0 has {list(rows[0].shape)}. "
            "Give all one shape; sequences may differ in their first dimension."
        )
    return Ragged.of(rows)


def _row(name: str, k: int, part: Any) -> Tensor:
    who = f"stream {name!r}: sample {k}"
    part = unmasked(part, who)
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):
        kind = "text" if isinstance(part, str | bytes) else f"a {type(part).__name__}"
        raise DataError(
            f"{who} holds {kind}, of which there is no tensor. Make numbers of it, or leave it out."
        ) from None
