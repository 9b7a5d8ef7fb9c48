"""Several workers that make the same number of updates, and decide together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Source
from ..length import Length
from ..loss.by_output import MetricsByOutput
from ..loss.outcome import LossSums
from ..step import config
from ..step.signals import Signals
from ..step.team import Team, by_leader, tensors_of
from ..watch.info import Best, Info
from ..workers.comm import Comm, Pending
from ..workers.dealt import Dealt
from .checkpointer import Checkpointer
from .coordinator import Coordinator, Report
from .same_data import SameBatchCheck, compare
from .state import Own, State
from .train_state import Handed, TrainState

if TYPE_CHECKING:
    from .trainer import Trainer

VOTE_S = 0.2  # between two votes, about
MOST_STEPS = 1024  # between two votes, at most


class InStep(Coordinator):
    """Several workers that make equally many updates."""

    alone = False

    def __init__(self, team: Team) -> None:
        super().__init__(team)
        self._certain = True  # whether all workers have equally many batches
        self._vote = StopVote(self.comm)
        self._warned = False  # of a best step that cannot be kept
        self._measures = False  # whether each worker measures its own rows, as batch normalisation does

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        if isinstance(train, Reader) and not self.strategy.joint:
            train.in_lanes(self.comm.count, batch_size)
        if train.own_size and not train.shards and not self.strategy.joint:
            train = Dealt(train, self.comm.count)
        if not train.shards:
            if self.comm.leader:
                warnings.warn(
                    f"{train.title} does not shard: each of the {self.comm.count} workers reads all of it and keeps "
                    "its part.",
                    stacklevel=4,
                )
            if not train.thread_safe:  # else it may be read where workers cannot speak to each other
                train.compare_batch = SameBatchCheck(self.comm, train.title)
        self._certain = isinstance(train, Reader) or not train.shards
        return train

    def checkpointer(self, make: Callable[[], Checkpointer]) -> Checkpointer:
        return SharedCheckpointer(make, self.comm)

    def compare(self, trainer: Trainer, facts: Mapping[str, Any]) -> None:
        tensors = [(f"{k or ''}{n}", t) for k, m in enumerate(trainer.all_modules) for n, t in tensors_of(m).items()]
        every = self.comm.gather({**facts, "model": {n: f"{str(t.dtype)[6:]}{list(t.shape)}" for n, t in tensors}})
        by_leader(self.comm, lambda: compare(dict(enumerate(every or []))))
        self.team.begin(trainer.all_modules)

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed if self._certain else as_long_as_any(feed, self.comm):
            self.team.rows += batch.rows
            if not self.strategy.joint:
                batch.total = batch.rows  # the update is this worker's own
            yield batch

    def begin(self, at: TrainState, handed: Handed | None) -> None:
        super().begin(at, handed)
        for name, source in at.info.scored.items():
            if not (source.shards or source.thread_safe):
                source.compare_batch = SameBatchCheck(self.comm, f"{name} data", first=True)
        self._measures = self.strategy.shares_updates and bool(at.replica().statistics)

    def updated(self, at: TrainState, batch: Batch) -> None:
        if not self.strategy.shares_updates:  # else it was reported where the update was computed
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

    def trained(self, sums: LossSums, metrics: MetricsByOutput) -> Report:
        started = self.strategy.started  # until then all workers do the same
        workers = range(self.comm.count if started else 1)
        joint = started and self.strategy.joint  # of updates that they make together, everybody knows the losses
        losses, scores, self.rates = self.team.added_up(sums, metrics, workers, joint, self.team.rate())
        return losses, scores

    def keeps(self, info: Info, common: bool) -> bool:
        """Worker 0 decides for all which steps are the best, at steps where all workers report."""
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

    def report_error(self, error: BaseException) -> None:
        self.comm.report_error(error)

    def _own_state(self, at: TrainState) -> Own:
        own = super()._own_state(at)
        if not self._idle and not self.strategy.joint and not self.comm.leader:
            own["optimizers"] = at.optimizers()
        return own

    def _owns(self, own: Own) -> list[Own] | None:
        return self.comm.gather(own)


@dataclass(frozen=True, slots=True)
class Votes:
    """What at least one worker wants."""

    stop: bool
    leave: bool
    save: bool


class StopVote:
    """Lets all workers agree to stop, to leave or to save: each gives numbers, and all get the largest.

    A vote that begins at one step ends some steps later, so that nobody waits for it; how many follows from the time
    that a step is reported to take, and is the same for all.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._steps = self._left = 1
        self._since = comm.now()
        self._under_way: tuple[Pending, Tensor] | None = None

    def __call__(self, stop: bool, leave: bool, save: bool, now: bool) -> Votes | None:
        """Adds this worker's requests to the next vote; returns the result of a vote that ends at this step.

        A request is repeated at every call until a vote contains it. With `now`, a vote begins and ends at this step.
        """
        if now:
            self._finish_vote()
            self._begin(stop, leave, save)
            return self._finish_vote()
        self._left -= 1
        if self._left > 0:
            return None
        votes = self._finish_vote()
        if votes is None or not (votes.stop or votes.leave):  # else this was the last one
            saved = votes is not None and votes.save
            self._begin(stop, leave, save and not saved)
        return votes

    def _begin(self, stop: bool, leave: bool, save: bool) -> None:
        now = self._comm.now()
        vector = torch.tensor([stop, leave, save, now - self._since], dtype=torch.float32)
        self._since, self._left = now, self._steps
        self._under_way = self._comm.start(vector, "max"), vector

    def _finish_vote(self) -> Votes | None:
        if self._under_way is None:
            return None
        (pending, vector), self._under_way = self._under_way, None
        pending.wait()
        stop, leave, save, seconds = vector.tolist()
        if seconds < VOTE_S / 2:
            self._steps = min(MOST_STEPS, 2 * self._steps)
        elif seconds > 2 * VOTE_S:
            self._steps = max(1, self._steps // 2)
        return Votes(bool(stop), bool(leave), bool(save))


def as_long_as_any(feed: Iterable[Batch], comm: Comm) -> Iterator[Batch]:
    """The batches of sources of one's own that shard: a worker that has none is given an empty one while others have.

    An epoch ends for all where the last of them ends it.
    """
    left, cursor, ended = iter(feed), None, False
    while True:
        batch = None if ended else next(left, None)
        ended = batch is None or batch.ends_epoch
        vector = torch.tensor([0 if batch is None else batch.total, int(not ended)])
        comm.all_reduce(vector, "max")
        total, ends = int(vector[0]), not vector[1]
        if not total:
            return
        if batch is None:
            batch = Batch({}, 0, total=total, cursor=cursor)
        cursor, batch.ends_epoch = batch.cursor, ends
        yield batch
        if ends:
            return


class SharedCheckpointer(Checkpointer):
    """Worker 0's checkpointer, seen by all workers."""

    def __init__(self, make: Callable[[], Checkpointer], comm: Comm) -> None:
        self._comm, self._asks = comm, False
        self._own = make()
        self.keeps, self.every = self._own.keeps, self._own.every
        if not comm.leader:
            self._own = Checkpointer()

    def choose(self, model: nn.Module, settings: config.Config) -> None:
        def chosen() -> str | None:
            self._own.choose(model, settings)
            return None if self._own.path is None else str(self._own.path)

        path = by_leader(self._comm, chosen)
        self.path = None if path is None else Path(path)

    def __enter__(self) -> SharedCheckpointer:
        by_leader(self._comm, lambda: self._own.__enter__() and None)
        if not self._comm.leader:
            self._own.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._own.__exit__(*error)

    def find(self, model: nn.Module, settings: config.Config, limits: config.Config) -> State | None:
        owns: list[Own] = []

        def found() -> dict[str, Any] | None:
            nonlocal owns
            state = self._own.find(model, settings, limits)
            if state is None:
                return None
            owns, state.owns = state.owns, []
            return {part.name: getattr(state, part.name) for part in fields(state)} | {"owners": len(owns)}

        told = by_leader(self._comm, found)
        if told is None:
            return None
        owners = told.pop("owners")
        state = State(**told)
        if owners != self._comm.count:
            state.owns = self._comm.share(owns)
            return state
        mine = self._comm.hand_out(owns)  # everybody gets what is its own, and nothing else
        state.owns = [mine if k == self._comm.shard.index else {} for k in range(self._comm.count)]
        return state

    def begin(self, info: Info, nbytes: int) -> None:
        def begun() -> list[dict[str, Any]]:
            self._own.begin(info, nbytes)
            return info.history.rows[-1:]

        info.history.rows[-1:] = by_leader(self._comm, begun)  # with what was reported after the last checkpoint

    def started(self, info: Info, data: str) -> None:
        by_leader(self._comm, lambda: self._own.started(info, data))

    def due(self, info: Info) -> bool:
        every = self.every if self.keeps else None
        by_clock = every is None or every.unit == "minutes"
        self._asks = by_clock and self.keeps and self._comm.leader and self._own.due(info)
        return every is not None and not by_clock and every.fires(info.counters)

    def overdue(self) -> bool:
        return self._asks

    def wait(self) -> None:
        by_leader(self._comm, self._own.wait)

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        self._own.report(row, minutes)

    def save(self, state: State | None, info: Info, again: bool = False) -> None:
        if state is not None:
            self._own.save(state, info, again)

    def mark_best(self, model: nn.Module) -> None:
        if self._comm.leader:
            self._own.mark_best(model)

    def restore(self, best: Best, model: nn.Module) -> None:
        by_leader(self._comm, lambda: self._own.restore(best, model))

    def log(self, text: str) -> None:
        self._own.log(text)

    def end(self, why: str) -> None:
        by_leader(self._comm, lambda: self._own.end(why))
