"""Streams, batches and macrobatches: a column of the data, some rows of every column, and a run of such batches."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from .fields import Field, Opaque, Pieces, Rows, cat, has_rows, map_tensors, one_length, split_fields, tensors_of
from .ragged import Ragged
from .sparse import Sparse

EVEN = 64  # bytes: where torch begins what it allocates
ANY = -1
"""A size that differs between batches."""

State = dict[str, Any]
"""What a cursor is made of: plain JSON values (a source of the user's own may add tensors)."""


@dataclass(frozen=True)
class Stream:
    """Describes a column: its name, the shape and dtype of a row, and how it is stored.

    A size of -1 may differ between batches, as with padding.
    """

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
        object.__setattr__(self, "shape", _sizes(self.name, self.shape))
        object.__setattr__(self, "dtype", str(torch_dtype(self.dtype)).removeprefix("torch."))
        if self.dtype.startswith(("qint", "quint")):
            raise DataError(
                f"stream {self.name!r} is quantized ({self.dtype}), and torch cannot take rows of that. "
                "Give numbers: x.dequantize(), or x.int_repr()."
            )

    @classmethod
    def of(cls, name: str, rows: Field) -> "Stream":
        """The stream that these rows belong to; of a field without rows, only the name is known."""
        if type(rows) is Tensor:
            return _stream(name, rows.shape[1:], rows.dtype, "dense", False)
        if not isinstance(rows, Tensor | Ragged | Sparse):
            return cls(name)
        items = rows.values if isinstance(rows, Ragged) else rows
        layout = "sparse" if isinstance(items, Sparse) else "dense"
        return _stream(name, items.shape[1:], rows.dtype, layout, isinstance(rows, Ragged))

    def __str__(self) -> str:
        kinds = [*["sparse"] * (self.layout == "sparse"), *["sequences of"] * self.sequence]
        sizes = ", ".join("?" if size == ANY else str(size) for size in self.shape)
        return " ".join([f"{self.name}:", *kinds, f"{self.dtype}[{sizes}]"])

    @property
    def varies(self) -> bool:
        """Whether its rows differ in shape from batch to batch."""
        return ANY in self.shape

    def fits(self, other: "Stream") -> bool:
        """Whether two streams agree; a size of -1 agrees with any other."""
        if (self.dtype, self.layout, self.sequence) != (other.dtype, other.layout, other.sequence):
            return False
        if self.name != other.name or len(self.shape) != len(other.shape):
            return False
        return all(a == b or ANY in (a, b) for a, b in zip(self.shape, other.shape, strict=True))


@lru_cache(1024)  # a loop of one's own asks at every step
def _stream(name: str, shape: tuple[int, ...], dtype: torch.dtype, layout: Any, sequence: bool) -> Stream:
    return Stream(name, tuple(shape), str(dtype).removeprefix("torch."), layout, sequence)


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    """The shape of a row, checked."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = (ANY - 1,)
    if isinstance(shape, str) or any(size < ANY for size in sizes):
        wanted = f"({shape!r},)" if isinstance(shape, int) else "(3,), or () where a row is one number"
        raise ConfigError(f"stream {name!r}: shape= is the sizes of a row, as in {wanted}; got {shape!r}.")
    return sizes


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"{name!r} is not a torch dtype. Try 'float32' or 'int64'.")
    return dtype


class Batch:
    """Rows of every stream by name, and the position of the source after them.

    `batch["x"]` is a stream, and `batch.fields` has all of them by name. `rows` is the number of rows in this batch.
    `total` is the number of rows in the complete update, over all microbatches and workers. `samples` is the number of
    rows that all workers use at this step, also if each makes separate updates. `cursor` is the position to save after
    the update; `ends_epoch` is true if the batch reaches or crosses the end of an epoch.
    """

    __slots__ = (
        *("_share", "_tells_total", "cursor", "ends_epoch", "fields", "part", "rows", "samples", "total"),
        "macrobatch",
    )

    def __init__(
        self,
        fields: Mapping[str, Field],
        rows: int | None = None,
        *,
        total: int | None = None,
        cursor: State | None = None,
        ends_epoch: bool = False,
        share: float | None = None,
    ) -> None:
        self.fields: Mapping[str, Any] = fields
        self.rows = _rows_of(fields) if rows is None else rows
        self.total = self.samples = self.rows if total is None else total
        self._tells_total = total is not None
        self.cursor: Any = cursor
        self.ends_epoch = ends_epoch
        self._share = share
        self.part = 0
        """Its number, if it is one of the parts that a batch was cut into."""
        self.macrobatch: Mapping[str, Any] | None = None
        """The fields of the macrobatch that this is a view of, if it is one of several."""

    def __getitem__(self, stream: str) -> Any:
        try:
            return self.fields[stream]
        except KeyError:
            raise DataError(f"no stream {stream!r} in this batch. It has: {', '.join(self.fields)}.") from None

    def __contains__(self, stream: str) -> bool:
        return stream in self.fields

    def __iter__(self) -> Iterator[str]:
        left, right = ", ".join(self.fields), ", ".join(f"batch[{name!r}]" for name in self.fields)
        raise DataError(
            f"a batch is not iterated or unpacked. Write {left} = {right}; batch.fields has the streams by name."
        )

    def __repr__(self) -> str:
        shown = ((k, tuple(v.shape) if isinstance(v, Tensor) else v) for k, v in self.fields.items())
        parts = (f"{k}={v if isinstance(v, tuple | Rows) else type(v).__name__}" for k, v in shown)
        return f"Batch({self.rows} rows, {', '.join(parts)})"

    @property
    def streams(self) -> list[Stream]:
        """The streams that its fields belong to."""
        return [Stream.of(name, field) for name, field in self.fields.items()]

    @property
    def share(self) -> float:
        """The share of the rows of the complete update that are in this batch."""
        if self._share is not None:
            return self._share
        return self.rows / self.total if self.total else 0.0

    def items(self, stream: str) -> int:
        """The number of rows of a stream, or of items if it is a stream of sequences."""
        items = getattr(self[stream], "items", None)
        return items if isinstance(items, int) else self.rows

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """The same batch on another device."""
        if all(type(field) is Tensor and field.device == device for field in self.fields.values()):
            return self
        return self._like({k: _to(v, device, non_blocking) for k, v in self.fields.items()})

    def pin(self) -> "Batch":
        """The same batch with host memory page-locked, so that a device copies it without waiting."""
        return self._like({name: map_tensors(field, _pinned) for name, field in self.fields.items()})

    @property
    def pieces(self) -> list[int]:
        """The number of rows of each of the loader's batches in it; empty if it is only one."""
        return next((field.lengths for field in self.fields.values() if type(field) is Pieces), [])

    def split(self, rows: int) -> "list[Batch]":
        """Microbatches of at most `rows` rows each, in order; they are views."""
        if pieces := self.pieces:
            return [part for piece in self._split(pieces) for part in piece.split(rows)]
        if self.rows <= rows:
            return [self]
        return self._split([min(rows, self.rows - start) for start in range(0, self.rows, rows)])

    def _split(self, counts: Sequence[int]) -> "list[Batch]":
        fields = split_fields(self.fields, counts)
        return [Batch(part, n, total=self.total) for part, n in zip(fields, counts, strict=True)]

    def cut(self, parts: Sequence[tuple[int, int]]) -> "list[Batch]":
        """Consecutive parts, each given as its number and its rows: views, or copies of those at odd addresses."""
        found = []
        for fields, (part, rows) in zip(split_fields(self.fields, [n for _, n in parts]), parts, strict=True):
            even = {name: map_tensors(field, _in_rows) for name, field in fields.items()}
            found.append(Batch(even, rows, total=self.total))
            found[-1].part = part
        return found

    def _like(self, fields: Mapping[str, Field]) -> "Batch":
        return Batch(fields, self.rows, total=self.total, cursor=self.cursor, ends_epoch=self.ends_epoch)


@dataclass(slots=True)
class Macrobatch:
    """A run of consecutive minibatches stored together, so that they can be staged in one go."""

    fields: Mapping[str, Field]
    counts: list[int]
    """Rows of each minibatch held here."""
    totals: list[int]
    """Rows of each minibatch over all workers."""
    cursors: Sequence[State | None]
    ends_epoch: bool = False
    """Whether the last minibatch reaches or crosses the end of the epoch."""
    finishes: bool = False
    """Whether the source had nothing more to give after it."""
    ready: Any = None
    """What to wait for on the device before reading, if anything."""
    finish: Callable[[Mapping[str, Field]], Mapping[str, Field]] | None = None
    """What is still to be done to the fields once they are on the device, if anything."""
    aliases: bool = False
    """Whether the fields may be views of memory that the table or source keeps."""

    def copy_if_shared(self, device: torch.device | None = None) -> None:
        """Copies fields that are views of memory that others keep: a model may write into a batch.

        Only those on `device`, if one is named: others are copied when they are moved there.
        """
        if self.aliases:
            self.fields = {name: map_tensors(field, partial(_own, device)) for name, field in self.fields.items()}
            self.aliases = False

    def batches(self) -> list[Batch]:
        """The minibatches, as views; copies where a view begins at an odd address.

        Kernels add up in another order there, and where a batch lies in its macrobatch is to change no bit.
        """
        if len(self.counts) == 1:
            fields = dict(self.fields)
            for name, field in fields.items():
                if type(field) is not Tensor or (field.is_floating_point() and field.data_ptr() % EVEN):
                    fields[name] = map_tensors(field, _even)
            (rows,), (total,), (cursor,) = self.counts, self.totals, self.cursors
            return [Batch(fields, rows, total=total, cursor=cursor, ends_epoch=self.ends_epoch)]
        parts = split_fields(self.fields, self.counts)
        for name in self._odd():
            for part in parts:
                part[name] = map_tensors(part[name], _even)
        columns = zip(parts, self.counts, self.totals, self.cursors, strict=True)
        batches = [Batch(part, rows, total=total, cursor=cursor) for part, rows, total, cursor in columns]
        batches[-1].ends_epoch = self.ends_epoch
        for batch in batches:
            batch.macrobatch = self.fields
        return batches

    def only(self) -> Batch:
        """The one minibatch that this holds, with nothing left to be done to it."""
        self.copy_if_shared()
        if self.finish is not None:
            self.fields = self.finish(self.fields)
        return self.batches()[0]

    def _odd(self) -> list[str]:
        """The streams in which a batch may begin at an odd address."""
        starts = list(accumulate(self.counts, initial=0))[:-1]
        return [name for name, field in self.fields.items() if not _all_even(field, starts)]

    def tensors(self) -> list[Tensor]:
        return [tensor for field in self.fields.values() for tensor in tensors_of(field)]


def concat(batches: Sequence[Batch]) -> dict[str, Field]:
    """The fields of several batches, one after the other."""
    if len(batches) == 1:
        return dict(batches[0].fields)
    return {name: cat([b[name] for b in batches]) for name in batches[0].fields}


def _to(field: Any, device: torch.device, non_blocking: bool) -> Any:
    """A field on another device; one of another kind has no more than `to(device)`."""
    return field.to(device, non_blocking=non_blocking) if isinstance(field, Tensor | Rows) else field.to(device)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def _rows_of(fields: Mapping[str, Field]) -> int:
    sizes = {name: len(field) for name, field in fields.items() if has_rows(field)}  # type: ignore[arg-type]
    for name, field in fields.items():
        if not isinstance(field, Tensor | Opaque):
            raise DataError(f"stream {name!r} is a {type(field).__name__}. Give a tensor: torch.as_tensor(...).")
    if not sizes:
        raise DataError("cannot tell how many rows this batch has: no stream has rows. Pass Batch(fields, rows=n).")
    return one_length(sizes, "the streams of a batch")


def _all_even(field: Field, starts: Sequence[int]) -> bool:
    """Whether views that begin at these rows begin at even addresses, or hold nothing that is added up."""
    if not isinstance(field, Tensor):
        return not any(tensor.is_floating_point() for tensor in tensors_of(field))
    if not field.is_floating_point():
        return True
    step = field.stride(0) * field.itemsize if field.dim() else 0
    return field.data_ptr() % EVEN == 0 and all(start * step % EVEN == 0 for start in starts)


def _own(device: torch.device | None, tensor: Tensor) -> Tensor:
    return tensor.clone() if device in (None, tensor.device) else tensor


def _in_rows(tensor: Tensor) -> Tensor:
    """A part's tensor, laid out as if it were alone."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return _even(tensor)
    return _even(tensor.contiguous())


def _even(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_floating_point() and tensor.data_ptr() % EVEN else tensor
