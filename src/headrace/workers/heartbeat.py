"""Finds workers that are lost, stand still or fail: each writes its state to a store that all can read.

A thread of its own does all that speaks with the store, so that a store that does not answer holds up nobody. The
first error that any worker reports is the cause; what the others then run into is its consequence.
"""

import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from torch._C._distributed_c10d import Store

from .. import errors
from ..data.shard import Shard
from ..errors import HeadraceError, WorkerError

BEAT_S = 0.5
STOPPED_S = 1.2  # a worker that has written nothing for so long is lost, if others wait for it
PATIENCE_S = 1.5  # how long those that lose a connection wait to learn why
HASTE_S = 0.3  # those that have waited for long enough
TELLING_S = 2.0  # how long a failing worker tries to tell
NUDGE_S, GRACE_S = 0.75, 3.0  # how long a worker may overlook that another has failed, until it is disturbed, or ended
_WORKERS_A_SECOND = 256  # that one worker looks at: beats are slower where there are many
_REPORTED = "reported"
_KEEPER_IS_GONE = "the process that started the workers is gone, or does not answer."
_TEXT, _TRACE = 4_000, 20_000  # characters of a message and of a traceback that are reported


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Where a worker stands, as it last wrote it into the store."""

    beat: int = 0
    step: int = 0
    doing: str = "starting"
    waiting: bool = False
    """Within a call that needs the others."""
    calls: int = 0
    """Such calls that it has begun."""
    met: int = 0
    """The step at which all have met last, as it knows: nobody is behind that."""
    left: bool = False
    """It needs the others no more."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An error of a worker, as it is reported to the others."""

    worker: int
    step: int
    kind: str
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException, worker: int, step: int) -> "FailureReport":
        trace = "".join(traceback.format_exception(error))
        return cls(worker, step, type(error).__name__, str(error)[:_TEXT], trace[-_TRACE:])

    def __str__(self) -> str:
        if self.kind == WorkerError.__name__:  # says itself which worker is meant
            return self.text
        return f"worker {self.worker} failed at step {self.step}: {self.kind}: {self.text}".removesuffix(": ")

    def error(self) -> WorkerError:
        """For the other workers to end by."""
        error = WorkerError(str(self))
        error.add_note(f"worker {self.worker} says:\n{self.trace}")
        return error

    def for_caller(self) -> HeadraceError:
        """The error for the process that started the workers: headrace's own kinds stay, others are `WorkerError`."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, HeadraceError)) or kind is WorkerError:
            return self.error()
        error: HeadraceError = kind(self.text)
        error.add_note(f"worker {self.worker}, at step {self.step}, says:\n{self.trace}")
        return error


class Heartbeat:
    """Writes this worker's status into the store and reads that of the others, in a thread of its own.

    `keeper`: the worker that keeps the store, if it is one. `nudge`: disturbs the program, wherever it is, by an
    error that `interrupt` raises.
    """

    def __init__(
        self, store: Store, shard: Shard, timeout_s: float, keeper: int | None, nudge: Callable[[], None]
    ) -> None:
        self.step, self.doing, self.calls, self.waiting = 0, "starting", 0, False  # read by the thread, at its beats
        self.met = 0
        self.reported: FailureReport | None = None
        """The first error of any worker."""
        self._store, self._shard, self._timeout_s, self._keeper, self._nudge = store, shard, timeout_s, keeper, nudge
        self._pause_s = max(BEAT_S, shard.count / _WORKERS_A_SECOND)
        self._beat, self._to_report, self._is_ending, self._left, self._ended = 0, "", False, False, False
        self._statuses = [WorkerStatus()] * shard.count
        self._seen_s = [time.monotonic()] * shard.count
        self._complete = False
        self._begun_s: float | None = None  # of the exchange with the store under way
        self._heard_s, self._nudged = 0.0, False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-beats", daemon=True)
        self._thread.start()

    def report(self, error: BaseException) -> None:
        """Reports why this worker ends; returns once the store has it, or does not answer."""
        if self._is_ending:  # it ends by what was reported
            return
        self._is_ending = True
        self._send(WorkerError(f"{error}") if isinstance(error, WorkerError) else error)

    def explain(self, failure: Exception, waited_s: float) -> WorkerError:
        """Why a call that needs the others has failed."""
        self._is_ending = True
        self._listen(HASTE_S if self._is_late(waited_s) else PATIENCE_S)
        if self.reported is None:
            found = WorkerError(self._diagnosis(failure, waited_s))
            self._send(found)
            return self.reported_error() if self.reported else found
        return self.reported_error()

    def reported_error(self) -> WorkerError:
        """What has been reported, for this worker to end by."""
        assert self.reported is not None
        self._is_ending = True
        return self.reported.error()

    def interrupt(self) -> None:
        """Raises what has been reported, unless this worker ends by it already."""
        if self.reported is not None and not self._is_ending:
            raise self.reported_error()

    def leave(self) -> None:
        """Ends the heartbeat: this worker no longer needs the others. The one that keeps the store waits for them."""
        self._left = True
        end = time.monotonic() + TELLING_S
        while self._keeper == self._shard.index and not self._all_have_left and time.monotonic() < end:
            self._wake.set()
            time.sleep(0.02)
        self._ended = True
        self._wake.set()
        self._thread.join(0.0 if self._is_held_up else TELLING_S)

    # --- what has happened

    def _diagnosis(self, failure: Exception, waited_s: float) -> str:
        now, me = time.monotonic(), self._shard.index
        others = [k for k in range(self._shard.count) if k != me]
        silent = {k: now - self._seen_s[k] for k in others}
        if self._keeper is None and (self._is_held_up or not self._thread.is_alive()):
            return _KEEPER_IS_GONE
        if self._is_late(waited_s) and others:
            late = min(
                others, key=lambda k: (silent[k] < STOPPED_S, self._statuses[k].waiting, self._statuses[k].calls)
            )
            late = self._keeper if self._is_held_up and self._keeper in others else late
            return self._keeps_waiting(late, silent[late])
        if not self._thread.is_alive() and self._keeper in others:
            return self._was_lost(self._keeper)
        for k in others:
            if self._statuses[k].left:
                return f"worker {k} ended at {self._place(k)}, while worker {me} still needs it."
        lost = max(others, key=lambda k: silent[k], default=me)
        if lost != me and silent[lost] > STOPPED_S:
            return self._was_lost(lost)
        return f"worker {me} cannot reach the others at step {self.step} ({self.doing}): {failure}"

    def _is_late(self, waited_s: float) -> bool:
        return waited_s >= 0.9 * self._timeout_s

    def _was_lost(self, worker: int) -> str:
        return f"worker {worker} was lost at {self._place(worker)}: it was killed, or its machine is gone."

    def _keeps_waiting(self, worker: int, silent_s: float) -> str:
        silence = f"; nothing has been heard of it for {silent_s:.0f} s" if silent_s > STOPPED_S else ""
        return (
            f"worker {worker} keeps the others waiting since {self._place(worker)}, "
            f"for more than {self._timeout_s:g} s{silence}. If it may take longer, raise timeout_s."
        )

    def _place(self, worker: int) -> str:
        return _place(self._statuses[worker], max(self.met, *(status.met for status in self._statuses)))

    @property
    def _all_have_left(self) -> bool:
        soon = time.monotonic() - STOPPED_S
        return not self._thread.is_alive() or all(
            status.left or seen_s < soon for status, seen_s in zip(self._statuses, self._seen_s, strict=True)
        )

    @property
    def _is_held_up(self) -> bool:
        """Whether the store does not answer."""
        return self._begun_s is not None and time.monotonic() - self._begun_s > STOPPED_S

    # --- with the thread

    def _send(self, error: BaseException) -> None:
        self._to_report = json.dumps(asdict(FailureReport.of(error, self._shard.index, self.step)))
        self._listen(TELLING_S)

    def _listen(self, limit_s: float) -> None:
        """Waits until an error has been reported, at most so long."""
        end = time.monotonic() + limit_s
        while self.reported is None and self._thread.is_alive() and not self._is_held_up and time.monotonic() < end:
            self._wake.set()
            time.sleep(0.02)

    def _run(self) -> None:
        while True:
            ended = self._ended
            try:
                self._exchange()
            except RuntimeError:  # the store is gone, with whoever keeps it
                self._miss_keeper()
                return
            if ended:
                return
            self._watch()
            self._wake.wait(self._pause_s)
            self._wake.clear()

    def _exchange(self) -> None:
        self._begun_s = time.monotonic()
        self._beat += 1
        status = WorkerStatus(self._beat, self.step, self.doing, self.waiting, self.calls, self.met, self._left)
        if self._to_report:
            self._store.compare_set(_REPORTED, "", self._to_report)
            self._to_report = ""
        write_status(self._store, self._shard.index, status)
        if not status.left or self._keeper == self._shard.index:  # else whoever keeps the store may be gone by now
            self._read_others()
        self._begun_s = None

    def _read_others(self) -> None:
        """What the others have reported."""
        if self.reported is None:
            self.reported = read_report(self._store)
        keys = [_key(k) for k in range(self._shard.count)]
        self._complete = self._complete or self._store.check(keys)
        if self._complete:
            for k, text in enumerate(self._store.multi_get(keys)):
                status = WorkerStatus(**json.loads(text))
                if status.beat != self._statuses[k].beat:
                    self._statuses[k], self._seen_s[k] = status, time.monotonic()

    def _watch(self) -> None:
        """Ends this worker, or reports another one, even while its program computes, reads data or hangs."""
        now = time.monotonic()
        if self.reported is None:
            for k, status in enumerate(self._statuses):
                silent_s = now - self._seen_s[k]
                if self._complete and not status.left and silent_s > self._timeout_s + GRACE_S:
                    error = WorkerError(self._keeps_waiting(k, silent_s))
                    self._to_report = json.dumps(asdict(FailureReport.of(error, self._shard.index, self.step)))
        elif not self._is_ending:
            self._heard_s = self._heard_s or now
            if now - self._heard_s > NUDGE_S and not self._nudged:
                self._nudged = True
                self._nudge()
            if now - self._heard_s > GRACE_S:
                _end(str(self.reported))

    def _miss_keeper(self) -> None:
        """Reports the loss of the store's keeper, unless it has ended well or reported why it ends."""
        self._begun_s = None
        if self.reported is None and not (self._keeper is not None and self._statuses[self._keeper].left):
            gone = WorkerError(_KEEPER_IS_GONE if self._keeper is None else self._was_lost(self._keeper))
            self.reported = FailureReport.of(gone, self._shard.index, self.step)
        while self.reported is not None and not self._is_ending and not self._left:
            self._watch()
            time.sleep(NUDGE_S)


def read_report(store: Store) -> FailureReport | None:
    """The first error that a worker has reported."""
    return FailureReport(**json.loads(store.get(_REPORTED))) if store.check([_REPORTED]) else None


def explain(store: Store, count: int, failed: Mapping[int, str]) -> HeadraceError:
    """Why a launch has failed, for the process that has started the workers.

    `failed`: how each of those has ended that did not end well; "" or "ended by …" where it has reported the error.
    The first error that a worker has reported is the cause, unless it is about another one, which was lost.
    """
    report = read_report(store)
    if report is not None and report.kind != WorkerError.__name__:
        return report.for_caller()
    for worker, how in sorted(failed.items(), key=lambda item: (not item[1].startswith("was lost"), item[0])):
        if how and (report is None or not how.startswith("ended by ")):
            place = _last_place(store, worker, count)
            what, mark, why = [*re.split("([:,])", how, maxsplit=1), "", ""][:3]
            return WorkerError(f"worker {worker} {what}{f' at {place}' if place else ''}{mark}{why}.")
    return WorkerError("a worker has failed, and has not reported why.") if report is None else report.for_caller()


def _last_place(store: Store, worker: int, count: int) -> str:
    """Where a worker was, in words, as far as the store tells; "" if it has never written."""
    statuses = {k: read_status(store, k) for k in range(count)}
    if not statuses[worker].beat:
        return ""
    return _place(statuses[worker], max(status.met for status in statuses.values()))


def write_end(store: Store, worker: int, how: str) -> None:
    """A worker is about to end: it has "returned", or ends by "exit", with a status of its own."""
    store.set(_end_of(worker), how)


def read_end(store: Store, worker: int) -> str:
    """How a worker has ended; "" if it has not, or has not written it."""
    return store.get(_end_of(worker)).decode() if store.check([_end_of(worker)]) else ""


def write_report(store: Store, worker: int, error: BaseException) -> None:
    """As `Heartbeat.report`, for a worker without a heartbeat."""
    report = FailureReport.of(error, worker, read_status(store, worker).step)
    store.compare_set(_REPORTED, "", json.dumps(asdict(report)))


def write_status(store: Store, worker: int, status: WorkerStatus) -> None:
    store.set(_key(worker), json.dumps(asdict(status)))


def read_status(store: Store, worker: int) -> WorkerStatus:
    """The last status of a worker; an empty one if it has never written."""
    key = _key(worker)
    return WorkerStatus(**json.loads(store.get(key))) if store.check([key]) else WorkerStatus()


def _place(status: WorkerStatus, met: int) -> str:
    """A status may be older than the last steps, at which all workers have met."""
    return f"step {status.step} ({status.doing})" if status.step >= met else f"step {met}"


def _key(worker: int) -> str:
    return f"status/{worker}"


def _end_of(worker: int) -> str:
    return f"end/{worker}"


def _end(why: str) -> None:
    """Ends a program that does not react: it computes, or waits in a call that nothing interrupts."""
    os.write(2, f"headrace: {why} This worker ends.\n".encode())
    os._exit(1)
