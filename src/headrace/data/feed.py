"""Feeds a device: copies macrobatches to it, one ahead of the training, and divides them into batches.

There are three ways. Rows in the memory of the device are gathered there. Rows in host memory, if a thread may read
them, are gathered, pinned and copied by a thread while the previous macrobatch is in use. All other data are read in
the caller's thread. The batches are the same in all three.
"""

import copy
import queue
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch

from ..errors import ConfigError, SourceError
from ..length import Counters, as_count
from .batch import Batch, Macrobatch, State
from .shard import WHOLE, Shard
from .source import Source, check_names
from .staging import BatchSize, Copy, Pull, Sizes, keep_freed_memory

READS = "headrace-feed"
"""The name of threads that read data ahead."""
JOIN_TIMEOUT_S = 5.0  # how long a feed that is closed waits for a read that is under way
GIVE_UP_S = 300.0  # and how long where that read moves the source itself
POLL_S = 0.1  # how long a wait may last before it looks at the stop flag
CACHE_BYTES = 1 << 21
AT_ONCE = 64  # batches of a source that is pulled one by one which are staged together
MOST_PARTS = 16  # more of a macrobatch are not staged for one worker of many
DEVICE_BYTES = 64 << 20  # one that crosses a bus should be worth the journey
Staged = Macrobatch | BaseException | None


class Feed:
    """The batches of a source on a device, an epoch per iteration.

    ```python
    for batch in Feed(source, "cuda", batch_size=128):
        ...
    ```

    Args:
        source: where the rows come from.
        device: where the batches go.
        batch_size: rows in a batch. `{0: 32, "5 epochs": 64}` changes it, at points that `counters` counts.
        macrobatch: rows that are copied together, rounded up to batches. "auto" chooses.
        shard: the part of each batch that this worker gets.
        once: whether only one epoch is read, so that nothing of the next one is read ahead.
        waiting: a function that is called repeatedly while the feed waits for a batch. If it raises, the wait ends.
        counters: returns the steps, samples and epochs so far.
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
        self._once, self._waiting = once, waiting
        self._stager = self._choose_stager()
        self._remaining: deque[Batch] = deque()  # what has not been given yet of the macrobatch being read
        self._cursor: State | None = None  # the cursor of the batch given last
        self._ended = True  # whether that batch ended an epoch
        self._failed = False  # whether a macrobatch was awaited and has not come

    @property
    def batches(self) -> int | None:
        """The number of batches in an epoch, if it is known."""
        return self.source.batches(self.sizes.first) if self.sizes.constant else None

    @property
    def macrobatches(self) -> int | None:
        """The number of macrobatches in an epoch, if it is known."""
        return None if self.batches is None else -(-self.batches * self.sizes.first // self.rows)

    def __iter__(self) -> Iterator[Batch]:
        """The batches up to the end of the epoch. An epoch that was left goes on after the last batch given."""
        if self._failed:
            self.close()
        if self._ended:
            self.macrobatch, self.finished, self._ended = 0, False, False
        while self._remaining or (not self._ended and self._stage()):
            batch = self._remaining.popleft()
            self._cursor, self.ends_macrobatch, self._ended = batch.cursor, not self._remaining, batch.ends_epoch
            if self._own is not None:
                self._own.samples += batch.total
                self._own.epochs += batch.ends_epoch
            yield batch
            del batch  # the next one may need its memory

    def _stage(self) -> bool:
        """Begins the next macrobatch of the epoch; whether there is one."""
        self._failed = True
        macrobatch = self._stager.next()
        self._failed = False
        if macrobatch is None:
            self.finished = self._ended = True
            return False
        self.macrobatch += 1
        self.finished, self.ends_macrobatch = macrobatch.finishes, False
        self._remaining.extend(macrobatch.batches())
        return True

    def close(self) -> None:
        """Ends the thread, if there is one, and drops what was staged ahead.

        The source is then at the position after the last batch that was taken. A source without a state cannot go back,
        so batches that were read ahead are kept for the next iteration.
        """
        began = self._stager.stop()
        if self.source.state_dict() is None:
            return
        self._stager.forget()
        cursor = self._cursor or began
        if cursor is not None and (began is not None or self._failed or not self._ended):  # else nothing was read ahead
            self.source.load_state_dict(cursor)
        self._remaining.clear()
        self._cursor, self._ended, self._failed = None, True, False

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _amount(self, macrobatch: int | str) -> int:
        """How much to stage together, of what a size counts."""
        if macrobatch != "auto":
            if rows := as_count(macrobatch):
                return rows
            raise ConfigError(f"macrobatch= is 'auto', or a number of rows greater than 0; got {macrobatch!r}.")
        if not self.source.shards:
            return 1
        budget = CACHE_BYTES if self.device.type == "cpu" else DEVICE_BYTES
        amount = max(1, int(budget // max(1.0, self.source.item_bytes)))
        amount *= min(self.shard.count, MOST_PARTS)  # it counts what all workers read, and each stages its part
        one_by_one = type(self.source).next_macrobatch is Source.next_macrobatch
        return min(amount, AT_ONCE * self.sizes.first) if one_by_one else amount

    def _choose_stager(self) -> "_Inline | _Ahead":
        pull = partial(Pull, sizes=self.sizes, rows=self.rows, shard=self.shard, counters=self._counters)
        if self.source.thread_safe and not self.source.resident(self.device):
            return _Ahead(self.source, pull, Copy(self.device), self._once, self._waiting)
        self.source.waiting = self._waiting
        return _Inline(pull(self.source), Copy(self.device))


class _Inline:
    """Pulls on the caller's thread, when asked."""

    def __init__(self, pull: Pull, copy: Copy) -> None:
        self._pull, self._copy = pull, copy

    def next(self) -> Macrobatch | None:
        macrobatch = self._pull()
        return None if macrobatch is None else self._copy.wait(self._copy.start(macrobatch))

    def stop(self) -> None:
        pass

    def forget(self) -> None:
        self._pull.forget()


class _Ahead:
    """Stages the next macrobatch in a thread while the last one is being read: two at a time, no more.

    The thread reads the source at a position of its own, if the source can be read so. Then a read that takes too long
    is left to end by itself, and moves nothing that anybody else reads.
    """

    def __init__(
        self,
        source: Source,
        pull: Callable[[Source], Pull],
        copy: Copy,
        once: bool,
        waiting: Callable[[], None],
    ) -> None:
        self._source, self._make, self._copy, self._once, self._waiting = source, pull, copy, once, waiting
        self._thread: threading.Thread | None = None
        self._reading = source
        self._pull: Pull | None = None
        self._staged_ahead: list[Staged] = []  # staged for a feed that was left
        self._began: State | None = None  # where the source stood when the thread began

    def next(self) -> Macrobatch | None:
        staged = self._staged_ahead.pop(0) if self._staged_ahead else self._await(self._thread or self._start())
        if isinstance(staged, BaseException):
            raise staged
        if self._thread is not None:
            # a source that has ended is left alone until it is rewound
            if staged is None or staged.finishes or (self._once and staged.ends_epoch):
                self._finish(self._thread)
            else:
                self._wanted.put(True)
        return None if staged is None else self._copy.wait(staged)

    def stop(self) -> State | None:
        """Ends the thread; where the source stood when it began, if there is one and the source can say so."""
        thread, self._thread = self._thread, None
        began, self._began = self._began, None
        if thread is None:
            return None
        with suppress(queue.Empty):
            self._wanted.get_nowait()
        self._end.detach()
        self._wanted.put(False)
        thread.join(JOIN_TIMEOUT_S)
        if thread.is_alive():
            self._wait_or_abandon(thread)
        while not self._staged.empty():
            self._staged_ahead.append(self._staged.get())
        return began

    def forget(self) -> None:
        """Drops what was staged."""
        self._staged_ahead, self._pull = [], None

    def _start(self) -> threading.Thread:
        if self._pull is None:
            self._reading = self._source.independent_reader()
            self._pull = self._make(self._reading)
        self._began = copy.deepcopy(self._source.state_dict())
        self._wanted, self._staged = queue.SimpleQueue[bool](), queue.SimpleQueue[Staged]()
        arguments = (self._pull, self._copy, self._wanted, self._staged)
        self._thread = threading.Thread(target=_stage, args=arguments, name=READS, daemon=True)
        self._end = weakref.finalize(self, self._wanted.put, False)  # the thread of a feed that is forgotten ends
        self._thread.start()
        self._wanted.put(True)
        return self._thread

    def _await(self, thread: threading.Thread) -> "Staged":
        """The next macrobatch, once it is staged."""
        while True:
            alive = thread.is_alive()
            try:
                return self._staged.get(timeout=POLL_S)
            except queue.Empty:
                self._waiting()
            if thread is not self._thread:
                return SourceError(f"the feed was closed while a batch of {_name(self._source)} was awaited.")
            if not alive:
                return SourceError(
                    f"the thread that reads {_name(self._source)} is gone, and a batch was awaited of it. A process "
                    "that was forked has no threads of its parent's: make the feed there."
                )

    def _finish(self, thread: threading.Thread) -> None:
        """The data have ended: the source stands where the thread does."""
        self._end()
        thread.join()
        self._thread = self._began = self._pull = None
        if self._reading is not self._source:
            self._source.load_state_dict(self._reading.state_dict() or {})

    def _wait_or_abandon(self, thread: threading.Thread) -> None:
        """A read takes long: it is left where it moves nothing, else waited for."""
        slow = f"{_name(self._source)} is still being read {JOIN_TIMEOUT_S:g} s after its feed was left."
        if self._reading is not self._source:
            message = f"{slow} Nobody waits for that read: it ends by itself, and moves nothing."
            warnings.warn(message, stacklevel=4)
            return
        message = f"{slow} That read is waited for as it moves the source, but no longer than {GIVE_UP_S:g} s."
        warnings.warn(message, stacklevel=4)
        thread.join(GIVE_UP_S)
        if thread.is_alive():
            raise SourceError(
                f"{_name(self._source)} has given no batch for {JOIN_TIMEOUT_S + GIVE_UP_S:g} s after its feed was "
                "left, and it is unknown where it stands. Make another one; let next_batch give up where it waits."
            )


def _stage(pull: Pull, copy: Copy, wanted: "queue.SimpleQueue[bool]", staged: "queue.SimpleQueue[Staged]") -> None:
    """In the thread: stages a macrobatch whenever one is wanted. It holds no feed, so that one may be forgotten."""
    while wanted.get():
        try:
            macrobatch = pull()
            staged.put(None if macrobatch is None else copy.start(macrobatch))
        except BaseException as error:
            staged.put(error)
            return


def _name(source: Source) -> str:
    """A source as messages name it."""
    return f"{source.title} ({', '.join(stream.name for stream in source.streams)})"
