"""Runs threads one at a time, each on a clock of its own: the one that is due first runs next."""

import contextvars
import threading
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TypeVar

import torch

from ..errors import WorkerError
from .generators import Generators

Result = TypeVar("Result")

STACK_BYTES = 16 << 20  # of a worker's thread: room that takes no memory until it is used
GLANCE_S = 0.25  # worker 0 waits so long at a time: a signal just before it begins to wait does not wake it up


class Baton:
    """Decides which virtual worker runs, by the workers' clocks.

    Whoever has the baton runs, alone. It gives it up to wait until a time (`until`), or for others (`park`, until one
    of them calls `due`); then the worker with the smallest (time, number) gets it. The lock of a thread is no more
    than a hint to look whether it has the baton: worker 0 can be interrupted between any two instructions.
    """

    def __init__(
        self, count: int, timeout_s: float, stuck: Callable[[], None], stalled: Callable[[int], Exception]
    ) -> None:
        self.now = [0.0] * count
        """Seconds on each worker's clock."""
        self.parked: dict[int, object] = {}
        """Who waits for others, and in what: its text says it."""
        self.ended: set[int] = set()
        self.holder = 0
        self._count, self._stuck, self._stalled = count, stuck, stalled
        self._timeout_s = timeout_s
        self._heap: list[tuple[float, int, int]] = []
        self._entry, self._entries = [0] * count, 0
        """The entry in the heap that holds for each worker: a later one replaces it."""
        self._locks: list[threading.Lock] = []
        self._turn = 0
        self._urgent = self._is_abandoned = self._void = False
        """Whether worker 0 was interrupted; whether it has gone; whether not all threads could be started."""
        self._generators: Generators

    def run(self, works: Sequence[Callable[[], None]], failed: Callable[[BaseException], None]) -> None:
        """Calls each function in a thread of its own, the first in the caller's; returns once all have ended.

        They raise nothing. What interrupts the caller while it waits for their end is given to `failed`.
        """
        self.holder, self.ended, self._urgent, self._is_abandoned = 0, set(), False, False
        self.parked, self._heap, self._locks = {}, [], [threading.Lock() for _ in works]
        for worker, lock in enumerate(self._locks):
            lock.acquire()
            self.due(worker, self.now[worker])
        self._entry[0] = 0  # it has the baton
        self._generators = Generators(self._count)
        threads = self._start(works)
        try:
            self._generators.enter(0)
            try:
                works[0]()
            except BaseException as error:  # an interrupt between two lines
                failed(error)
            self.ended.add(0)
            while len(self.ended) < self._count and not self._is_abandoned:
                try:
                    self._pass_on(0)
                except BaseException as error:
                    failed(error)
            for thread in [] if self._is_abandoned else threads:
                thread.join()
        finally:
            self._is_abandoned = True
            self._generators.give_back()

    def until(self, worker: int, time: float) -> None:
        """Waits until a time on this worker's clock, while workers that are due before run."""
        self.now[worker] = max(self.now[worker], time)
        if self._urgent or (self._heap and self._heap[0] < (time, worker)):
            self.due(worker, time)
            self._pass_on(worker)

    def standing_in(self, worker: int, call: Callable[[], Result]) -> Result:
        """Calls a function for another worker, which waits: with that worker's random numbers and settings."""
        holder = self.holder
        self._generators.swap(holder, worker)
        try:
            return call()
        finally:
            self._generators.swap(worker, holder)

    def park(self, worker: int, what: object) -> None:
        """Waits, until others make this worker due."""
        self.parked[worker] = what
        self._pass_on(worker)

    def due(self, worker: int, time: float) -> None:
        """A worker that waits is to go on at this time."""
        self._entries += 1
        self._entry[worker] = self._entries
        heappush(self._heap, (time, worker, self._entries))

    def wake_all(self) -> None:
        """Everybody who waits is to go on now."""
        for worker in range(self._count):
            if worker not in self.ended:
                self.due(worker, self.now[worker])

    def _start(self, works: Sequence[Callable[[], None]]) -> list[threading.Thread]:
        """The threads of all workers but the first, which wait for the baton."""
        intra_op = torch.get_num_threads()
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._thread, worker, work, intra_op),
                name=f"headrace-worker-{worker}",
                daemon=True,
            )
            for worker, work in enumerate(works)
            if worker
        ]
        before = threading.stack_size(STACK_BYTES)
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            self._void = True
            for lock in self._locks:
                lock.release()
            raise WorkerError(f"{self._count} virtual workers need a thread each: {error}. Use fewer.") from error
        finally:
            threading.stack_size(before)
        return threads

    def _thread(self, worker: int, work: Callable[[], None], intra_op: int) -> None:
        torch.set_num_threads(intra_op)
        self._wait(worker)
        if self._void:
            return
        work()
        self.ended.add(worker)
        following = self._next()
        self._hand_to(worker, 0 if following is None else following)

    def _pass_on(self, worker: int) -> None:
        """Gives the baton to the worker that is due, and returns once it is back."""
        try:
            following = self._next()
            if following != worker:
                assert following is not None
                self._hand_to(worker, following)
                self._wait(worker)
        except BaseException:
            if worker == 0 and self.holder != 0:
                self._ask_for_baton()
            raise

    def _next(self) -> int | None:
        """Who is due first; `None` if everybody has ended."""
        if self._urgent:
            return 0
        if not (first := self._first()) and self.parked:
            self._stuck()
            first = self._first()
        if first is None:
            return None
        self.now[first[1]] = max(self.now[first[1]], first[0])
        return first[1]

    def _first(self) -> tuple[float, int] | None:
        while self._heap:
            time, worker, entry = heappop(self._heap)
            if self._entry[worker] == entry and worker not in self.ended:
                self._entry[worker] = 0
                self.parked.pop(worker, None)
                return time, worker
        return None

    def _hand_to(self, worker: int, other: int) -> None:
        if not self._is_abandoned:
            self._generators.swap(worker, other)
        self._turn += 1
        self.holder = other
        self._hint(other)

    def _hint(self, worker: int) -> None:
        if self._locks[worker].locked():
            self._locks[worker].release()

    def _wait(self, worker: int) -> None:
        """Until this worker has the baton."""
        lock, turn, seconds = self._locks[worker], self._turn, 0.0
        while self.holder != worker and not self._void:
            if worker:
                lock.acquire()
            elif lock.acquire(timeout=GLANCE_S) or turn != self._turn:
                turn, seconds = self._turn, 0.0
            elif (seconds := seconds + GLANCE_S) >= self._timeout_s and self.holder:
                self._is_abandoned = True
                raise self._stalled(self.holder)

    def _ask_for_baton(self) -> None:
        """Worker 0, interrupted while another one has the baton, is next. Interrupted once more, it leaves at once."""
        if self._is_abandoned:
            return
        self._urgent = True
        self._hint(self.holder)  # perhaps before it could be told
        try:
            self._wait(0)
        except BaseException:
            self._is_abandoned = True
            raise
        finally:
            self._urgent = False
        self._entry[0] = 0
        self.parked.pop(0, None)
