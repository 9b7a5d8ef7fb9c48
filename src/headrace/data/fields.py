"""Fields that have rows, whatever they are made of: how they are taken, cut, joined and moved, all rows at once.

Rows of unequal lengths lie end to end, and offsets say where each begins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

Change = Callable[[Tensor], Tensor]


class Rows(ABC):
    """Rows that are more than one tensor. `host_offsets` are on the host, where reading them waits for no device."""

    __slots__ = ("host_offsets", "offsets")

    host_offsets: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.host_offsets) - 1

    @property
    def device(self) -> torch.device:
        return self.offsets.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def rows_of(self, items: Tensor) -> Tensor:
        """The rows that items belong to, all of these by their numbers on the host."""
        return torch.searchsorted(self.host_offsets, items, right=True) - 1

    @abstractmethod
    def _parts(self) -> "list[Tensor | Rows]":
        """What it is made of beside offsets: each has one entry for every item."""

    @abstractmethod
    def _like(self, parts: "Sequence[Any]", offsets: Tensor, host_offsets: Tensor) -> Self:
        """The same kind of rows made of other parts, which are known to fit."""

    def __getitem__(self, key: Any) -> Any:
        """Rows start:stop, as a view."""
        items, offsets, host = self._run(key)
        return self._like([part[items] for part in self._parts()], offsets, host)

    def take(self, indices: Tensor) -> Self:
        """The rows at these numbers (on the host, in any order)."""
        items, host = places(self.host_offsets, indices)
        parts = [take(part, items) for part in self._parts()]
        return self._like(parts, host.to(self.device, non_blocking=True), host)

    def split(self, counts: Sequence[int]) -> list[Self]:
        """Views of consecutive runs of rows."""
        items, offsets, host = cut(self.offsets, self.host_offsets, counts)
        columns = [part.split(items) for part in self._parts()]
        return [self._like(*run) for run in zip(zip(*columns, strict=True), offsets, host, strict=True)]

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Several, one after the other."""
        columns = zip(*(part._parts() for part in parts), strict=True)
        firsts = [0, *accumulate(int(part.host_offsets[-1]) for part in parts)]
        shifted = [part.host_offsets[1:] + first for part, first in zip(parts, firsts, strict=False)]
        host = torch.cat([torch.zeros(1, dtype=torch.int64), *shifted])
        return parts[0]._like([cat(column) for column in columns], host.to(parts[0].device, non_blocking=True), host)

    def tensors(self) -> list[Tensor]:
        """The tensors that it is made of."""
        found = [self.offsets]
        for part in self._parts():
            found += [part] if isinstance(part, Tensor) else part.tensors()
        return found

    def map(self, change: Change) -> Self:
        """The same with each of its tensors changed."""
        return self._like(
            [map_tensors(part, change) for part in self._parts()], change(self.offsets), self.host_offsets
        )

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _run(self, key: slice) -> tuple[slice, Tensor, Tensor]:
        """Where the items of rows start:stop are, and the offsets of these rows, on the device and on the host."""
        if not isinstance(key, slice):
            raise DataError(f"rows are cut start:stop, got {key!r}. Use take() for others.")
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise DataError(f"rows are cut start:stop, got a step of {step}. Use take() for others.")
        bounds = self.host_offsets[start : max(start, stop) + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        host = bounds - first
        own = host if self.offsets.device == host.device else self.offsets[start : max(start, stop) + 1] - first
        return slice(first, last), own, host


class Pieces(Rows):
    """The rows of several batches of a loader that make one update; each has its own shape."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[Tensor]) -> None:
        self.pieces = list(pieces)
        self.offsets = self.host_offsets = torch.tensor([0, *accumulate(map(len, self.pieces))])

    @classmethod
    def of(cls, batches: Sequence[dict[str, Any]], who: str) -> dict[str, Any]:
        """The fields of several batches that make one update; of one, as they are."""
        first = batches[0]
        if len(batches) == 1:
            return first
        for fields in batches:
            if fields.keys() != first.keys() or not all(isinstance(f, Tensor) and f.dim() for f in fields.values()):
                raise DataError(f"{who}: accumulate= takes batches of tensors with the same streams.")
        return {name: cls([fields[name] for fields in batches]) for name in first}

    def __len__(self) -> int:
        return int(self.host_offsets[-1])

    @property
    def lengths(self) -> list[int]:
        """The rows of each."""
        return [len(piece) for piece in self.pieces]

    def split(self, counts: Sequence[int]) -> list[Any]:
        return self.pieces if list(counts) == self.lengths else self._parts()

    def tensors(self) -> list[Tensor]:
        return list(self.pieces)

    def map(self, change: Change) -> "Pieces":
        return Pieces([change(piece) for piece in self.pieces])

    def _parts(self) -> Any:
        raise DataError(
            f"these are {len(self.pieces)} batches of a loader that make one update (accumulate=), each with its own "
            "shape: they pass the model one by one, and are not cut or joined otherwise. Leave accumulate= out."
        )

    def _like(self, parts: Sequence[Any], offsets: Tensor, host_offsets: Tensor) -> "Pieces":
        return self._parts()  # type: ignore[no-any-return]


@runtime_checkable
class Opaque(Protocol):
    """A field of any other kind, such as a batch of graphs; it is never cut or joined."""

    def to(self, device: Any) -> Any: ...


Field = Tensor | Rows | Opaque

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def has_rows(field: Any) -> bool:
    """Whether a field can be cut into rows."""
    return field.dim() > 0 if isinstance(field, Tensor) else isinstance(field, Rows)


def unmasked(array: Any, who: str) -> Any:
    """An array; one of NumPy's with a mask if it hides nothing."""
    if not isinstance(array, np.ma.MaskedArray):
        return array
    hidden = np.ma.getmaskarray(array)
    if hidden.any():
        rows = hidden.reshape(len(hidden), -1).any(axis=1) if hidden.ndim else hidden.reshape(1)
        raise DataError(
            f"{who} has {int(hidden.sum())} masked values, the first in row {int(rows.argmax())}. "
            "A stream has a value in every row: fill them, x.filled(0), or drop those rows."
        )
    return array.data


def signed(tensor: Tensor) -> Tensor:
    """The same bits as signed integers: torch gathers and scatters no unsigned ones but bytes."""
    kin = _SIGNED.get(tensor.dtype)
    return tensor if kin is None else tensor.view(kin)


def take(field: Any, indices: Tensor) -> Any:
    """The rows at these numbers."""
    if not isinstance(field, Tensor):
        return field.take(indices)
    if indices.device != field.device:
        indices = indices.to(field.device, non_blocking=True)
    if field.dim() > 2 and not _is_plain(field):  # channels_last, say: indexing keeps that, and so the bits of a loop
        return signed(field)[indices].view(field.dtype)
    return signed(field).index_select(0, indices).view(field.dtype)


def _is_plain(field: Tensor) -> bool:
    """Whether rows lie in memory as those of a new tensor do, also by the strides of dimensions of one."""
    return field.stride()[1:] == torch.empty(field.shape, device="meta").stride()[1:]


def cat(fields: Sequence[Any]) -> Any:
    """Several fields of one stream, one after the other."""
    if len(fields) == 1:
        return fields[0]
    if isinstance(fields[0], Tensor):
        return torch.cat(list(fields))
    return type(fields[0]).cat(fields)


def split_fields(fields: Mapping[str, Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Views of consecutive runs of rows, all cut at once: one call per stream, not one per run."""
    columns = []
    for name, field in fields.items():
        if not has_rows(field):
            raise DataError(
                f"stream {name!r} holds a {type(field).__name__}, which cannot be cut into rows. "
                "Pull it batch by batch from a Source, without microbatches."
            )
        columns.append(field.split(counts))
    names = tuple(fields)
    return [dict(zip(names, row)) for row in zip(*columns)]  # noqa: B905 - lengths agree, and this is a hot loop


def tensors_of(field: Any) -> list[Tensor]:
    """The tensors that a field is made of; none for an opaque field."""
    if isinstance(field, Tensor):
        return [field]
    return field.tensors() if isinstance(field, Rows) else []


def nbytes_of(fields: Mapping[str, Any]) -> int:
    """The bytes of all tensors of some fields."""
    return sum(tensor.nbytes for field in fields.values() for tensor in tensors_of(field))


def map_tensors(field: Any, change: Any) -> Any:
    """A field with each of its tensors changed; one of another kind as it is."""
    if isinstance(field, Tensor):
        return change(field)
    return field.map(change) if isinstance(field, Rows) else field


def one_length(lengths: Mapping[str, int], what: str = "the streams") -> int:
    """The number of rows that all of these have; raises if they differ."""
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {n}" for name, n in lengths.items())
        raise DataError(f"{what} have different lengths: {listed} rows. Every stream needs one row per sample.")
    return next(iter(lengths.values()))


# --- offsets ---


def places(bounds: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Where the items of these rows are, and the offsets of the rows when they lie end to end."""
    starts, stops = bounds.index_select(0, indices), bounds.index_select(0, indices + 1)
    joined = torch.zeros(len(indices) + 1, dtype=torch.int64)
    torch.cumsum(stops - starts, 0, out=joined[1:])
    steps = torch.ones(int(joined[-1]) + 1, dtype=torch.int64)  # from each item to the next; a sum of them all is
    steps[0] = 0  # several times as fast as repeating the start of each row
    if len(indices):
        jumps = starts.clone()
        jumps[1:] -= stops[:-1]
        steps.index_add_(0, joined[:-1], jumps)
    return torch.cumsum(steps[:-1], 0), joined


def cut(offsets: Tensor, bounds: Tensor, counts: Sequence[int]) -> tuple[list[int], Sequence[Tensor], Sequence[Tensor]]:
    """Items in each run of rows, and the offsets of each run, on the device and on the host."""
    cuts = [0, *accumulate(counts)]
    if cuts[-1] != len(bounds) - 1:
        raise DataError(f"runs of {cuts[-1]} rows do not make up {len(bounds) - 1}.")
    at = bounds[cuts].tolist()
    items = [stop - start for start, stop in pairwise(at)]
    host = [bounds[a : b + 1] - first for a, b, first in zip(cuts, cuts[1:], at, strict=False)]
    if offsets.device == bounds.device:
        return items, host, host
    return items, [offsets[a : b + 1] - first for a, b, first in zip(cuts, cuts[1:], at, strict=False)], host


def check_offsets(bounds: Tensor, items: int, who: str, what: str) -> None:
    if bounds.dim() != 1 or not len(bounds) or bounds.dtype != torch.int64:
        raise DataError(
            f"{who} needs offsets of int64 in one dimension, one more than rows, got {bounds.dtype}"
            f"{list(bounds.shape)}."
        )
    if int(bounds[0]) or int(bounds[-1]) != items or bool((bounds.diff() < 0).any()):
        raise DataError(
            f"{who} needs offsets that never fall, from 0 to the number of {what}, {items}; "
            f"got {int(bounds[0])} to {int(bounds[-1])}."
        )
