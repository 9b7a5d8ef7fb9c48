"""One worker of a training at a center: it leases rows there, and worker 0 reports for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Source
from ..length import Counters, Length
from ..loss.by_output import MetricsByOutput
from ..loss.outcome import LossSums, reported
from ..step.signals import Signals
from ..step.team import Team
from ..watch.info import Info
from ..workers.centered import Centered
from ..workers.leased import Leased
from .checkpointer import Checkpointer
from .coordinator import Coordinator, Report
from .same_data import compare
from .state import State
from .train_state import Handed, TrainState

if TYPE_CHECKING:
    from .trainer import Trainer

COUNTED_AT_CENTER = ("epochs", "samples")
"""Units that count the work of all workers, which the center knows."""


class AtCenter(Coordinator):
    """One of the workers of a strategy with a center; nobody waits for anybody."""

    strategy: Centered

    def __init__(self, team: Team) -> None:
        super().__init__(team)
        self.leads = self.comm.leader
        self.leased = True
        self._agrees = False
        self._reported_losses: dict[str, list[float]] = {}  # losses of the other workers that have been reported
        self._reported_rows: dict[int, int] = {}  # by each worker, when it was last reported
        self._since = self.comm.now()
        self._stop_sent = False
        self._pulled: list[Tensor] | None = None  # what was scored after the last update
        self._signals: Signals | None = None
        self._facts: Mapping[str, Any] = {}

    def compare(self, trainer: Trainer, facts: Mapping[str, Any]) -> None:
        self._signals = trainer.signals
        train = {name: known for name, known in facts["contents"].items() if name == "train"}
        self._facts = {name: facts[name] for name in ("settings", "arena", "limits", "data")}  # worker 0 does the rest
        self._facts |= {"contents": train}

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        self._leased = leased = Leased(train, self.comm.center)
        reader = cast(Reader, train)
        rows = self.epoch_rows = reader.order.n
        ends = [] if reader.end is None else [reader.end]
        ends += [
            int(limit.count) * (rows if limit.unit == "epochs" else 1)
            for limit in limits
            if limit.unit in COUNTED_AT_CENTER
        ]
        block = reader.order.block * reader.order.mix if reader.order.kind.startswith("blocks") else 1
        self.strategy.plan_leases(rows, batch_size, block, min(ends, default=None))
        return leased

    def checkpointer(self, make: Callable[[], Checkpointer]) -> Checkpointer:
        return make() if self.leads else Checkpointer()

    def handed(self, state: State) -> Handed:
        """The weights come from the center; what workers held of an epoch, others may read."""
        self._check_kind(state)
        mine = state.owns[0]
        passed = state.source["initial"] | {"pass": state.counters["epochs"]}  # what is left of earlier ones is counted
        source, place = state.source | {"cursor": passed}, state.place | {"batch": 0, "ends_epoch": True}
        return Handed(replace(state, source=source, place=place), mine, mine["rng"], [mine["tally"]], [mine["metrics"]])

    def begin(self, at: TrainState, handed: Handed | None) -> None:
        replica = at.replica()
        self._stop_sent, self._since, self._agrees = False, self.comm.now(), False
        self._reported_rows, self._pulled, self._reported_losses = {}, None, {}
        if handed is not None:
            assert handed.mine is not None
            assert handed.state.strategy is not None
            center = handed.state.strategy
            self._reported_rows = {worker: rows for worker, *_, rows in center.get("workers", [])}
            self._reported_losses = handed.mine.get("heard", {})
            self.strategy.load_state_dict(replica, center, None)
        self.strategy.leader_values = {"facts": self._facts, "pace": at.pace()} if self.leads else {}
        self.strategy.begin(replica)
        self._leased.center = self.strategy.center
        if self.strategy.received_values is not None and not self.leads:
            compare({0: self.strategy.received_values["facts"], self.comm.shard.index: self._facts})
            at.follow_pace(self.strategy.received_values["pace"])
            self._leased.begin_at(at.info.counters.epochs)
        self._update_counters(at.info)

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed:
            batch.samples = 0  # they count once the center has heard of them
            yield batch

    def progress(self, info: Info) -> Counters:
        """As if all were as far as this worker since it last heard of them."""
        return replace(info.counters, samples=info.samples + self.strategy.unsent_rows * self.comm.count)

    def updated(self, at: TrainState, batch: Batch) -> None:
        info = at.info
        before, self._pulled = info.samples, None
        self.comm.worked(batch.rows)
        self.comm.at(info.step, "training")
        given = {} if info.outcome is None or info.outcome.applied is False else info.outcome.terms
        terms = {name: reported(term) for name, term in given.items()}
        self.strategy.used(batch.cursor, {n: [t.coefficient, float(t.sum), float(t.weight)] for n, t in terms.items()})
        self.strategy.after(at.replica(), info.counters, batch.rows, batch.total, info.ends_epoch)
        self._count_rows(at, before)

    def decide(self, info: Info, asked: Signals, due: bool, now: bool) -> bool:
        if self.leads and not self._stop_sent and info.stopping:
            self._stop_sent = True
            self.strategy.center.ask_to_stop(info.stopping)
        return due

    def trained(self, sums: LossSums, metrics: MetricsByOutput) -> Report:
        """Losses of this worker's rows, and of those of others that the center has heard of; metrics of this one's."""
        if not self.leads:
            return super().trained(sums, metrics)
        status = self.strategy.status()
        others = {
            name: _plus(numbers, self.strategy.sent_terms.get(name), -1) for name, numbers in status["tally"].items()
        }
        fresh = {name: _plus(numbers, self._reported_losses.get(name), -1) for name, numbers in others.items()}
        self._reported_losses = others
        self._measure({worker: facts["rows"] for worker, facts in status["workers"].items()})
        return LossSums.of([sums.totals(), fresh]).read(), metrics.compute()

    def _measure(self, read: dict[int, int]) -> None:
        """The rows a second of each worker since the last report, from those that the center has of it by now."""
        now, before = self.comm.now(), self._reported_rows
        if now > self._since:
            rows = [read.get(worker, 0) - before.get(worker, 0) for worker in range(self.comm.count)]
            self.rates = [count / (now - self._since) for count in rows]
        self._reported_rows, self._since = read, now

    def has_more_rows(self, info: Info) -> bool:
        """All rows have been used: whether the center has heard more since this worker's last report."""
        if not self.leads:
            return False
        known = self.strategy.refresh()
        info.counters.samples = known.samples
        rows = info.history.rows
        more = bool(rows) and rows[-1]["samples"] != known.samples
        if more:
            rows[-1]["samples"] = known.samples
            self._pulled = None
        return more

    def state(self, at: TrainState) -> State | None:
        if not self.leads:
            return None
        kind, center = type(self.strategy).__name__, self.strategy.state_dict(at.replica())
        weights = center["weights"] if self._pulled is None else at.named(self._pulled)  # what was scored, if it was
        heard = {
            name: _plus(numbers, self._reported_losses.get(name)) for name, numbers in self.strategy.sent_terms.items()
        }
        own = at.own_state() | {"heard": self._reported_losses | heard}
        found = at.state(weights, [own])
        found.strategy, found.kind, found.agrees = center, kind, False
        return found

    @contextmanager
    def agreed(self, at: TrainState) -> Iterator[None]:
        """Worker 0 alone looks at the center's weights."""
        if not self.leads:
            yield
            return
        with super().agreed(at):
            yield

    def _result(self, at: TrainState) -> Sequence[Tensor]:
        """The center's weights, the same as long as worker 0 makes no update."""
        if self._pulled is None:
            self._pulled = self.strategy.agreed(at.replica())
        return self._pulled

    def finish(self, at: TrainState) -> None:
        self.strategy.finish(at.replica())
        self._update_counters(at.info)
        self._pulled = None
        super().finish(at)

    def leave(self) -> None:
        if self.leads and self._signals is not None and self._signals.why and not self._stop_sent:
            self._stop_sent = (
                True  # only now: what has been saved knows nothing of it, and goes on as if nobody had asked
            )
            self.strategy.center.ask_to_stop(self._signals.why)
        self.strategy.leave()

    def _count_rows(self, at: TrainState, before: int) -> None:
        """An update counts as many rows as the center has learnt from since."""
        self._update_counters(at.info)
        at.info.counters.rows = at.info.samples - before

    def _update_counters(self, info: Info) -> None:
        known = self.strategy.center_progress
        if known is None:
            return
        info.counters.samples = known.samples
        if known.stop:
            info.stopping = info.stopping or known.stop
            self._stop_sent = True


def _plus(numbers: Sequence[float], more: Sequence[float] | None, factor: int = 1) -> list[float]:
    """A term's coefficient, sum and weight, with those of more rows added, or taken away by a factor of -1."""
    coefficient, total, weight = numbers
    _, known, weighed = more or (0.0, 0.0, 0.0)
    return [coefficient, total + factor * known, weight + factor * weighed]
