"""Feeds a device: macrobatches are staged on it, one ahead of the compute, and read as minibatches.

Three ways, one for each place data can be. Rows in the device's own memory are gathered there. Rows in host
memory that a thread may read are gathered, pinned and copied by one, while the previous macrobatch is in
use. Everything else is pulled on the caller's thread. None changes what a batch is.
"""

import math
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .batch import Batch, torch_dtype
from .data.source import WHOLE, Macrobatch, Shard, Source, check_names
from .errors import ConfigError, HeadraceError, SourceError

LEAVE_S = 5.0  # how long a feed that is closed waits for a read that is under way
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
    `once`: one epoch is wanted, and nothing is read ahead of the next. `waiting` is called now and then while a batch
    is awaited; what it raises ends the wait.
    """

    def __init__(
        self,
        source: Source,
        device: str | torch.device = "cpu",
        *,
        batch_size: int = 128,
        macrobatch: int | str = "auto",
        shard: Shard = WHOLE,
        once: bool = False,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if not isinstance(source, Source):
            raise ConfigError(f"a Feed reads a Source, got a {type(source).__name__}. A Table is read by a Reader.")
        if not _is_count(batch_size):
            raise ConfigError(f"batch_size= is a whole number, at least 1, got {batch_size!r}.")
        if macrobatch != "auto" and not _is_count(macrobatch):
            raise ConfigError(f"macrobatch= is a number of rows or 'auto', got {macrobatch!r}.")
        check_names(source.streams)
        self.source, self.batch_size, self.shard = source, batch_size, shard
        self.device = torch.device(device)
        if self.device.type == "cpu":
            self.device = torch.device("cpu")
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.rows = self._whole_batches(macrobatch)
        self.macrobatch = 0
        """The macrobatch being read, counted from 1 in every epoch."""
        self.ends_macrobatch = False
        """Whether the batch given last was the last of its macrobatch."""
        self.finished = False
        """Whether the source has said that it is finished, and is to be rewound."""
        self._given: Batch | None = None
        self._once, self._waiting = once, waiting
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
        """The batches up to the end of the epoch. An epoch that was left goes on after the last batch given."""
        if self._given is not None:
            self.close()
        self.macrobatch, self.finished = 0, False
        while (macrobatch := self._stager.next()) is not None:
            self.macrobatch += 1
            self.finished = macrobatch.finishes
            self.ends_macrobatch = False
            batches = macrobatch.batches()
            last = batches[-1]
            for batch in batches:
                self._given, self.ends_macrobatch = batch, batch is last
                yield batch
            if macrobatch.ends_epoch:
                break
        self._given = None
        self.finished = self.finished or macrobatch is None

    def close(self) -> None:
        """Ends the thread, if there is one, and drops what was staged ahead.

        The source then stands after the last batch that was given.
        """
        self._stager.close()
        given, self._given = self._given, None
        at_the_end = self.finished and self.ends_macrobatch  # whoever finished the source rewinds it
        if given is not None and given.cursor is not None and not at_the_end:
            self.source.load_state_dict(given.cursor)

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
        pull, copy = _Pull(self.source, self.batch_size, self.rows, self.shard), _Copy(self.device)
        inline = self.source.resident(self.device) or not self.source.thread_safe
        return _Inline(pull, copy) if inline else _Ahead(pull, copy, self._once, self._waiting)


class _Inline:
    """Pulls on the caller's thread, when asked."""

    def __init__(self, pull: "_Pull", copy: "_Copy") -> None:
        self._pull, self._copy = pull, copy

    def next(self) -> Macrobatch | None:
        macrobatch = self._pull()
        return None if macrobatch is None else self._copy.wait(self._copy.start(macrobatch))

    def close(self) -> None:
        self._pull.forget()


class _Ahead:
    """Stages the next macrobatch in a thread while the last one is being read: two at a time, no more."""

    def __init__(self, pull: "_Pull", copy: "_Copy", once: bool, waiting: Callable[[], None]) -> None:
        self._pull, self._copy, self._once, self._waiting = pull, copy, once, waiting
        self._thread: threading.Thread | None = None
        self._channel = _Channel()

    def next(self) -> Macrobatch | None:
        if self._thread is None:
            self._start()
        staged = self._channel.take(self._waiting)
        if isinstance(staged, BaseException):
            self.close()
            raise staged
        if staged is None or staged.finishes or (self._once and staged.ends_epoch):
            self.close()
        return None if staged is None else self._copy.wait(staged)

    def close(self) -> None:
        self._channel.close()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
            if self._thread.is_alive():
                warnings.warn(
                    f"the data are still being read after {LEAVE_S:g} s; nobody waits for them.", stacklevel=2
                )
        self._thread = None
        self._pull.forget()

    def _start(self) -> None:
        self._channel = channel = _Channel()
        weakref.finalize(self, channel.stop.set)  # the thread holds no feed, so that a forgotten one ends it
        self._thread = threading.Thread(
            target=_stage_ahead, args=(self._pull, self._copy, channel, self._once), name="headrace-feed", daemon=True
        )
        self._thread.start()


class _Channel:
    """What the staging thread and the reader share."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._staged: queue.Queue[Macrobatch | BaseException | None] = queue.Queue()
        self._room = threading.Semaphore(1)  # the macrobatch being read is not counted

    def take(self, waiting: Callable[[], None]) -> Macrobatch | BaseException | None:
        """The next macrobatch, once it is staged; frees the room it took."""
        while True:
            try:
                staged = self._staged.get(timeout=POLL_S)
            except queue.Empty:
                waiting()
                if self.stop.is_set():
                    return SourceError("the feed was closed while a batch was awaited.")
                continue
            self._room.release()
            return staged

    def wait_for_room(self) -> bool:
        """Whether there is room for another macrobatch; false once the feed is closed."""
        while not self.stop.is_set():
            if self._room.acquire(timeout=POLL_S):
                return not self.stop.is_set()
        return False

    def close(self) -> None:
        """Ends the thread, at once if it waits for room."""
        self.stop.set()
        self._room.release()

    def put(self, staged: Macrobatch | BaseException | None) -> None:
        self._staged.put(staged)


def _stage_ahead(pull: "_Pull", copy: "_Copy", channel: _Channel, once: bool) -> None:
    """The staging thread: it ends with the data, with a failure, or when the feed is closed."""
    while channel.wait_for_room():
        try:
            macrobatch = pull()
            channel.put(None if macrobatch is None else copy.start(macrobatch))
        except BaseException as error:
            channel.put(error)
            return
        if macrobatch is None or macrobatch.finishes or (once and macrobatch.ends_epoch):
            return  # a source that has ended is left alone until it is rewound


class _Copy:
    """From pinned host memory to the device, on a stream of its own where the device has streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, macrobatch: Macrobatch) -> Macrobatch:
        """Begins the copy; returns without waiting for it."""
        tensors = macrobatch.tensors()
        if len(tensors) == len(macrobatch.fields) and all(tensor.device == self.device for tensor in tensors):
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

    def __init__(self, source: Source, batch_size: int, rows: int, shard: Shard) -> None:
        self._source, self._batch_size, self._rows, self._shard = source, batch_size, rows, shard
        self._held: Macrobatch | None = None

    def __call__(self) -> Macrobatch | None:
        if self._source.marks_ends:
            return self._ask()
        now, self._held = self._held or self._ask(), None
        if now is not None and not now.ends_epoch:
            self._held = self._ask()
            now.ends_epoch = now.finishes = self._held is None
        return now

    def forget(self) -> None:
        """Drops what was asked ahead."""
        self._held = None

    def _ask(self) -> Macrobatch | None:
        source = self._source
        try:
            return source.next_macrobatch(self._batch_size, self._rows, self._shard)
        except HeadraceError:
            raise
        except Exception as error:
            names = ", ".join(stream.name for stream in source.streams)
            raise SourceError(
                f"{type(source).__name__} failed while reading up to {self._rows} rows of {names} "
                f"after {source.state_dict()}: {type(error).__name__}: {error}"
            ) from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _row_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * torch_dtype(dtype).itemsize
