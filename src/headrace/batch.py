"""What flows: a stream describes one column of the data, a batch holds some rows of every stream."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from .errors import ConfigError, DataError

State = dict[str, Any]
"""What a cursor is made of: plain JSON values (a source of the user's own may add tensors)."""


@dataclass(frozen=True)
class Stream:
    """One named column: the shape of a single row, its dtype and how it is stored."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    layout: Literal["dense", "sparse"] = "dense"
    sequence: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "." in self.name:
            raise ConfigError(
                f"a stream needs a name without dots, got {self.name!r}. "
                "Dots name views of a stream, as in 'words.mask'."
            )
        if self.layout not in ("dense", "sparse"):
            raise ConfigError(f"stream {self.name!r}: layout= is 'dense' or 'sparse', got {self.layout!r}.")
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", str(torch_dtype(self.dtype)).removeprefix("torch."))

    @classmethod
    def of(cls, name: str, rows: Tensor) -> "Stream":
        """The stream that a tensor of rows, first dimension first, belongs to."""
        return cls(name, tuple(rows.shape[1:]), str(rows.dtype).removeprefix("torch."))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"{name!r} is not a torch dtype. Try 'float32' or 'int64'.")
    return dtype


@runtime_checkable
class Opaque(Protocol):
    """A field that is not a tensor: a graph batch, say. It travels whole."""

    def to(self, device: Any, *, non_blocking: bool = False) -> Self: ...


Field = Tensor | Opaque


class Batch:
    """Rows of every stream by name, and the cursor that follows them.

    `rows` counts the rows held here; `total` those of the whole update, over all microbatches and workers.
    `cursor` is what to keep once the update has been applied; `ends_epoch` is true when the batch reaches
    or crosses the end of an epoch.
    """

    __slots__ = ("cursor", "ends_epoch", "fields", "rows", "total", "whole")

    def __init__(
        self,
        fields: Mapping[str, Field],
        rows: int | None = None,
        *,
        total: int | None = None,
        cursor: State | None = None,
        ends_epoch: bool = False,
    ) -> None:
        self.fields = fields
        self.rows = _rows_of(fields) if rows is None else rows
        self.total = self.rows if total is None else total
        self.cursor = cursor
        self.ends_epoch = ends_epoch
        self.whole: Mapping[str, Field] | None = None
        """The fields of the macrobatch that this is a view of, if it is one of several."""

    def __getitem__(self, stream: str) -> Any:
        try:
            return self.fields[stream]
        except KeyError:
            raise DataError(f"no stream {stream!r} in this batch. It has: {', '.join(self.fields)}.") from None

    def __contains__(self, stream: str) -> bool:
        return stream in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __repr__(self) -> str:
        parts = (f"{k}={tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for k, v in self.fields.items())
        return f"Batch({self.rows} rows, {', '.join(parts)})"

    def items(self, stream: str) -> int:
        """How many items of a stream: its rows, or the sequence items where it is a sequence."""
        items = getattr(self[stream], "items", None)
        return items if isinstance(items, int) else self.rows

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        return self._like({k: v.to(device, non_blocking=non_blocking) for k, v in self.fields.items()})

    def pin(self) -> "Batch":
        """The same batch, what is in host memory page-locked there, so that a device copies it without waiting."""
        return self._like({name: _pinned(field) for name, field in self.fields.items()})

    def split(self, rows: int) -> "list[Batch]":
        """Microbatches of at most `rows` rows each, in order; they are views."""
        if self.rows <= rows:
            return [self]
        counts = [min(rows, self.rows - start) for start in range(0, self.rows, rows)]
        return [
            Batch(fields, n, total=self.total)
            for fields, n in zip(split_fields(self.fields, counts), counts, strict=True)
        ]

    def _like(self, fields: Mapping[str, Field]) -> "Batch":
        return Batch(fields, self.rows, total=self.total, cursor=self.cursor, ends_epoch=self.ends_epoch)


def split_fields(fields: Mapping[str, Field], counts: Sequence[int]) -> list[dict[str, Field]]:
    """Views of consecutive runs of rows, all cut at once: one call per stream, not one per run."""
    columns = []
    for name, field in fields.items():
        if not isinstance(field, Tensor):
            raise DataError(
                f"stream {name!r} holds a {type(field).__name__}, which cannot be cut into rows. "
                "Pull it batch by batch from a Source, without microbatches."
            )
        columns.append(field.split(counts))
    names = tuple(fields)
    return [dict(zip(names, row)) for row in zip(*columns)]  # noqa: B905 - lengths agree, and this is a hot loop


def concat(batches: Sequence[Batch]) -> dict[str, Field]:
    """The fields of several batches, one after the other."""
    if len(batches) == 1:
        return dict(batches[0].fields)
    return {name: torch.cat([b[name] for b in batches]) for name in batches[0]}


def _pinned(field: Field) -> Field:
    return field.pin_memory() if isinstance(field, Tensor) and field.device.type == "cpu" else field


def _rows_of(fields: Mapping[str, Field]) -> int:
    sizes = {name: len(field) for name, field in fields.items() if isinstance(field, Tensor) and field.dim()}
    if not sizes:
        raise DataError("cannot tell how many rows this batch has: no stream is a tensor. Pass Batch(fields, rows=n).")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r}: {n}" for name, n in sizes.items())
        raise DataError(
            f"the streams of a batch have different lengths ({listed}). Every stream needs one row per sample."
        )
    return next(iter(sizes.values()))
