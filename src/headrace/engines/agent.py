"""Torch's elastic agent, but that it ends workers soon, knows why they failed, and tries again only what may work."""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from .. import errors
from ..errors import HeadraceError, OutOfMemoryError, RunError, WorkerError
from ..workers.heartbeat import Told, read_place, read_told, wrote_exit
from ..workers.store import attempt_of, connect, within
from .worker import FAILED, HELD

GRACE_S = 1.5  # that the others have to end by themselves after a failure, and once more when they are asked to
ENDING_S = 30  # that they have for a last checkpoint where somebody was asked to end
_ASKED = {128 + number for number in (signal.SIGINT, signal.SIGTERM)}  # statuses of those that were asked to end
_READING_S = 2.0
_MAY_WORK = (WorkerError, RunError, OutOfMemoryError)  # of our own errors: those that another start may not meet


class Agent(LocalElasticAgent):
    """Starts the workers of a node, and watches them."""

    error: BaseException | None = None
    """What the last start of the workers has ended by."""
    timeout_s = 600.0
    """How long workers have to end once they have returned."""
    _ending = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # half of them would be nobody's
        try:
            found: dict[int, Any] = super()._start_workers(worker_group)
            self._join = self._context._pc.join
            self._context._pc.join = self._join_soon
            self._context._worker_finished_event = _Said(self._context._worker_finished_event)
            return found
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._shutdown(timeout=GRACE_S)  # type: ignore[arg-type]

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = ENDING_S) -> None:
        """At the end, or when this process is asked to end. Asked again, it waits for nobody."""
        again, self._ending = self._ending, True
        super()._shutdown(signal.SIGKILL if again else death_sig, 0 if again else timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        before = self._statuses(worker_group)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.HEALTHY:
            result = self._without_a_word(worker_group) or result
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            failed = {rank: failure.exitcode for rank, failure in result.failures.items()}
            self.error = self._cause(worker_group, {rank: code for rank, code in before.items() if code} or failed)
            if not _may_work(self.error):
                self._remaining_restarts = 0
            elif self._remaining_restarts:
                number, most = self._attempt(worker_group) + 1, worker_group.spec.max_restarts
                sys.stderr.write(f"headrace: {self.error}\nheadrace: all workers start again ({number} of {most}).\n")
        return result

    def _join_soon(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return self._join_returned()
        asked = any(process.exitcode in _ASKED for process in self._context._pc.processes)
        joined: bool = self._join(timeout, grace_period=ENDING_S if asked else GRACE_S)
        return joined

    def _join_returned(self) -> bool:
        """All have returned, and what they have returned is known: whoever does not end then is ended."""
        end = time.monotonic() + self.timeout_s
        while not self._join(max(0.0, end - time.monotonic()), grace_period=GRACE_S):
            late = [worker for worker, one in enumerate(self._context._pc.processes) if one.is_alive()]
            if late and time.monotonic() >= end:
                sys.stderr.write(
                    f"headrace: {_workers(late)} returned {self.timeout_s:g} s ago and did not end, as when a thread "
                    "goes on: ended now.\n"
                )
                for worker in late:
                    self._context._pc.processes[worker].kill()
                return True
        return True

    def _without_a_word(self, group: WorkerGroup) -> RunResult | None:
        """Workers wait until their value has been read: one that has ended before has left by itself."""
        for worker in group.workers:
            process = self._context._pc.processes[worker.local_rank]
            if process.exitcode == 0 and worker.local_rank not in self._context._return_values:
                failure = ProcessFailure(worker.local_rank, process.pid, 0, "")
                return RunResult(WorkerState.FAILED, failures={worker.global_rank: failure})
        return None

    def _statuses(self, group: WorkerGroup) -> dict[int, int | None]:
        return {one.global_rank: self._context._pc.processes[one.local_rank].exitcode for one in group.workers}

    @property
    def _context(self) -> Any:
        """The processes, as torch keeps them."""
        return self._pcontext

    def _attempt(self, group: WorkerGroup) -> int:
        return int(group.spec.max_restarts - self._remaining_restarts)

    def _read(self, group: WorkerGroup, ended: set[int]) -> tuple[Told | None, dict[int, str], set[int]]:
        """What the store of the workers says: the first error, where workers were, and who has ended by exit()."""
        host: Any = group.master_addr
        port: Any = group.master_port
        store, count = attempt_of(connect(host, port, _READING_S), self._attempt(group)), group.workers[0].world_size
        places = {rank: f" at {place}" for rank in ended if (place := read_place(store, rank, count))}
        return read_told(store), places, {rank for rank in ended if wrote_exit(store, rank)}

    def _cause(self, group: WorkerGroup, ended: dict[int, int]) -> BaseException:
        """The first error of any worker, rather than what has become of the others then."""
        told, places, left = None, dict[int, str](), set(ended)
        with suppress(RuntimeError):  # the node that keeps the store is gone
            told, places, left = within(
                2 * _READING_S, partial(self._read, group, set(ended)), "the store of the workers"
            )
        if told is not None and told.kind != WorkerError.__name__:
            return _error(told)
        for rank, status in ended.items():
            if status < 0:
                return WorkerError(f"worker {rank} was lost{places.get(rank, '')}: {_signal(-status)}.")
        for rank in left & {rank for rank, status in ended.items() if status not in (0, FAILED)}:
            return KeyboardInterrupt() if ended[rank] == 128 + signal.SIGINT else SystemExit(ended[rank])
        for rank, status in ended.items():
            if told is None or status != FAILED:
                return WorkerError(
                    f"worker {rank} ended with exit status {status}{places.get(rank, '')}, and did not say why. "
                    "What it has printed may tell."
                )
        return WorkerError("the workers of this node could not be watched any more.") if told is None else _error(told)


class _Said:
    """An event that is set without waiting for those that wait for it: one of them may have been stopped."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def set(self) -> None:
        threading.Thread(target=self._event.set, name="headrace-end", daemon=True).start()


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))} of this node"


def _may_work(error: BaseException) -> bool:
    """Whether it makes sense to start again."""
    return isinstance(error, Exception) and not (isinstance(error, HeadraceError) and not isinstance(error, _MAY_WORK))


def _error(told: Told) -> BaseException:
    """An error of our own as it was, another one as a `WorkerError`."""
    kind = getattr(errors, told.kind, None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and kind is not WorkerError:
        error: HeadraceError = kind(told.text)
        error.add_note(f"worker {told.worker}, at step {told.step}, says:\n{told.trace}")
        return error
    return told.error()


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        return f"it was killed ({name}), as the system does when memory runs out"
    return f"it was ended by {name}"
