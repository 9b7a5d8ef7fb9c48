"""Feeds a device: macrobatches are staged on it, one ahead of the compute, and read as minibatches.

Three ways, one for each place data can be. Rows in the device's own memory are gathered there. Rows in host
memory that a thread may read are gathered, pinned and copied by one, while the previous macrobatch is in
use. Everything else is pulled on the caller's thread. None changes what a batch is.
"""

import math
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .batch import Batch, torch_dtype
from .data.source import WHOLE, Macrobatch, Shard, Source
from .errors import ConfigError, HeadraceError, SourceError

POLL_S = 0.1  # how long a wait may last before it looks at the stop flag
CACHE_BYTES = 1 << 21
DEVICE_BYTES = 64 << 20  # one that crosses a bus should be worth the journey


class Feed:
    """The batches of a source on a device, an epoch per iteration.

    ```python
    for batch in Feed(source, "cuda", batch_size=128):
        ...
    ```

    `macrobatch` is the number of rows staged together, rounded up to whole batches; `"auto"` chooses by bytes.
    """

    def __init__(
        self,
        source: Source,
        device: str | torch.device = "cpu",
        *,
        batch_size: int = 128,
        macrobatch: int | str = "auto",
        shard: Shard = WHOLE,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size= is at least 1, got {batch_size}.")
        if macrobatch != "auto" and (not isinstance(macrobatch, int) or macrobatch < 1):
            raise ConfigError(f"macrobatch= is a number of rows or 'auto', got {macrobatch!r}.")
        self.source, self.batch_size, self.shard = source, batch_size, shard
        self.device = torch.device(device)
        self.rows = self._whole_batches(macrobatch)
        self.macrobatch = 0
        """The macrobatch being read, counted from 1 in every epoch."""
        self.ends_macrobatch = False
        """Whether the batch given last was the last of its macrobatch."""
        self.finished = False
        """Whether the source has said that it is finished, and is to be rewound."""
        self._stager = self._choose_stager()

    @property
    def batches(self) -> int | None:
        """How many batches an epoch has, where that is known."""
        return self.source.batches(self.batch_size)

    @property
    def macrobatches(self) -> int | None:
        """How many macrobatches an epoch has, where that is known."""
        return None if self.batches is None else -(-self.batches * self.batch_size // self.rows)

    def __iter__(self) -> Iterator[Batch]:
        """The batches up to the end of the epoch."""
        self.macrobatch, self.finished = 0, False
        while (macrobatch := self._stager.next()) is not None:
            self.macrobatch += 1
            self.finished = macrobatch.finishes
            *most, last = macrobatch.batches()
            self.ends_macrobatch = False
            yield from most
            self.ends_macrobatch = True
            yield last
            if macrobatch.ends_epoch:
                return
        self.finished = True

    def close(self) -> None:
        """Ends the thread, if there is one. What was staged ahead is dropped; no cursor has moved."""
        self._stager.close()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole_batches(self, macrobatch: int | str) -> int:
        if macrobatch == "auto":
            if not self.source.shards:
                return self.batch_size
            budget = CACHE_BYTES if self.device.type == "cpu" else DEVICE_BYTES
            row = sum(_row_bytes(stream.shape, stream.dtype) for stream in self.source.streams)
            macrobatch = max(1, budget // max(1, row))
        return -(-int(macrobatch) // self.batch_size) * self.batch_size

    def _choose_stager(self) -> "_Inline | _Ahead":
        if self.source.resident(self.device) or not self.source.thread_safe:
            return _Inline(self)
        return _Ahead(self)


class _Inline:
    """Pulls on the caller's thread, when asked."""

    def __init__(self, feed: Feed) -> None:
        self._pull, self._copy = _Pull(feed), _Copy(feed.device)

    def next(self) -> Macrobatch | None:
        macrobatch = self._pull()
        return None if macrobatch is None else self._copy.wait(self._copy.start(macrobatch))

    def close(self) -> None:
        pass


class _Ahead:
    """Stages the next macrobatch in a thread while the last one is being read: two at a time, no more."""

    def __init__(self, feed: Feed) -> None:
        self._pull, self._copy = _Pull(feed), _Copy(feed.device)
        self._staged: queue.Queue[Macrobatch | BaseException | None] = queue.Queue()
        self._room = threading.Semaphore(1)  # the one being read is not counted
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def next(self) -> Macrobatch | None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-feed", daemon=True)
            self._thread.start()
        while True:
            try:
                staged = self._staged.get(timeout=POLL_S)
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._staged.empty():
                    raise SourceError("the feed was closed while a batch was awaited.") from None
        self._room.release()
        if isinstance(staged, BaseException):
            self.close()
            raise staged
        if staged is None:
            self.close()
            return None
        return self._copy.wait(staged)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop.clear()
        self._staged = queue.Queue()
        self._room = threading.Semaphore(1)

    def _work(self) -> None:
        staged, room = self._staged, self._room
        while not self._stop.is_set():
            if not room.acquire(timeout=POLL_S):
                continue
            try:
                macrobatch = self._pull()
                staged.put(None if macrobatch is None else self._copy.start(macrobatch))
            except BaseException as error:
                staged.put(error)
                return
            if macrobatch is None:
                return


class _Copy:
    """From pinned host memory to the device, on a stream of its own where the device has streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, macrobatch: Macrobatch) -> Macrobatch:
        """Begins the copy; returns without waiting for it."""
        if all(tensor.device == self.device for tensor in macrobatch.tensors()):
            return macrobatch
        whole = Batch(macrobatch.fields, sum(macrobatch.counts))
        if self._stream is None:
            macrobatch.fields = whole.to(self.device).fields
            return macrobatch
        with torch.cuda.stream(self._stream):
            macrobatch.fields = whole.pin().to(self.device, non_blocking=True).fields
            macrobatch.ready = self._stream.record_event()
        return macrobatch

    def wait(self, macrobatch: Macrobatch) -> Macrobatch:
        """Makes the compute stream wait for the copy; the host does not."""
        if macrobatch.ready is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(macrobatch.ready)
            for tensor in macrobatch.tensors():
                tensor.record_stream(stream)
        return macrobatch


class _Pull:
    """Asks the source. One that does not say where an epoch ends is asked one macrobatch ahead to find out.

    Cursors stay with their batches, so asking ahead moves none.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._held: Macrobatch | None = None

    def __call__(self) -> Macrobatch | None:
        if self._feed.source.marks_ends:
            return self._ask()
        now, self._held = self._held or self._ask(), None
        if now is not None and not now.ends_epoch:
            self._held = self._ask()
            now.ends_epoch = now.finishes = self._held is None
        return now

    def _ask(self) -> Macrobatch | None:
        feed, source = self._feed, self._feed.source
        try:
            return source.next_macrobatch(feed.batch_size, feed.rows, feed.shard)
        except HeadraceError:
            raise
        except Exception as error:
            names = ", ".join(stream.name for stream in source.streams)
            raise SourceError(
                f"{type(source).__name__} failed while reading up to {feed.rows} rows of {names} "
                f"after {source.state_dict()}: {type(error).__name__}: {error}"
            ) from error


def _row_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * torch_dtype(dtype).itemsize
