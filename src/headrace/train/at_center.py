"""One worker of a training at a center: it leases rows there, and worker 0 reports for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Source
from ..length import Counters, Length
from ..loss.by_output import MetricsByOutput
from ..loss.outcome import LossSums, reported
from ..step.signals import Signals
from ..watch.info import Info
from ..workers.centered import Centered
from ..workers.leased import Leased
from ..workers.strategy import Strategy
from .checkpoint import WorkerState
from .resume import Resumed
from .schedule import Rates
from .workers import Report, Workers, put_back

COUNTED_AT_CENTER = ("epochs", "samples")
"""Units that count the work of all workers, which the center knows."""


class AtCenter(Workers):
    """One of the workers of a strategy with a center; nobody waits for anybody.

    All calls of the center that a worker other than 0 makes stand between two updates. So where workers take turns,
    one that waits there can be saved as it is, while worker 0 saves the training.
    """

    strategy: Centered

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        super().__init__(strategy, device)
        self.leads = self.comm.leader
        self._reported_losses: dict[str, list[float]] = {}  # losses of the other workers that have been reported
        self._reported_rows: list[int] = []  # of each worker, when it was last reported
        self._measured_at = self.comm.now()
        self._stop_sent = self._failed = False
        self._pulled: list[Tensor] | None = None  # what was scored after the last update
        self._resumed: Resumed | None = None
        self._state: WorkerState | None = None  # of this worker, while it makes no updates

    def enter(self, train: Source, modules: Sequence[nn.Module], facts: Mapping[str, Any], signals: Signals) -> None:
        contents = {"train": facts["contents"]["train"]} if facts["contents"] else {}
        super().enter(train, modules, {**facts, "scored": {}, "contents": contents}, signals)  # worker 0 scores
        self._signals, self._leased = signals, cast(Leased, train)
        self._failed = False

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        leased = Leased(train)
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

    def begin(self, info: Info, rates: Rates, resumed: Resumed | None) -> bool:
        self._info, self._resumed = info, resumed
        self._stop_sent, self._measured_at, self._agrees = False, self.comm.now(), False
        self._reported_rows, self._pulled, self._reported_losses = [], None, {}
        self._state = None if resumed is None else resumed.mine["saved"]
        if resumed is not None:
            own, center = resumed.mine["replica"], resumed.common["strategy"]["state"]
            put_back(info.replica, own)
            self._reported_rows, self._reported_losses = list(center["rows"]), own.get("reported", {})
            self.strategy.load_state_dict(info.replica, center, own.get("strategy"))
        self.strategy.begin(info.replica)
        self._leased.center = self.strategy.client
        if resumed is not None and "strategy" in resumed.mine["replica"]:
            self.strategy.client.set_clock(resumed.common["strategy"]["state"]["clock"])
        self.strategy.client.at_boundary(lambda: self._state or self.own_parts())
        self._update_counters(info)
        return False

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        if self._resumed is not None:
            self.strategy.client.go_back_in_time()
            self._resumed, self._measured_at = None, self.comm.now()
        self._state = None
        self._exchange_if_due()
        for batch in feed if not self._info.stopping else ():
            batch.samples = 0  # they count once the center has heard of them
            yield batch
            self._exchange_if_due()
            if self._info.stopping:
                return

    def _exchange_if_due(self) -> None:
        self.strategy.exchange_if_due(self._info.replica)
        self._update_counters(self._info)

    def progress(self, info: Info) -> Counters:
        """As if all were as far as this worker since it last heard of them."""
        return replace(info.counters, samples=info.samples + self.strategy.unsent_rows * self.comm.count)

    def updated(self, info: Info, batch: Batch) -> bool:
        before, self._pulled = info.samples, None
        self.comm.worked(batch.rows)
        self.comm.at(info.step, "training")
        given = {} if info.outcome is None or info.outcome.applied is False else info.outcome.terms
        terms = {name: reported(term) for name, term in given.items()}
        self.strategy.used(batch.cursor, {n: [t.coefficient, float(t.sum), float(t.weight)] for n, t in terms.items()})
        self.strategy.after(info.replica, info.counters, batch.rows, batch.total, info.ends_epoch)
        if self.leads:  # which is saved between updates, and reports what all have learnt by now
            self._exchange_if_due()
        info.counters.rows = info.samples - before  # as many as the center has learnt from since
        return False

    def decide(self, info: Info, signals: Signals, due: bool, now: bool) -> bool:
        if self.leads and not self._stop_sent and info.stopping:
            self._ask_to_stop(info.stopping)
        return due

    def _ask_to_stop(self, why: str) -> None:
        self._stop_sent = True
        self.strategy.client.call("stop", {"why": why})

    def trained(self, sums: LossSums, metrics: MetricsByOutput) -> Report:
        """Losses of this worker's rows, and of those of others that the center has heard of; metrics of this one's."""
        if not self.leads:
            return super().trained(sums, metrics)
        status = self.strategy.center.status()
        others = {
            name: _minus(numbers, self.strategy.sent_terms.get(name)) for name, numbers in status["terms"].items()
        }
        fresh = {name: _minus(numbers, self._reported_losses.get(name)) for name, numbers in others.items()}
        self._reported_losses = others
        self._measure(status["rows"])
        return LossSums.of([sums.totals(), fresh]).read(), metrics.compute()

    def _measure(self, rows: list[int]) -> None:
        """The rows a second of each worker since the last report, from those that the center has of it by now."""
        now, before = self.comm.now(), self._reported_rows or [0] * self.comm.count
        if now > self._measured_at:
            self.rates = [(after - then) / (now - self._measured_at) for after, then in zip(rows, before, strict=False)]
        self._reported_rows, self._measured_at = rows, now

    def has_more_rows(self, info: Info) -> bool:
        """All rows have been used: whether the center has heard more since this worker's last report."""
        if not self.leads:
            return False
        known = self.strategy.refresh()
        info.counters.samples = known["samples"]
        rows = info.history.rows
        more = bool(rows) and rows[-1]["samples"] != known["samples"]
        if more:
            rows[-1]["samples"] = known["samples"]
            self._pulled = None
        return more

    def state(self, info: Info) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        if not self.leads:
            return {}, None
        center, scored = self.strategy.state_dict(info.replica), self._pulled
        weights = center["weights"] if scored is None else info.replica.by_name(scored)
        return weights, {"kind": self.strategy.kind, "agrees": False, "state": center}

    def cursor_now(self, cursor: Any) -> Any:
        return self._leased.cursor_now(cursor)

    def own_state(self, info: Info) -> dict[str, Any]:
        replica = info.replica
        return {
            "strategy": self.strategy.own_state(),
            "weights": replica.by_name([tensor.clone() for tensor in replica.tensors]),
            "counts": [count.clone() for count in replica.counts],
            "reported": self._reported_losses,
        }

    def gather_states(self, own: Callable[[], WorkerState]) -> list[WorkerState] | None:
        """Where workers take turns, those of all, who wait between two updates; else only those of worker 0."""
        return self.strategy.client.states_of_others(own()) if self.leads else None

    @contextmanager
    def consensus(self, info: Info) -> Iterator[None]:
        """Worker 0 alone looks at the center's weights."""
        if not self.leads:
            yield
            return
        with super().consensus(info):
            yield

    def _result(self, info: Info) -> Sequence[Tensor]:
        """The center's weights, the same as long as worker 0 makes no update."""
        if self._pulled is None:
            self._pulled = self.strategy.consensus(info.replica)
        return self._pulled

    def finish(self, info: Info) -> None:
        self._exchange_rest(info)
        self._pulled = None
        super().finish(info)

    def _exchange_rest(self, info: Info) -> None:
        self.strategy.finish(info.replica)
        self._update_counters(info)

    def report_error(self, error: BaseException) -> None:
        self._failed = True
        if self.comm.count > 1:
            self.comm.report_error(error)

    def leave(self) -> None:
        if self._failed:
            return super().leave()  # all workers end by it
        self._state = self._state or self.own_parts()
        if self.leads and not self._stop_sent and (why := self._signals.why or self._info.stopping):
            self._ask_to_stop(why)  # only now: what has been saved goes on as if nobody had asked
        self.strategy.leave()
        super().leave()

    def _update_counters(self, info: Info) -> None:
        known = self.strategy.progress
        info.counters.samples = known["samples"]
        if known["stop"]:
            info.stopping = info.stopping or known["stop"]
            self._stop_sent = True


def _minus(numbers: Sequence[float], known: Sequence[float] | None) -> list[float]:
    """A term's coefficient, sum and weight without those of rows that are known."""
    coefficient, total, weight = numbers
    _, known_total, known_weight = known or (0.0, 0.0, 0.0)
    return [coefficient, total - known_total, weight - known_weight]
