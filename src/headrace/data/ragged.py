"""Sequences of unequal lengths, and the forms in which models take them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from ..errors import DataError
from .fields import Rows, check_offsets, signed, unmasked
from .sparse import Sparse


class Ragged(Rows):
    """Sequences of unequal lengths: row i is values[offsets[i]:offsets[i + 1]].

    The items may be sparse. `host_offsets` is a copy of the offsets on the host.
    """

    __slots__ = ("_mask", "values")

    def __init__(self, values: "Tensor | Sparse", offsets: Any) -> None:
        offsets = torch.as_tensor(offsets)
        self.values: Any = values
        self.offsets, self.host_offsets = offsets, offsets.cpu()
        self._mask: Tensor | None = None
        check_offsets(self.host_offsets, len(values), "a Ragged", "values")

    @classmethod
    def of(cls, sequences: "Sequence[Any]") -> "Ragged":
        """Makes it from a list of sequences, which are tensors, arrays or lists."""
        parts = [torch.as_tensor(unmasked(each, f"sequence {k}")) for k, each in enumerate(sequences)]
        held = [part for part in parts if len(part)] or parts[:1]
        if not held:
            raise DataError("no sequences: nothing says what their items are. Pass at least one.")
        values = torch.cat(held)
        return cls(values, torch.tensor([0, *accumulate(map(len, parts))]))

    def _parts(self) -> list[Tensor | Rows]:
        return [self.values]

    def _like(self, parts: Sequence[Any], offsets: Tensor, host_offsets: Tensor) -> "Ragged":
        made = Ragged.__new__(Ragged)
        made.values, made.offsets, made.host_offsets, made._mask = parts[0], offsets, host_offsets, None
        return made

    def __getitem__(self, key: Any) -> Any:
        """Row i as a tensor, or rows start:stop as a view."""
        if not isinstance(key, SupportsIndex):
            return super().__getitem__(key)
        row = range(len(self))[key]
        return self.values[int(self.host_offsets[row]) : int(self.host_offsets[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.split(self.host_offsets.diff().tolist()))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {self.items} items of {list(self.shape)})"

    @property
    def items(self) -> int:
        """The number of items in all rows."""
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return tuple(self.values.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.values.dtype
        return dtype

    @property
    def lengths(self) -> Tensor:
        """The number of items in each row, on the device of the values."""
        return self.offsets.diff()

    @property
    def longest(self) -> int:
        """The number of items in the longest row, without waiting for the device."""
        return int(self.host_offsets.diff().max()) if len(self) else 0

    @property
    def mask(self) -> Tensor:
        """A tensor (rows, longest), true where `padded` has an item."""
        if self._mask is None:
            self._mask = torch.arange(self.longest, device=self.device) < self.lengths[:, None]
        return self._mask

    def padded(self, value: float = 0) -> Tensor:
        """A tensor (rows, longest, ...) with the items of each row, followed by `value`."""
        values, mask = self.dense(), self.mask
        if values.dim() == 1:  # the mask is in the order of the items
            padded = values.new_full(mask.shape, value)
            signed(padded).masked_scatter_(mask, signed(values))
            return padded
        padded = values.new_full((*mask.shape, *values.shape[1:]), value)
        if self.items:
            starts = torch.arange(len(self), device=self.device) * mask.shape[1]
            signed(padded).flatten(0, 1).index_copy_(0, self._flat(starts), signed(values))
        return padded

    def dense(self) -> Tensor:
        """The items of all rows as one tensor."""
        return self.values if isinstance(self.values, Tensor) else self.values.to_dense()

    def packed(self) -> Any:
        """As a PackedSequence, for torch's recurrent layers."""
        lengths = self.host_offsets.diff()
        if len(empty := torch.nonzero(lengths == 0)):
            raise DataError(f"row {int(empty[0])} is an empty sequence, which a PackedSequence cannot hold. Drop it.")
        return torch.nn.utils.rnn.pack_padded_sequence(self.padded(), lengths, batch_first=True, enforce_sorted=False)

    def nested(self) -> Tensor:
        """As a nested tensor of jagged layout."""
        nested: Tensor = torch.nested.nested_tensor_from_jagged(self.dense(), self.offsets)
        return nested

    @property
    def ids(self) -> "Ragged":
        """The same sequences with the index of each one-hot item."""
        if not isinstance(self.values, Sparse):
            raise DataError("these items are dense: only sparse ones have ids.")
        return self.with_values(self.values.ids)

    def with_values(self, values: "Tensor | Sparse") -> "Ragged":
        """The same sequences with other items, one for each of `values`, such as the outputs of a model for them."""
        if len(values) != self.items:
            advice = " Padded ones belong to with_padded()." if len(values) == len(self) else ""
            raise DataError(f"expected {self.items} items for {len(self)} sequences, got {len(values)}.{advice}")
        return self._like([values], self.offsets, self.host_offsets)

    def with_padded(self, padded: Tensor) -> "Ragged":
        """The same sequences with other items, taken from a tensor of the shape of `padded()`."""
        if tuple(padded.shape[:2]) != (len(self), self.longest):
            raise DataError(f"expected shape {[len(self), self.longest]} and more, got {list(padded.shape)}.")
        starts = torch.arange(len(self), device=self.device) * self.longest
        return self.with_values(padded.flatten(0, 1).index_select(0, self._flat(starts)))

    def items_of(self, outputs: "Ragged | Tensor", flat: bool = False) -> Tensor:
        """The items of something with the same sequences: a Ragged, a row for each item, or padded.

        Where a tensor may be either of these two, it is `flat` or not.
        """
        if isinstance(outputs, Ragged):
            if outputs.host_offsets is not self.host_offsets and not torch.equal(
                outputs.host_offsets, self.host_offsets
            ):
                raise DataError(f"expected something for the sequences of {self!r}, got {outputs!r} with others.")
            return outputs.dense()
        is_padded = outputs.dim() > 1 and tuple(outputs.shape[:2]) == (len(self), self.longest)
        if len(outputs) == self.items and (flat or not is_padded):
            return outputs
        if is_padded:
            return self.with_padded(outputs).dense()
        raise DataError(
            f"expected outputs for {self.items} items, or of shape {[len(self), self.longest]} and more, "
            f"got {list(outputs.shape)}."
        )

    def _flat(self, starts: Tensor) -> Tensor:
        """Where each item is, if the rows begin at `starts`."""
        firsts = torch.repeat_interleave(starts - self.offsets[:-1], self.lengths, output_size=self.items)
        return firsts + torch.arange(self.items, device=self.device)
