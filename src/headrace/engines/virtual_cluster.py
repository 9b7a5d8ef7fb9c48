"""The cluster of virtual workers: their clocks, network, collectives and failures."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ..errors import WorkerError
from .baton import Baton
from .network import Collective, Link, Network, WorkerTimes


class WorkerDied(BaseException):
    """Raised in a virtual worker that has died; no exception handler of the user's catches it."""


class VirtualCluster:
    """Virtual workers, one at a time.

    A worker that has joined a center dies alone, and comes back alone after a while. Others are lost together: each of
    them gets a `WorkerError`, and `restart` begins again. The first error of any worker ends all, and is the caller's.
    """

    def __init__(self, count: int, network: Network, timeout_s: float = 600.0) -> None:
        self.count, self.network = count, network
        self.baton = Baton(count, timeout_s, self._stuck, self._stalled)
        self.accounts = [WorkerTimes() for _ in range(count)]
        self.inward, self.outward, self.ring = Link(network), Link(network), Link(network)
        """The center's link, in each direction, and the one of collectives."""
        self.memory: dict[int, list[Tensor]] = {}
        """What workers keep within an update: they make theirs one after the other."""
        self.lost = False
        """Whether all workers were lost because one of them died."""
        self._deaths = [network.failures_s(worker) for worker in range(count)]
        self._mortal = [worker for worker, deaths in enumerate(self._deaths) if deaths]
        self._timeout_s = timeout_s
        self._clear()

    def _clear(self) -> None:
        self.held: Any = None
        """The center, once somebody has asked for it."""
        self.centers: dict[int, Callable[[], None]] = {}
        """The workers that have joined a center, and how each leaves it."""
        self.changes = 0
        """How often somebody has changed the center."""
        self._waits: set[int] = set()
        self._failure: tuple[int | None, BaseException] | None = None
        self._reported: tuple[int, BaseException] | None = None
        self._dead: set[int] = set()
        self._collectives: dict[int, Collective] = {}
        self._calls = [0] * self.count
        self._where: list[tuple[int, str]] = [(0, "")] * self.count

    # --- from beginning to end ---------------------------------------------------------------------------

    def run(self, main: Callable[[int], Any]) -> list[Any]:
        """Calls a function in every worker, with its number; what they return. Worker 0 is the caller's thread."""
        values: list[Any] = [None] * self.count

        def live(worker: int) -> None:
            try:
                while True:
                    try:
                        values[worker] = main(worker)
                        self._must_live(worker)
                        if worker in self.centers:
                            self.until(worker, self.baton.now[worker])
                            self._leave(worker)
                        break
                    except WorkerDied:
                        if not self._revive(worker):
                            break
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

    def restart(self) -> None:
        """All workers, lost together, are back after a while."""
        assert self.network.restart_s is not None
        before = self.baton.now
        back = max(before) + self.network.restart_s
        for account, now in zip(self.accounts, before, strict=True):
            account.down_s += back - now
        self.baton.now = [back] * self.count
        for worker in self._mortal:
            self.skip_failures(worker, back)
        self.lost = False
        self._clear()

    def fail(self, worker: int | None, error: BaseException) -> None:
        """Records the first error, which ends every worker at its next call."""
        if self._failure is None:
            follows = isinstance(error, WorkerError) and not self.lost
            self._failure = (worker, error) if self._reported is None or not follows else self._reported
            self.baton.wake_all()

    def report_error(self, worker: int, error: BaseException) -> None:
        """An error is under way: others may be quicker to end by its consequences."""
        if isinstance(error, Exception):  # those that ask to end say so themselves
            self._reported = self._reported or (worker, error)

    def at(self, worker: int, step: int, doing: str) -> None:
        self._where[worker] = step, doing

    def _leave(self, worker: int) -> None:
        """A worker ends: what it had of the center's is free."""
        self.centers.pop(worker)()
        self.changed(self.baton.now[worker])

    # --- time --------------------------------------------------------------------------------------------

    def check(self, worker: int) -> None:
        """Raises in a worker that has died, or if another one has failed."""
        if self._dead and worker in self._dead:
            raise WorkerDied
        if self._failure is not None:
            other, error = self._failure
            if other is None or self.lost:
                raise WorkerError(str(error))
            raise WorkerError(f"worker {other} ended by {type(error).__name__}: {error}") from error

    def go_on(self, worker: int, time: float) -> None:
        """Moves a worker's clock on, or kills the worker if its failure is due."""
        self._live_until(worker, time)
        self.baton.now[worker] = time

    def until(self, worker: int, time: float) -> None:
        """Waits, while others go on that are due before."""
        self._live_until(worker, time)
        self.baton.until(worker, time)
        self.check(worker)

    def worked(self, worker: int, rows: int) -> None:
        account = self.accounts[worker]
        seconds = self.network.computing_s(worker, account.updates, rows)
        account.updates += 1
        account.rows += rows
        account.computing_s += seconds
        self.go_on(worker, self.baton.now[worker] + seconds)

    def skip_failures(self, worker: int, time: float) -> None:
        """Drops the failures of a worker that were due until then: it was dead already."""
        self._deaths[worker] = [death for death in self._deaths[worker] if death > time]

    def _must_live(self, worker: int) -> None:
        if worker in self._dead:
            raise WorkerDied

    def _live_until(self, worker: int, time: float) -> None:
        """Dies, if that is due by then."""
        if self._deaths[worker] and self._deaths[worker][0] <= time:
            self.baton.until(worker, self._deaths[worker][0])
            self.check(worker)
            self._lose(worker)
            raise WorkerDied

    def _lose(self, worker: int) -> None:
        """A worker is dead: alone if it has joined the center, with all others if not."""
        time = self._deaths[worker].pop(0)
        self._dead.add(worker)
        self.accounts[worker].failures += 1
        if worker in self.centers and (worker or self.network.restart_s is not None):
            self._leave(worker)
            return
        self.lost = True
        self._where[worker] = 0, ""
        text = (
            f"worker {worker} of {self.count} was lost at {time:.6g} s of virtual time, and all others with it. "
            "They begin again as often as restarts= of launch says, once it is back."
        )
        self.fail(None, WorkerError(text))

    def _revive(self, worker: int) -> bool:
        """Whether a worker that has died alone is back."""
        wait = self.network.restart_s
        if wait is None or self._failure is not None:
            return False
        self.accounts[worker].down_s += wait
        back = self.baton.now[worker] + wait
        self.skip_failures(worker, back)
        self.baton.until(worker, back)
        if self._failure is not None:
            return False
        self._dead.discard(worker)
        self.baton.restart_generators(worker)
        return True

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
        if not collective.left:
            del self._collectives[call]
            self._conclude(collective)
            self.check(worker)
        return collective

    def wait(self, worker: int, collective: Collective) -> Any:
        """The result of a collective, once all have called it."""
        if collective.left:
            self.check(worker)
            collective.waiting.append(worker)
            self.baton.park(worker, collective)
            self.check(worker)
            return collective.take(worker)
        arrived = self.baton.now[worker]
        if collective.finish_s > arrived:
            self._live_until(worker, collective.finish_s)
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
        mortal = [worker for worker in self._mortal if self._deaths[worker]]
        for worker in sorted(mortal, key=lambda worker: self._deaths[worker][0])[:1]:
            if self._deaths[worker][0] <= collective.finish_s:
                self._lose(worker)
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
        """Returns once the center has changed since; a worker may die meanwhile."""
        self.check(worker)
        if self.changes != seen:
            return
        arrived = self.baton.now[worker]
        self._waits.add(worker)
        if self._deaths[worker]:
            self.baton.due(worker, self._deaths[worker][0])
        self.baton.park(worker, "center.wait")
        self._waits.discard(worker)
        self.accounts[worker].idle_s += self.baton.now[worker] - arrived
        self.check(worker)
        self._live_until(worker, self.baton.now[worker])

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
        return WorkerError(f"worker {worker} has kept the others waiting for more than {self._timeout_s:g} s{where}.")
