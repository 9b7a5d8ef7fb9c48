"""One worker of a training at a center: it leases rows there, and worker 0 reports for all."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from ..step.arguments import groups_of, put_rate
from ..step.signals import Signals
from ..watch.info import Info
from ..workers.centered import Centered
from ..workers.leased import Leased
from ..workers.strategy import Strategy
from .checkpoint import WorkerState
from .resume import Resumed
from .same_data import compare
from .schedule import Rates
from .workers import Report, Workers

COUNTED_AT_CENTER = ("epochs", "samples")
"""Units that count the work of all workers, which the center knows."""


class AtCenter(Workers):
    """One of the workers of a strategy with a center; nobody waits for anybody."""

    strategy: Centered

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        super().__init__(strategy, device)
        self.leads = self.comm.leader
        self._reported_losses: dict[str, list[float]] = {}  # losses of the other workers that have been reported
        self._reported_rows: dict[int, int] = {}  # by each worker, when it was last reported
        self._measured_at = self.comm.now()
        self._stop_sent = False
        self._pulled: list[Tensor] | None = None  # what was scored after the last update
        self._signals: Signals | None = None
        self._facts: Mapping[str, Any] = {}

    def enter(self, train: Source, modules: Sequence[nn.Module], facts: Mapping[str, Any], signals: Signals) -> None:
        super().enter(train, modules, facts, signals)
        self._signals, self._leased = signals, cast(Leased, train)
        contents = {name: known for name, known in facts["contents"].items() if name == "train"}
        self._facts = {name: facts[name] for name in ("settings", "arena", "limits", "data")}  # worker 0 does the rest
        self._facts |= {"contents": contents}

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        leased = Leased(train, self.comm.center)
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
        replica = info.replica
        self._stop_sent, self._measured_at, self._agrees = False, self.comm.now(), False
        self._reported_rows, self._pulled, self._reported_losses = {}, None, {}
        if resumed is not None:
            center = resumed.common["strategy"]["state"]
            self._reported_rows = {worker: rows for worker, *_, rows in center.get("workers", [])}
            self._reported_losses = resumed.mine["replica"].get("heard", {})
            self.strategy.load_state_dict(replica, center, None)
        self.strategy.leader_values = {"facts": self._facts, "pace": _pace(info, rates)} if self.leads else {}
        self.strategy.begin(replica)
        self._leased.center = self.strategy.center
        if self.strategy.received_values is not None and not self.leads:
            compare({0: self.strategy.received_values["facts"], self.comm.shard.index: self._facts})
            _follow_pace(info, rates, self.strategy.received_values["pace"])
            self._leased.begin_at(info.counters.epochs)
        self._update_counters(info)
        return False

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed:
            batch.samples = 0  # they count once the center has heard of them
            yield batch

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
        self._update_counters(info)
        info.counters.rows = info.samples - before  # as many as the center has learnt from since
        return False

    def decide(self, info: Info, signals: Signals, due: bool, now: bool) -> bool:
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
        if now > self._measured_at:
            rows = [read.get(worker, 0) - before.get(worker, 0) for worker in range(self.comm.count)]
            self.rates = [count / (now - self._measured_at) for count in rows]
        self._reported_rows, self._measured_at = read, now

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

    def state(self, info: Info) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        center, scored = self.strategy.state_dict(info.replica), self._pulled
        weights = center["weights"] if scored is None else info.replica.by_name(scored)
        return weights, {"kind": type(self.strategy).__name__, "agrees": False, "state": center}

    def own_state(self, info: Info) -> dict[str, Any]:
        sent = self.strategy.sent_terms
        heard = {name: _plus(numbers, self._reported_losses.get(name)) for name, numbers in sent.items()}
        return {"heard": self._reported_losses | heard}

    def gather_states(self, own: WorkerState) -> list[WorkerState] | None:
        return [own] if self.leads else None

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
            self._pulled = self.strategy.agreed(info.replica)
        return self._pulled

    def finish(self, info: Info) -> None:
        self.strategy.finish(info.replica)
        self._update_counters(info)
        self._pulled = None
        super().finish(info)

    def leave(self) -> None:
        if self.leads and self._signals is not None and self._signals.why and not self._stop_sent:
            self._stop_sent = (
                True  # only now: what has been saved knows nothing of it, and goes on as if nobody had asked
            )
            self.strategy.center.ask_to_stop(self._signals.why)
        self.strategy.leave()

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


def _pace(info: Info, rates: Rates) -> dict[str, Any]:
    """How far the training has come, and its rates: plain values."""
    groups = groups_of(info.trainer.optimizers.values())
    now = [float(group["lr"]) for group in groups]
    return {"counters": info.counters.totals, "schedule": rates.state_dict(), "rates": now}


def _follow_pace(info: Info, rates: Rates, pace: Mapping[str, Any]) -> None:
    """Sets counters and rates to those of another worker."""
    info.counters = replace(info.counters, **pace["counters"])
    rates.load_state_dict(copy.deepcopy(pace["schedule"]))
    for group, rate in zip(groups_of(info.trainer.optimizers.values()), pace["rates"], strict=True):
        put_rate(group, rate)
