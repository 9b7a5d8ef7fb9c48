"""Feeds a device: macrobatches are staged on it, one ahead of the compute, and read as minibatches.

Three ways, one for each place data can be. Rows in the device's own memory are gathered there. Rows in host
memory that a thread may read are gathered, pinned and copied by one, while the previous macrobatch is in
use. Everything else is pulled on the caller's thread. None changes what a batch is.
"""

import copy
import queue
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .batch import Batch
from .data.source import WHOLE, Macrobatch, Shard, Source, check_names
from .errors import ConfigError, HeadraceError, SourceError
from .field import has_rows
from .length import Counters, whole
from .malloc import keep_freed_memory
from .sizes import BatchSize, Sizes

LEAVE_S = 5.0  # how long a feed that is closed waits for a read that is under way
POLL_S = 0.1  # how long a wait may last before it looks at the stop flag
CACHE_BYTES = 1 << 21
AT_ONCE = 64  # batches of a source that is pulled one by one which are staged together
MOST_PARTS = 16  # more of a macrobatch are not staged for one worker of many
DEVICE_BYTES = 64 << 20  # one that crosses a bus should be worth the journey


class Feed:
    """The batches of a source on a device, an epoch per iteration.

    ```python
    for batch in Feed(source, "cuda", batch_size=128):
        ...
    ```

    `macrobatch` is the number of rows staged together, rounded up to whole batches, or their bytes, as in "64 MB";
    `"auto"` chooses. `batch_size` may change on the way: `{0: 32, "5 epochs": 64}`, counted from `counters`.
    `once`: one epoch is wanted, and nothing is read ahead of the next. `waiting` is called now and then while a batch
    is awaited; what it raises ends the wait.
    """

    def __init__(
        self,
        source: Source,
        device: str | torch.device = "cpu",
        *,
        batch_size: BatchSize | Sizes = 128,
        macrobatch: int | str = "auto",
        shard: Shard = WHOLE,
        once: bool = False,
        waiting: Callable[[], None] = lambda: None,
        counters: Callable[[], Counters] | None = None,
    ) -> None:
        if not isinstance(source, Source):
            raise ConfigError(f"a Feed reads a Source, got a {type(source).__name__}. A Table is read by a Reader.")
        self.sizes = batch_size if isinstance(batch_size, Sizes) else Sizes(batch_size)
        check_names(source.streams)
        keep_freed_memory()
        self.source, self.shard = source, shard
        self.device = torch.device(device)
        if self.device.type == "cpu":
            self.device = torch.device("cpu")
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.rows = -(-self._amount(macrobatch) // self.sizes.first) * self.sizes.first
        """About how much is staged together: rows, or items where the source counts these."""
        own = Counters()
        self._own = None if counters is not None or self.sizes.constant else own
        self._counters = counters or (lambda: own)  # without the feed, or the thread would hold it
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
        return self.source.batches(self.sizes.first) if self.sizes.constant else None

    @property
    def macrobatches(self) -> int | None:
        """How many macrobatches an epoch has, where that is known."""
        return None if self.batches is None else -(-self.batches * self.sizes.first // self.rows)

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
                if self._own is not None:
                    self._own.samples += batch.total
                    self._own.epochs += batch.ends_epoch
                yield batch
            if macrobatch.ends_epoch:
                break
        self._given = None
        self.finished = self.finished or macrobatch is None

    def share(self, shard: Shard) -> None:
        """From the next batch on, another part of each is read."""
        if shard != self.shard:
            self.close()
            self.shard = shard
            self._stager = self._choose_stager()

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

    def _amount(self, macrobatch: int | str) -> int:
        """How much to stage together, of what a size counts."""
        if macrobatch == "auto" and not self.source.shards:
            return 1
        if rows := whole(macrobatch):
            return rows
        budget = CACHE_BYTES if self.device.type == "cpu" else DEVICE_BYTES
        amount = max(1, int(_bytes(macrobatch, budget) // max(1.0, self.source.item_bytes)))
        if self.source.shards:  # it counts what all workers read, and each stages its part
            amount *= min(self.shard.count, MOST_PARTS)
        one_by_one = type(self.source).next_macrobatch is Source.next_macrobatch
        return min(amount, AT_ONCE * self.sizes.first) if macrobatch == "auto" and one_by_one else amount

    def _choose_stager(self) -> "_Inline | _Ahead":
        pull, copy = _Pull(self.source, self.sizes, self.rows, self.shard, self._counters), _Copy(self.device)
        inline = self.source.resident(self.device) or not self.source.thread_safe
        if inline:
            self.source.waiting = self._waiting
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
        macrobatch.own(self.device)
        tensors = macrobatch.tensors()
        there = all(has_rows(field) for field in macrobatch.fields.values())
        if there and all(tensor.device == self.device for tensor in tensors):
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


class _Pull:
    """Asks the source. One that does not say where an epoch ends is asked one macrobatch ahead to find out.

    Cursors stay with their batches, so asking ahead moves none.
    """

    def __init__(self, source: Source, sizes: Sizes, rows: int, shard: Shard, counters: Callable[[], Counters]) -> None:
        self._source, self._sizes, self._rows, self._shard = source, sizes, rows, shard
        self._counters = counters
        self._at: Counters | None = None
        self._ended = True  # whether what was given last ended an epoch
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
        self._held = self._at = None
        self._ended = True

    def _sized(self) -> tuple[int, int]:
        """The size of the next batches, and how much to ask for together: no more than has this size."""
        if self._sizes.constant:
            return self._sizes.first, self._whole(self._sizes.first)
        self._at = self._at or copy.copy(self._counters())
        size, left = self._sizes.at(self._at), self._sizes.left(self._at)
        if left is None:
            return size, self._whole(size)
        batches = 1 if self._source.own_size or self._source.sized_by != "rows" else -(-left // size)
        return size, min(self._whole(size), batches * size)

    def _whole(self, size: int) -> int:
        return -(-self._rows // size) * size

    def _counted(self, macrobatch: Macrobatch | None) -> Macrobatch | None:
        """Keeps count of how far the training will have come, where sizes depend on it."""
        if self._at is not None:
            self._at.samples += 0 if macrobatch is None else sum(macrobatch.totals)
            ends = macrobatch is None or macrobatch.ends_epoch
            self._at.epochs += ends and not (macrobatch is None and self._ended)
            self._ended = ends
        return macrobatch

    def _ask(self) -> Macrobatch | None:
        source = self._source
        size, rows = self._sized()
        try:
            with torch.no_grad():
                return self._counted(source.next_macrobatch(size, rows, self._shard))
        except HeadraceError:
            raise
        except Exception as error:
            names = ", ".join(stream.name for stream in source.streams)
            raise SourceError(
                f"{source.title} failed while reading up to {rows} {source.sized_by} of {names} "
                f"after {source.state_dict()}: {type(error).__name__}: {error}"
            ) from error


def _bytes(text: int | str, automatic: int) -> float:
    """The bytes that a text such as "64 MB" stands for."""
    if text == "auto":
        return automatic
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMG]?)B\s*", text, re.IGNORECASE) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"macrobatch= is a number of rows, 'auto', or bytes in B, kB, MB or GB, as in '64 MB'; got {text!r}."
        )
    return float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[match[2].upper()]
