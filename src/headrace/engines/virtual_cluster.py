"""The cluster of virtual workers: their clocks, network and collectives."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import WorkerError
from ..workers.comm import Turns
from .baton import Baton
from .network import Collective, Link, Network, WorkerTimes


class VirtualCluster:
    """Virtual workers, one at a time. The first error of any worker ends all, and is the caller's."""

    def __init__(self, count: int, network: Network, timeout_s: float = 600.0) -> None:
        self.count, self.network = count, network
        self.baton = Baton(count, timeout_s, self._stuck, self._stalled)
        self.accounts = [WorkerTimes() for _ in range(count)]
        self.inward, self.outward, self.ring = Link(network), Link(network), Link(network)
        """The center's link, in each direction, and the one of collectives."""
        self.turns = Turns()
        self.timeout_s = timeout_s
        self.center: Any = None
        """The center of the training under way, if it has one."""
        self.clients: dict[int, Any] = {}
        """Through which each worker calls it."""
        self.changes = 0
        """How often somebody has changed the center."""
        self._waits: set[int] = set()
        self._at_start: set[int] = set()
        self._failure: tuple[int | None, BaseException] | None = None
        self._reported: tuple[int, BaseException] | None = None
        self._collectives: dict[int, Collective] = {}
        self._calls = [0] * self.count
        self._where: list[tuple[int, str]] = [(0, "")] * self.count

    # --- from beginning to end ---------------------------------------------------------------------------

    def run(self, main: Callable[[int], Any]) -> list[Any]:
        """Calls a function in every worker, with its number; what they return. Worker 0 is the caller's thread."""
        values: list[Any] = [None] * self.count

        def live(worker: int) -> None:
            try:
                values[worker] = main(worker)
            except BaseException as error:
                self.fail(worker, error)

        self.baton.run([partial(live, worker) for worker in range(self.count)], partial(self.fail, 0))
        if self._failure is not None:
            worker, error = self._failure
            if worker is not None and isinstance(error, Exception):
                error.add_note(f"in virtual worker {worker} of {self.count}{self._place(worker)}")
            try:
                raise error
            finally:
                del error  # its frames hold this one
        return values

    def fail(self, worker: int | None, error: BaseException) -> None:
        """Records the first error, which ends every worker at its next call."""
        if self._failure is None:
            follows = isinstance(error, WorkerError)
            self._failure = (worker, error) if self._reported is None or not follows else self._reported
            self.baton.wake_all()

    def report_error(self, worker: int, error: BaseException) -> None:
        """An error is under way: others may be quicker to end by its consequences."""
        if isinstance(error, Exception):  # those that ask to end say so themselves
            self._reported = self._reported or (worker, error)

    def at(self, worker: int, step: int, doing: str) -> None:
        self._where[worker] = step, doing

    # --- time --------------------------------------------------------------------------------------------

    def check(self, worker: int) -> None:
        """Raises if another worker has failed."""
        if self._failure is not None:
            other, error = self._failure
            if other is None:
                raise WorkerError(str(error))
            raise WorkerError(f"worker {other} ended by {type(error).__name__}: {error}") from error

    def until(self, worker: int, time: float) -> None:
        """Waits, while others go on that are due before."""
        self.baton.until(worker, time)
        self.check(worker)

    def worked(self, worker: int, rows: int) -> None:
        account, seconds = self.accounts[worker], self.network.computing_s(worker, rows)
        account.updates += 1
        account.rows += rows
        account.computing_s += seconds
        self.baton.now[worker] += seconds

    def meet_at_start(self, worker: int) -> bool:
        """Waits until all workers are here; those but worker 0, for whom it is true, go on when they are made due."""
        self._at_start.add(worker)
        if worker or len(self._at_start) < self.count:
            if worker and len(self._at_start) == self.count:
                self.baton.due(0, self.baton.now[0])
            self.baton.park(worker, "the beginning")
            self.check(worker)
        if worker == 0:
            self._at_start.clear()
        return worker == 0

    # --- collectives ---------------------------------------------------------------------------------------

    def begin(self, worker: int, kind: str, like: tuple[Any, ...], given: Any) -> Collective:
        """A worker calls a collective, its next one, and does not wait for it."""
        self.check(worker)
        call = self._calls[worker]
        self._calls[worker] += 1
        collective = self._collectives.get(call)
        if collective is None:
            collective = self._collectives[call] = Collective(kind, like, worker, [None] * self.count, self.count)
        elif collective.kind != kind or collective.like != like:
            self._differ(collective, Collective(kind, like, worker, [], 0))
        collective.come(worker, given)
        collective.started_s = max(collective.started_s, self.baton.now[worker])
        if not collective.missing:
            del self._collectives[call]
            self._conclude(collective)
            self.check(worker)
        return collective

    def wait(self, worker: int, collective: Collective) -> Any:
        """The result of a collective, once all have called it."""
        if collective.missing:
            self.check(worker)
            collective.waiting.append(worker)
            self.baton.park(worker, collective)
            self.check(worker)
            return collective.take(worker)
        arrived = self.baton.now[worker]
        if collective.finish_s > arrived:
            self._settle(worker, collective, arrived)
            self.baton.until(worker, collective.finish_s)
            self.check(worker)
        return collective.take(worker)

    def _conclude(self, collective: Collective) -> None:
        """All have come."""
        seconds, sent = collective.cost(self.network)
        collective.started_s = max(collective.started_s, self.ring.free_s)
        collective.finish_s = self.ring.free_s = collective.started_s + seconds
        for account, size in zip(self.accounts, sent, strict=True):
            account.sent_bytes += size
        now = self.baton.now
        for worker in collective.waiting:
            self._settle(worker, collective, now[worker])
            now[worker] = max(now[worker], collective.finish_s)
            self.baton.due(worker, now[worker])

    def _settle(self, worker: int, collective: Collective, arrived: float) -> None:
        """What a worker did from its arrival until the end: it waited for others, then for the network."""
        if collective.finish_s > arrived:
            account, begun = self.accounts[worker], max(arrived, collective.started_s)
            account.idle_s += begun - arrived
            account.communicating_s += collective.finish_s - begun

    def _differ(self, known: Collective, other: Collective) -> None:
        text = (
            f"the workers do not call the same: worker {known.first} calls {known}{self._place(known.first)}, "
            f"worker {other.first} {other}{self._place(other.first)}."
        )
        self.fail(None, WorkerError(text))
        self.check(other.first)

    # --- the center --------------------------------------------------------------------------------------

    def changed(self, time: float) -> None:
        """Wakes the workers that wait for a change of the center."""
        self.changes += 1
        for worker in sorted(self._waits):
            self.baton.due(worker, max(self.baton.now[worker], time + self.network.latency_s))
        self._waits.clear()

    def wait_for_change(self, worker: int, seen: int) -> None:
        """Returns once the center has changed since."""
        self.check(worker)
        if self.changes != seen:
            return
        arrived = self.baton.now[worker]
        self._waits.add(worker)
        self.baton.park(worker, "center.wait")
        self._waits.discard(worker)
        self.accounts[worker].idle_s += self.baton.now[worker] - arrived
        self.check(worker)

    # --- what is said ------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """What each worker has done with its time so far, as plain numbers."""
        accounts = [account.plain(now) for account, now in zip(self.accounts, self.baton.now, strict=True)]
        return {
            "clock_s": max(self.baton.now),
            "sent_bytes": sum(account.sent_bytes for account in self.accounts),
            "workers": accounts,
        }

    def _place(self, worker: int) -> str:
        """For messages: (update 17, validating, at 1.25 s of virtual time)"""
        step, doing = self._where[worker]
        parts = [f"update {step}" if step else "", doing, f"at {self.baton.now[worker]:.6g} s of virtual time"]
        return f" ({', '.join(filter(None, parts))})"

    def _stuck(self) -> None:
        """Fails if all workers wait for each other, or for one that has ended."""
        waits = [f"worker {k} waits in {what}{self._place(k)}" for k, what in sorted(self.baton.parked.items())]
        ends = [f"worker {worker} has ended" for worker in sorted(self.baton.ended)]
        shown = [*ends[:3], *(["…"] if len(ends) > 3 else []), *waits[:3], *(["…"] if len(waits) > 3 else [])]
        text = f"no worker can go on: {'; '.join(shown)}. All workers call the same collectives, equally often."
        self.fail(None, WorkerError(text))

    def _stalled(self, worker: int) -> Exception:
        where = self._place(worker)
        return WorkerError(f"worker {worker} has kept the others waiting for more than {self.timeout_s:g} s{where}.")
