"""A run of minibatches that are stored together: what is staged in one go, and cut into batches where it is used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, State
from .fields import Field, map_tensors, split_fields, tensors_of

EVEN = 64  # bytes: where torch begins what it allocates


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
    ready: Any = field(default=None)
    """What to wait for on the device before reading, if anything."""
    finish: Callable[[Mapping[str, Field]], Mapping[str, Field]] | None = None
    """What is still to be done to the fields once they are on the device, if anything."""
    aliases: bool = False
    """Whether the fields may be views of memory that the table or source keeps."""

    def own(self, device: torch.device | None = None) -> None:
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
        parts = split_fields(self.fields, self.counts) if len(self.counts) > 1 else [dict(self.fields)]
        for name in self._odd():
            for part in parts:
                part[name] = map_tensors(part[name], _even)
        columns = zip(parts, self.counts, self.totals, self.cursors, strict=True)
        batches = [Batch(part, rows, total=total, cursor=cursor) for part, rows, total, cursor in columns]
        batches[-1].ends_epoch = self.ends_epoch
        for batch in batches if len(batches) > 1 else []:
            batch.whole = self.fields
        return batches

    def only(self) -> Batch:
        """The one minibatch that this holds, with nothing left to be done to it."""
        self.own()
        if self.finish is not None:
            self.fields = self.finish(self.fields)
        return self.batches()[0]

    def _odd(self) -> list[str]:
        """The streams in which a batch may begin at an odd address."""
        starts = list(accumulate(self.counts, initial=0))[:-1]
        return [name for name, field in self.fields.items() if not _all_even(field, starts)]

    def tensors(self) -> list[Tensor]:
        return [tensor for field in self.fields.values() for tensor in tensors_of(field)]


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


def _even(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_floating_point() and tensor.data_ptr() % EVEN else tensor
