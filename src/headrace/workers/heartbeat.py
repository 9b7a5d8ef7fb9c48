"""Says why workers end: a thread of each writes its status into a store, and `explain` reads what they have written.

The first error that any worker reports is the cause; what the others then run into is its consequence.
"""

import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from torch._C._distributed_c10d import Store

from .. import errors
from ..data.shard import Shard
from ..errors import HeadraceError, WorkerError
from .join import within

BEAT_S = 0.5
PATIENCE_S = 1.6  # how long those that lose a connection wait to learn why; whoever has written nothing then is lost
ANSWER_S = 1.2  # in which a store answers
REPORT_S = 2.0  # in which a failing worker tries to report its error
NUDGE_S, GRACE_S = 0.75, 3.0  # how long a worker may overlook that another has failed, until it is disturbed, or ended
_REPORTED = "reported"
_KEEPER_IS_GONE = "the process that started the workers is gone, or does not answer."
_TEXT, _TRACE = 4_000, 20_000  # characters of a message and of a traceback that are reported


@dataclass(slots=True)
class WorkerStatus:
    """Where a worker stands, as its communicator notes it, and as it was last written into the store."""

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
    """Writes this worker's status into the store, and reads what others have reported, in a thread of its own.

    `keeper`: the worker that keeps the store, if it is one. `nudge`: disturbs the program, wherever it is, by an
    error that `interrupt` raises.
    """

    def __init__(
        self, store: Store, shard: Shard, timeout_s: float, keeper: int | None, nudge: Callable[[], None]
    ) -> None:
        self.status = WorkerStatus()
        self.reported: FailureReport | None = None
        """The first error of any worker."""
        self._store, self._me, self._count, self._timeout_s = store, shard.index, shard.count, timeout_s
        self._keeper, self._nudge = keeper, nudge
        self._to_report, self._left = "", False
        self._is_ending, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-beats", daemon=True)
        self._thread.start()

    def report(self, error: BaseException) -> None:
        """Reports why this worker ends; returns once the store has it, or does not answer."""
        if not self._is_ending.is_set():  # else it ends by what was reported
            self._is_ending.set()
            self._send(WorkerError(f"{error}") if isinstance(error, WorkerError) else error)

    def explain(self, failure: Exception, waited_s: float) -> WorkerError:
        """Why a call that needs the others has failed."""
        self._is_ending.set()
        before = self._statuses()
        if before:
            self._listen(PATIENCE_S)
        if self.reported is None:
            diagnosis = WorkerError(self._diagnosis(before, before and self._statuses(), failure, waited_s))
            if before:
                self._send(diagnosis)
            if self.reported is None:
                return diagnosis
        return self.reported_error()

    def reported_error(self) -> WorkerError:
        """What has been reported, for this worker to end by."""
        assert self.reported is not None
        self._is_ending.set()
        return self.reported.error()

    def interrupt(self) -> None:
        """Raises what has been reported, unless this worker ends by it already."""
        if self.reported is not None and not self._is_ending.is_set():
            raise self.reported_error()

    def leave(self) -> None:
        """Ends the heartbeat: this worker no longer needs the others. The one that keeps the store waits for them."""
        if self._left:
            return
        self._left = True
        self._is_ending.set()
        self._wake.set()
        self._thread.join(REPORT_S)
        end = time.monotonic() + REPORT_S
        while self._keeper == self._me and time.monotonic() < end:
            if all(status.left for status in self._statuses()):
                break
            time.sleep(0.02)

    # --- what has happened

    def _statuses(self) -> Sequence[WorkerStatus]:
        """What all workers have last written; nothing where the store does not answer."""
        try:
            return within(ANSWER_S, lambda: read_statuses(self._store, self._count), "the store")
        except RuntimeError:
            return []

    def _diagnosis(
        self, before: Sequence[WorkerStatus], now: Sequence[WorkerStatus], failure: Exception, waited_s: float
    ) -> str:
        is_late, others = waited_s >= 0.9 * self._timeout_s, [k for k in range(self._count) if k != self._me]
        if not now:
            if self._keeper is None:
                return _KEEPER_IS_GONE
            now = before or [WorkerStatus()] * self._count
            return self._keeps_waiting(self._keeper, now, True) if is_late else self._was_lost(self._keeper, now)
        silent = [k for k in others if now[k].beat == before[k].beat and not now[k].left]
        if is_late and others:
            late = min(others, key=lambda k: (k not in silent, now[k].waiting, now[k].calls))
            return self._keeps_waiting(late, now, late in silent)
        for k in others:
            if now[k].left:
                return f"worker {k} ended at {self._place(k, now)}, while worker {self._me} still needs it."
        if silent:
            return self._was_lost(silent[0], now)
        place = f"step {self.status.step} ({self.status.doing})"
        return f"worker {self._me} cannot reach the others at {place}: {failure}"

    def _was_lost(self, worker: int, statuses: Sequence[WorkerStatus]) -> str:
        return f"worker {worker} was lost at {self._place(worker, statuses)}: it was killed, or its machine is gone."

    def _keeps_waiting(self, worker: int, statuses: Sequence[WorkerStatus], is_silent: bool) -> str:
        silence = "; nothing has been heard of it" if is_silent else ""
        return (
            f"worker {worker} keeps the others waiting since {self._place(worker, statuses)}, "
            f"for more than {self._timeout_s:g} s{silence}. If it may take longer, raise timeout_s."
        )

    def _place(self, worker: int, statuses: Sequence[WorkerStatus]) -> str:
        return _place(statuses[worker], max(self.status.met, *(status.met for status in statuses)))

    # --- with the thread

    def _send(self, error: BaseException) -> None:
        self._to_report = json.dumps(asdict(FailureReport.of(error, self._me, self.status.step)))
        self._listen(REPORT_S)

    def _listen(self, limit_s: float) -> None:
        """Waits until an error has been reported, at most so long."""
        end = time.monotonic() + limit_s
        while self.reported is None and self._thread.is_alive() and time.monotonic() < end:
            self._wake.set()
            time.sleep(0.02)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the store is gone with whoever keeps it, as the next call of this worker shows
            while not self._left:
                self._write()
                self.reported = self.reported or read_report(self._store)
                if self.reported is not None:
                    self._end_soon(self.reported)
                self._wake.wait(BEAT_S)
                self._wake.clear()
            self._write(left=True)

    def _write(self, left: bool = False) -> None:
        if self._to_report:
            self._store.compare_set(_REPORTED, "", self._to_report)
            self._to_report = ""
        self.status.beat, self.status.left = self.status.beat + 1, left
        self._store.set(_key(self._me), json.dumps(asdict(self.status)))

    def _end_soon(self, reported: FailureReport) -> None:
        """Ends this worker after an error of another, even while its program computes, reads data or hangs."""
        if self._is_ending.wait(NUDGE_S):
            return
        self._nudge()
        if not self._is_ending.wait(GRACE_S - NUDGE_S):
            os.write(2, f"headrace: {reported} This worker ends.\n".encode())
            os._exit(1)


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
            statuses = read_statuses(store, count)
            met, status = max(each.met for each in statuses), statuses[worker]
            what, mark, why = [*re.split("([:,])", how, maxsplit=1), "", ""][:3]
            place = f" at {_place(status, met)}" if status.beat else ""
            return WorkerError(f"worker {worker} {what}{place}{mark}{why}.")
    return WorkerError("a worker has failed, and has not reported why.") if report is None else report.for_caller()


def write_end(store: Store, worker: int, how: str) -> None:
    """A worker is about to end: it has "returned", or ends by "exit", with a status of its own."""
    store.set(_end_of(worker), how)


def read_end(store: Store, worker: int) -> str:
    """How a worker has ended; "" if it has not, or has not written it."""
    return store.get(_end_of(worker)).decode() if store.check([_end_of(worker)]) else ""


def write_report(store: Store, worker: int, error: BaseException) -> None:
    """As `Heartbeat.report`, for a worker without a heartbeat."""
    report = FailureReport.of(error, worker, read_statuses(store, worker + 1)[worker].step)
    store.compare_set(_REPORTED, "", json.dumps(asdict(report)))


def read_statuses(store: Store, count: int) -> list[WorkerStatus]:
    """The last statuses of all workers; an empty one of a worker that has never written."""
    keys = [_key(worker) for worker in range(count)]
    texts = (
        store.multi_get(keys)
        if store.check(keys)
        else [store.get(key) if store.check([key]) else b"{}" for key in keys]
    )
    return [WorkerStatus(**json.loads(text)) for text in texts]


def _place(status: WorkerStatus, met: int) -> str:
    """A status may be older than the last steps, at which all workers have met."""
    return f"step {status.step} ({status.doing})" if status.step >= met else f"step {met}"


def _key(worker: int) -> str:
    return f"status/{worker}"


def _end_of(worker: int) -> str:
    return f"end/{worker}"
