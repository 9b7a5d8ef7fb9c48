"""Workers that make the same steps: what one of them decides, all decide at the same step, from the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Source
from ..length import Length
from ..loss.loss_sums import LossSums
from ..loss.metrics import Metrics
from ..step.signals import Signals
from ..step.team import Team, by_leader, tensors_of
from ..step.trainable import Trainable
from ..watch.info import Best, Info
from .checkpointer import Checkpointer, State
from .coordinator import Coordinator, Report, compare
from .reading import SameBatchCheck, as_long_as_any
from .shared_checkpointer import SharedCheckpointer
from .stop_vote import StopVote
from .train_state import TrainState


class InStep(Coordinator):
    """Several workers that make equally many updates."""

    alone = False

    def __init__(self, team: Team) -> None:
        super().__init__(team)
        self._certain = True  # whether all workers have equally many batches
        self._vote = StopVote(self.comm)
        self._rows, self._since = 0, self.comm.now()
        self._warned = False  # of a best step that cannot be kept
        self._measures = False  # whether each worker measures its own rows, as batch normalisation does

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        if isinstance(train, Reader) and not self.strategy.joint:
            train.in_lanes(self.comm.count, batch_size)
        if not train.shards:
            if self.comm.leader:
                warnings.warn(
                    f"{train.title} does not shard: each of the {self.comm.count} workers reads all of it and keeps "
                    "its part.",
                    stacklevel=4,
                )
            if not train.thread_safe:  # else it may be read where workers cannot speak to each other
                train.witness = SameBatchCheck(self.comm, train.title)
        self._certain = isinstance(train, Reader) or not train.shards
        return train

    def checkpointer(self, make: Callable[[], Checkpointer]) -> Checkpointer:
        return SharedCheckpointer(make, self.comm)

    def compare(self, trainer: Trainable, facts: Mapping[str, Any]) -> None:
        tensors = [(f"{k or ''}{n}", t) for k, m in enumerate(trainer._modules) for n, t in tensors_of(m).items()]
        every = self.comm.gather({**facts, "model": {n: f"{str(t.dtype)[6:]}{list(t.shape)}" for n, t in tensors}})
        by_leader(self.comm, lambda: compare(dict(enumerate(every or []))))
        self.team.begin(trainer._modules)

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed if self._certain else as_long_as_any(feed, self.comm):
            self._rows += batch.rows
            if not self.strategy.joint:
                batch.total = batch.rows  # the update is this worker's own
            yield batch

    def begin(self, at: TrainState, state: State | None) -> None:
        super().begin(at, state)
        self._measures = self.strategy.shares_updates and bool(at.replica().statistics)

    def updated(self, at: TrainState, batch: Batch) -> None:
        if not self.strategy.shares_updates:  # else it has been said where the update was computed
            self.comm.worked(batch.rows)
        if not self.strategy.started:
            return
        super().updated(at, batch)
        if self._measures:
            self._agrees = False

    def _start(self, at: TrainState) -> None:
        at.restart(forget=not self.comm.leader)
        self.team.spread(at.modules)
        at.take_over(self.comm.share(at.updates() if self.comm.leader else None))

    def decide(self, info: Info, asked: Signals, due: bool, now: bool) -> bool:
        self.comm.at(info.step, "training")
        vote = self._vote(bool(info.stop_request), bool(asked.why), due, now)
        if vote is None:
            return False
        if vote.stop or vote.leave:
            why = next(filter(None, self.comm.all_gather(asked.why if vote.leave else info.stop_request)), "stopped")
            if vote.leave:
                asked.agree(why)
            info.stopping = info.stopping or why
        return vote.save

    def trained(self, sums: LossSums, metrics: Metrics) -> Report:
        started = self.strategy.started  # until then all workers do the same
        workers = range(self.comm.count if started else 1)
        joint = started and self.strategy.joint  # of updates that they make together, everybody knows the losses
        rate = self._rows / max(1e-9, self.comm.now() - self._since)
        losses, scores, self.rates = self.team.added_up(sums, metrics, workers, joint, rate)
        self.has_scored()
        return losses, scores

    def has_scored(self) -> None:
        self._rows, self._since = 0, self.comm.now()

    def keeps(self, info: Info, common: bool) -> bool:
        """Worker 0 tells good from bad for all, where all have come to report."""
        if not common:
            if not self._warned and super().keeps(info, common):
                self._warned = True
                warnings.warn(
                    f"step {info.step} was marked as the best, and several workers keep weights only where all of them "
                    "report: these are not kept. Mark it at the end of an epoch, or where log_every= or "
                    "validate_every= is due.",
                    stacklevel=2,
                )
            return False
        marks = {name: asdict(mark) for name, mark in info.marks.items()}
        marks = self.comm.share(marks if self.comm.leader else None)
        info.marks = {name: Best(**mark) for name, mark in marks.items()}
        return super().keeps(info, common)

    def tell(self, error: BaseException) -> None:
        self.comm.tell(error)

    def _own_state(self, at: TrainState) -> State:
        own = super()._own_state(at)
        if not self._idle and not self.strategy.joint and not self.comm.leader:
            own["optimizers"] = at.optimizers()
        return own

    def _owns(self, own: State) -> list[State] | None:
        return self.comm.gather(own)
