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
from ..loss.tally import Tally
from ..step.signals import Signals
from ..watch.info import Info
from ..workers.centered import Centered
from ..workers.leased import Leased
from ..workers.strategy import Strategy
from ..workers.synchronous import join
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
        self._measured_at: float | None = None  # when the rates of the workers were measured last
        self._stop_sent = self._failed = False
        self._pulled: list[Tensor] | None = None  # what was scored after the last update
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
        strategy, clock = self.strategy, dict[str, Any]()
        self._info, self._agrees, self._stop_sent = info, False, False
        self._measured_at = self._pulled = self._state = None
        if resumed is not None:
            own, saved = resumed.mine["replica"], resumed.common["strategy"]["state"]
            self._state = resumed.mine["saved"]
            put_back(info.replica, own)
            strategy.load_state_dict(info.replica, saved, own.get("strategy"))
            clock = saved["clock"] if "strategy" in own else clock
        strategy.begin(info.replica)
        self._leased.center = strategy.client
        strategy.client.begin(lambda: self._state or self.own_parts(), clock)
        self._update_counters()
        return False

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        if self._measured_at is None:
            self.strategy.client.restore_clock()
            self._measured_at = self.comm.now()
        self._state = None
        self._exchange_if_due()
        for batch in feed if not self._info.stopping else ():
            batch.samples = 0  # they count once the center has their exchange
            yield batch
            self._exchange_if_due()
            if self._info.stopping:
                return

    def _exchange_if_due(self) -> None:
        self.strategy.exchange_if_due(self._info.replica)
        self._update_counters()

    def _update_counters(self) -> None:
        info, progress = self._info, self.strategy.progress
        info.counters.samples = progress["samples"]
        info.stopping = info.stopping or progress["stop"]
        self._stop_sent |= bool(progress["stop"])

    def progress(self, info: Info) -> Counters:
        """As if all workers had trained on as many rows as this one since its last exchange."""
        return replace(info.counters, samples=info.samples + self.strategy.unsent_rows * self.comm.count)

    def updated(self, info: Info, batch: Batch) -> bool:
        before, self._pulled = info.samples, None
        self.comm.worked(batch.rows)
        self.comm.at(info.step, "training")
        if info.outcome is not None and not self.leads:
            self.strategy.sums.add_outcome(info.outcome)
        self.strategy.used(cast(dict[str, Any], batch.cursor))
        self.strategy.after(info.replica, info.counters, batch.rows, batch.total, info.ends_epoch)
        if self.leads:  # which is saved between updates, and reports what all have learnt by now
            self._exchange_if_due()
        info.counters.rows = info.samples - before  # as many as the center has learnt from since
        return False

    def decide(self, info: Info, signals: Signals, due: bool, now: bool) -> bool:
        if self.leads:
            self._ask_to_stop(info.stopping)
        return due

    def _ask_to_stop(self, why: str) -> None:
        """Tells the center why all workers are to stop, if they are and it does not know."""
        if why and not self._stop_sent:
            self._stop_sent = True
            self.strategy.client.call("stop", {"why": why})

    def trained(self, tally: Tally) -> Report:
        """Losses of this worker's rows, and of those that others have exchanged; metrics of this one's rows."""
        if self.strategy.center is None:
            return super().trained(tally)
        others, rows = self.strategy.center.report()
        now = self.comm.now()
        if self._measured_at is not None and now > self._measured_at:
            self.rates = [count / (now - self._measured_at) for count in rows]
            self._measured_at = now
        tally.losses[0].add_totals(others.totals())
        return tally.compute()

    def has_more_rows(self, info: Info) -> bool:
        """All rows have been used: whether the center has more of them than this worker has reported."""
        if not self.leads:
            return False
        samples = info.counters.samples = self.strategy.refresh()["samples"]
        rows = info.history.rows
        if not rows or rows[-1]["samples"] == samples:
            return False
        rows[-1]["samples"], self._pulled = samples, None
        return True

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
        }

    def gather_states(self, own: Callable[[], WorkerState]) -> list[WorkerState] | None:
        """Where workers take turns, those of all, who wait between two updates; else only those of worker 0."""
        return self.strategy.client.gather_states(own()) if self.leads else None

    @contextmanager
    def consensus(self, info: Info) -> Iterator[None]:
        """Only worker 0 looks at the center's weights."""
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
        self.strategy.finish(info.replica)
        self._update_counters()
        self._pulled = None
        super().finish(info)

    def report_error(self, error: BaseException) -> None:
        self._failed = True
        if self.comm.count > 1:
            self.comm.report_error(error)

    def leave(self) -> None:
        if not self._failed:  # else all workers end by it
            self._state = self._state or self.own_parts()
            if self.leads:  # only now: what has been saved continues as if nobody had asked
                self._ask_to_stop(self._signals.why or self._info.stopping)
            self.strategy.leave()
        super().leave()


def make_workers(strategy: Strategy | None, device: torch.device) -> Workers:
    """The workers of a trainer: in step with each other, or each at its own pace."""
    joined = join(strategy)
    return (AtCenter if joined.centered else Workers)(joined, device)
