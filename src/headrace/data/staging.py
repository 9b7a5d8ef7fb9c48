"""The two halves of staging: macrobatches are asked of a source, in the sizes wanted, and copied to a device."""

import copy
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from ..errors import ConfigError, HeadraceError, SourceError
from ..length import Counters, Points, as_count
from ..store import system
from .batch import Batch, Macrobatch
from .fields import has_rows
from .shard import Shard
from .source import Source

BatchSize = int | Mapping[Any, int]
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEEP_BYTES = 256 << 20  # free memory at the top of the heap that is not given back
LARGEST_BYTES = 32 << 20  # the largest block that may come from the heap; glibc allows no more


class Sizes:
    """The size of each batch, as a function of how far the training has come: `{0: 32, "5 epochs": 64}`.

    Points count epochs or samples. See `headrace.length.Points`.
    """

    def __init__(self, given: BatchSize, what: str = "batch_size") -> None:
        sizes: dict[Any, int] = dict(given) if isinstance(given, Mapping) else {0: given}
        for key, size in sizes.items():
            sizes[key] = as_count(size) or 0
            if not sizes[key]:
                raise ConfigError(f"{what}= is a whole number greater than 0, got {size!r}.")
        self._points = Points(sizes, what, "{0: 32, '5 epochs': 64}")
        for point, _ in self._points.later:
            if point.unit == "steps":
                raise ConfigError(
                    f"{what}= changes after epochs or samples, got {str(point)!r}: steps depend on the size itself."
                )

    @property
    def constant(self) -> bool:
        """Whether all batches have the first size."""
        return not self._points.later

    @property
    def first(self) -> int:
        """The size of the first batches."""
        return self._points.first

    @property
    def largest(self) -> int:
        """The size of the largest batches."""
        return max([self.first, *(size for _, size in self._points.later)])

    def times(self, workers: int) -> "Sizes":
        """The sizes of batches that hold one of these for each worker."""
        found, found._points = copy.copy(self), copy.copy(self._points)
        found._points.first = workers * self.first
        found._points.later = [(point, workers * size) for point, size in self._points.later]
        return found

    def at(self, counters: Counters) -> int:
        """The size of a batch that begins here."""
        return self._points.at(counters)

    def rows_until_change(self, counters: Counters) -> int | None:
        """How many more samples it can hold for, if it depends on them."""
        ahead = [int(p.count) - counters.samples for p, _ in self._points.later if p.unit == "samples"]
        return min((rows for rows in ahead if rows > 0), default=None)


class Copy:
    """Copies macrobatches to a device, on a stream of its own where the device has streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, macrobatch: Macrobatch) -> Macrobatch:
        """Begins the copy; returns without waiting for it."""
        if macrobatch.aliases:
            macrobatch.copy_if_shared(self.device)
        for field in macrobatch.fields.values():
            if type(field) is not torch.Tensor or field.device != self.device:
                return self._move(macrobatch)
        return macrobatch if macrobatch.finish is None else self._finished(macrobatch)

    def _move(self, macrobatch: Macrobatch) -> Macrobatch:
        """Copies whatever is not there, unless all of it is."""
        there = all(has_rows(field) for field in macrobatch.fields.values())
        if there and all(tensor.device == self.device for tensor in macrobatch.tensors()):
            return self._finished(macrobatch)
        if self._stream is None:
            macrobatch.fields = Batch(macrobatch.fields, sum(macrobatch.counts)).to(self.device).fields
            return self._finished(macrobatch)
        with torch.cuda.stream(self._stream):
            rows = {name: field for name, field in macrobatch.fields.items() if has_rows(field)}
            moved = Batch(rows, sum(macrobatch.counts)).pin().to(self.device, non_blocking=True).fields
            macrobatch.fields = {**macrobatch.fields, **moved}
            self._finished(macrobatch)
            macrobatch.ready = self._stream.record_event()
        return macrobatch

    @staticmethod
    def _finished(macrobatch: Macrobatch) -> Macrobatch:
        """What is left to be done on the device is done."""
        if macrobatch.finish is not None:
            macrobatch.fields, macrobatch.finish = macrobatch.finish(macrobatch.fields), None
        return macrobatch

    def wait(self, macrobatch: Macrobatch) -> Macrobatch:
        """Makes the compute stream wait for the copy; the host does not."""
        if macrobatch.ready is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(macrobatch.ready)
            for tensor in macrobatch.tensors():
                tensor.record_stream(stream)
            others = {name: field for name, field in macrobatch.fields.items() if not has_rows(field)}
            if others:  # whose memory nobody could tell of this stream
                macrobatch.fields = {**macrobatch.fields, **Batch(others, 0).to(self.device).fields}
        return macrobatch


class Pull:
    """Asks a source for macrobatches. One that ends, and does not say where, is asked one ahead to find out.

    Cursors stay with their batches, so asking ahead moves none.
    """

    def __init__(self, source: Source, sizes: Sizes, rows: int, shard: Shard, counters: Callable[[], Counters]) -> None:
        self._source, self._sizes, self._rows, self._shard = source, sizes, rows, shard
        self._counters = counters
        self._constant = (sizes.first, self._rounded_up(sizes.first)) if sizes.constant else None
        self._at: Counters | None = None
        self._ended = True  # whether what was given last ended an epoch
        self._asked_ahead: Macrobatch | None = None
        self._read = 0  # rows, of what cannot say where it stands

    def __call__(self) -> Macrobatch | None:
        if self._source.endless:
            if (batch := self._ask()) is None:
                raise SourceError(
                    f"{self._source.title} has ended after {self._read} rows, and says that it is endless: no epoch of "
                    "it was counted. Set endless = False, and it is asked one batch ahead to find its end."
                )
            return batch
        if self._source.marks_ends:
            return self._ask()
        now, self._asked_ahead = self._asked_ahead or self._ask(), None
        if now is not None and not now.ends_epoch:
            self._asked_ahead = self._ask()
            now.ends_epoch = now.finishes = self._asked_ahead is None
        return now

    def forget(self) -> None:
        """Drops what was asked ahead."""
        self._asked_ahead = self._at = None
        self._ended = True

    def _sized(self) -> tuple[int, int]:
        """The size of the next batches, and how much to ask for together: no more than has this size."""
        self._at = self._at or copy.copy(self._counters())
        size, left = self._sizes.at(self._at), self._sizes.rows_until_change(self._at)
        if left is None:
            return size, self._rounded_up(size)
        batches = 1 if self._source.own_size or self._source.sized_by != "rows" else -(-left // size)
        return size, min(self._rounded_up(size), batches * size)

    def _rounded_up(self, size: int) -> int:
        return -(-self._rows // size) * size

    def _count(self, at: Counters, macrobatch: Macrobatch | None) -> None:
        """Keeps count of how far the training will have come, for sizes that depend on it."""
        at.samples += 0 if macrobatch is None else sum(macrobatch.totals)
        ends = macrobatch is None or macrobatch.ends_epoch
        at.epochs += ends and not (macrobatch is None and self._ended)
        self._ended = ends

    def _ask(self) -> Macrobatch | None:
        source = self._source
        size, rows = self._constant or self._sized()
        grad = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(grad and source._records)  # as no_grad does, at a tenth of its time
            macrobatch = source.next_macrobatch(size, rows, self._shard)
        except HeadraceError:
            raise
        except Exception as error:
            names, state = ", ".join(stream.name for stream in source.streams), source.state_dict()
            raise SourceError(
                f"{source.title} failed while reading up to {rows} {source.sized_by} of {names} "
                f"after {f'{self._read} rows' if state is None else state}: {type(error).__name__}: {error}"
            ) from error
        finally:
            torch._C._set_grad_enabled(grad)
        if self._at is not None:
            self._count(self._at, macrobatch)
        self._read += 0 if macrobatch is None else sum(macrobatch.totals)
        return macrobatch


@cache
def keep_freed_memory() -> None:
    """Tells the C library, once, to keep the memory that a training frees in one batch and needs in the next.

    By default glibc hands large blocks back to the system and asks for them again: hundreds of page faults a batch, up
    to a tenth of the time of a small convolutional network. Environments that set `MALLOC_…` variables, or use another
    allocator, are left alone.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = system.c_function("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
