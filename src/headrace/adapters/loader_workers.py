"""The worker processes of a DataLoader: waited for without being stuck, explained when they fail, ended when left.

torch waits in an uninterruptible `next`, for ever if a worker hangs; raises in whatever the main thread is doing when
one dies; and takes up to five seconds for each that does not end by itself. Here a wait is a poll, a death is noticed
where a batch is awaited, and all workers together have a second to leave.
"""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

POLL_S = 0.1  # how long a wait may last before somebody may end it
LEAVE_S = 1.0  # how long workers have to end by themselves
_TIMED_OUT = "DataLoader timed out"


def begin(loader: DataLoader[Any], timeout_s: float, waiting: Callable[[], None]) -> Iterator[Any]:
    """A pass over a loader. A batch is awaited for `timeout_s`, or what the loader says; meanwhile `waiting` is called.

    A loader waits for its workers as it begins, too: one that never gives up is made to.
    """
    before = loader.timeout
    limit_s = min(timeout_s, before) if before else timeout_s
    if not loader.num_workers:
        return iter(loader)
    loader.timeout = limit_s
    try:
        if loader._iterator is not None:
            loader._iterator._timeout = limit_s
        found = iter(loader)
    finally:
        loader.timeout = before
    return LoaderWorkers(loader, found, limit_s, waiting) if isinstance(found, _BaseDataLoaderIter) else found


class LoaderWorkers(Iterator[Any]):
    """One pass over a loader that has worker processes."""

    def __init__(self, loader: DataLoader[Any], found: Any, limit_s: float, waiting: Callable[[], None]) -> None:
        self._loader, self._iterator, self._limit_s, self.waiting = loader, found, limit_s, waiting
        with suppress(ValueError):
            _remove_worker_pids(id(self._iterator))
        self._iterator._worker_pids_set = False
        self._iterator._timeout = POLL_S

    def __next__(self) -> Any:
        end = time.monotonic() + self._limit_s
        with _watching_for_deaths(self._iterator):
            while True:
                try:
                    return next(self._iterator)
                except StopIteration:
                    raise
                except Exception as error:
                    self.waiting()  # workers that a signal has ended, which asks this process to stop, have not failed
                    if not str(error).startswith(_TIMED_OUT):
                        raise
                if time.monotonic() > end:
                    raise TimeoutError

    def why(self, error: BaseException) -> str:
        """What has happened, in words, with the worker where it is known."""
        count = len(self._iterator._workers)
        if isinstance(error, TimeoutError):
            return f"{self._awaited_worker(count)} has given nothing for {self._limit_s:g} s"
        return _error_of_worker(error, count) or self._dead_workers(count) or f"{type(error).__name__}: {error}"

    def leave(self) -> None:
        """Ends the workers, or, where they are to stay for the next pass, leaves them."""
        if self._loader.persistent_workers:
            self._iterator._timeout = self._loader.timeout
        else:
            self.end()

    def end(self) -> None:
        """Ends the workers. Those that have not gone after a second are killed: nobody needs what they would give."""
        iterator = self._iterator
        if iterator._shutdown:
            return
        # What torch does here waits for locks, which a worker that was killed may have taken with it.
        iterator._shutdown = True
        _end_pinning(iterator)
        if all(worker.exitcode in (None, 0) for worker in iterator._workers):
            iterator._workers_done_event.set()
            for index_queue in iterator._index_queues:
                index_queue.put(None)
            _join(iterator._workers)
        for worker in iterator._workers:
            if worker.is_alive():
                worker.kill()
        _join(iterator._workers)
        for index_queue in iterator._index_queues:
            index_queue.cancel_join_thread()
            index_queue.close()
        if self._loader._iterator is iterator:
            self._loader._iterator = None

    def _awaited_worker(self, count: int) -> str:
        """Names the worker that is to give the next batch."""
        worker, *_ = self._iterator._task_info.get(self._iterator._rcvd_idx, (None,))
        if worker is None:
            return f"none of {count} workers"
        return f"worker {worker} of {count} (process {self._iterator._workers[worker].pid})"

    def _dead_workers(self, count: int) -> str:
        _join(self._iterator._workers, 2 * POLL_S)  # one that has just died may not be known to have
        gone = [(k, worker) for k, worker in enumerate(self._iterator._workers) if worker.exitcode is not None]
        failed = [(k, worker) for k, worker in gone if worker.exitcode] or gone
        return "; ".join(f"worker {k} of {count} (process {w.pid}) {_exit_reason(w.exitcode)}" for k, w in failed[:3])


def _error_of_worker(error: BaseException, count: int) -> str:
    """The exception of a worker, taken from the message that torch makes of it."""
    found = re.search(r"Caught (\w+) in DataLoader worker process (\d+)\.", str(error))
    if found is None:
        return ""
    last = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
    return f"worker {found[2]} of {count} raised {last}"


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"has left with status {code}"
    name = signal.Signals(-code).name
    hints = {
        "SIGKILL": " (as a system does that is out of memory)",
        "SIGBUS": " (a mapped file has become shorter, or shared memory is full)",
    }
    return f"was ended by {name}{hints.get(name, '')}"


def _join(workers: Any, limit_s: float = LEAVE_S) -> None:
    end = time.monotonic() + limit_s
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))


def _end_pinning(iterator: Any) -> None:
    """Ends the thread that pins batches, if there is one."""
    thread: threading.Thread | None = getattr(iterator, "_pin_memory_thread", None)
    if thread is not None:
        iterator._pin_memory_thread_done_event.set()
        with suppress(OSError, ValueError):
            iterator._worker_result_queue.put((None, None))
        thread.join(LEAVE_S)
        iterator._worker_result_queue.cancel_join_thread()
        iterator._worker_result_queue.close()


@contextmanager
def _watching_for_deaths(iterator: Any) -> Iterator[None]:
    """Ends the wait for a batch when a worker dies, even where it left half of a message."""
    pids = tuple(worker.pid for worker in iterator._workers if worker.exitcode is None)
    _set_worker_pids(id(iterator), pids)
    try:
        yield
    finally:
        _remove_worker_pids(id(iterator))
