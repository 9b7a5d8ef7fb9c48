"""What differs between one worker and several in a training; this is the one for a worker alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arena.replica import Replica
from ..data.batch import Batch
from ..data.source import Source
from ..errors import CheckpointError
from ..length import Counters, Length
from ..loss.by_output import MetricsByOutput
from ..loss.outcome import LossSums
from ..step.signals import Signals
from ..step.team import Team
from ..watch.info import Info
from ..workers.strategy import Single
from .checkpointer import Checkpointer
from .state import Own, State
from .train_state import Handed, TrainState

if TYPE_CHECKING:
    from .trainer import Trainer

Report = tuple[dict[str, float], dict[str, Any]]
"""Losses and metrics by name."""


class Coordinator:
    """Coordinates a worker with itself; the base of those for several workers."""

    leads = True
    """Whether this worker scores, and calls the user's callbacks."""
    leased = False
    """Whether a center lends out the data, and counts epochs and samples."""
    alone = True
    """Whether there is nobody to agree with about when to stop."""
    epoch_rows: int | None = None
    """Rows of an epoch, where a center counts them."""

    def __init__(self, team: Team) -> None:
        self.team, self.strategy, self.comm = team, team.strategy, team.comm
        self._agrees = True  # whether all workers have the same weights
        self.rates: list[float] = []
        """Rows a second of each worker, as of the last report."""

    @property
    def _idle(self) -> bool:
        """Whether the strategy has nothing to do, or not yet."""
        return type(self.strategy) is Single or not self.strategy.started

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        """The training data as this worker reads them, whose updates have so many rows."""
        return train

    def checkpointer(self, make: Callable[[], Checkpointer]) -> Checkpointer:
        """What keeps the training."""
        return make()

    def compare(self, trainer: Trainer, facts: Mapping[str, Any]) -> None:
        """Before anything else: raises unless these facts about the training are the same for all."""

    def handed(self, state: State) -> Handed:
        """A state to go on from, with what is this worker's of it."""
        self._check_kind(state)
        if not self._is_same(state):
            return self._to_another_strategy(state)
        if len(state.owns) == self.comm.count:
            return self._to_the_same_workers(state)
        return self._to_other_workers(state)

    def _to_the_same_workers(self, state: State) -> Handed:
        """As many workers go on, each where it was."""
        owns, here = state.owns, self.comm.shard.index
        mine = owns[here]
        if here:  # worker 0's are the step's own
            state = replace(state, step=state.step | {p: mine[p] for p in ("optimizers", "microbatch") if p in mine})
        return self._with(state, [mine] if state.strategy is not None else owns[: 0 if here else 1], mine)

    def _to_other_workers(self, state: State) -> Handed:
        """Another number of workers goes on: together where all know the same, else from the round's beginning."""
        if not self.strategy.joint:
            return self._with(_anew(state), [])
        found = self._with(state, self._held_by_leader(state))
        if state.strategy is not None:  # every worker knows the losses of all
            found = replace(found, sums=[state.owns[0]["tally"]])
        return found

    def _to_another_strategy(self, state: State) -> Handed:
        """Another strategy goes on with the weights that all had agreed on, from where they were."""
        held = self._held_by_leader(state)
        return self._with(replace(state, strategy=None, agrees=None), held)

    def _held_by_leader(self, state: State) -> list[Own]:
        """The states that worker 0 goes on from: those of all workers, or its own where no strategy had begun."""
        if self.comm.shard.index:
            return []
        return state.owns[:1] if state.strategy is None else [own for own in state.owns if own]

    def _with(self, state: State, held: Sequence[Own], mine: Own | None = None) -> Handed:
        here, trained = self.comm.shard.index, [own["trained"] for own in state.owns if "trained" in own]
        kept = mine["trained"] if mine is not None and trained else mean_of(trained) if trained else None
        return Handed(
            state=state,
            mine=mine,
            rng=state.owns[here].get("rng") if here < len(state.owns) else None,
            sums=[own["tally"] for own in held],
            metrics=[own["metrics"] for own in held],
            trained=kept,
        )

    def begin(self, at: TrainState, handed: Handed | None) -> None:
        """The training begins, or goes on from a state; the model has its weights."""
        self.strategy.started = self._is_warm(at)
        replica = at.replica()
        if handed is not None and handed.trained is not None:
            self._put_back(replica, handed.trained)
        if self._idle:
            return
        self.strategy.begin(replica)
        if handed is None or handed.state.strategy is None:
            at.mark_round()
            return
        mine = handed.mine
        if mine is not None:
            self._put_back(replica, mine)
        self.strategy.load_state_dict(replica, handed.state.strategy, None if mine is None else mine["strategy"])
        self._agrees = mine is None or bool(handed.state.agrees)

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of an epoch, as many for every worker."""
        yield from feed

    def progress(self, info: Info) -> Counters:
        """How far the training has come, for schedules."""
        return info.counters

    def updated(self, at: TrainState, batch: Batch) -> None:
        """An update was made of this batch: perhaps the workers agree on their weights now."""
        if self._idle:
            return
        info = at.info
        self._agrees = self.strategy.after(at.replica(), info.counters, batch.rows, batch.samples, info.ends_epoch)
        if self._agrees and not self.strategy.joint:
            at.mark_round()

    def decide(self, info: Info, asked: Signals, due: bool, now: bool) -> bool:
        """What a worker wants, all do: to stop, to be preempted, to save. Whether to save; it may take effect later.

        `now`: all workers have come to where something is due, and decide at once.
        """
        return due

    def trained(self, sums: LossSums, metrics: MetricsByOutput) -> Report:
        """Losses and metrics over what was trained since the last report."""
        return sums.read(), metrics.compute()

    def has_more_rows(self, info: Info) -> bool:
        """All rows have been used: whether more is known than was reported."""
        return False

    def starts(self, at: TrainState) -> bool:
        """Whether the workers, who have made all updates by themselves so far, now begin to work together."""
        if self.strategy.started or not self._is_warm(at):
            return False
        self._start(at)
        self.begin(at, None)
        return True

    def state(self, at: TrainState) -> State | None:
        """The state of the training, with what is each worker's own, for the worker who saves it."""
        agreed = at.named(self._result(at)) if self._apart(at) else {}
        owns = self._owns(self._own_state(at))
        if owns is None:
            return None
        found = at.state(agreed, owns)
        if not self._idle:
            found.strategy = self.strategy.state_dict(at.replica())
            found.kind, found.agrees = type(self.strategy).__name__, self._agrees
        return found

    @contextmanager
    def agreed(self, at: TrainState) -> Iterator[None]:
        """For a while, the model has the weights to judge and to keep: see `_result`."""
        if not self._apart(at):
            yield
            return
        with _changed(at, self._result(at)):
            yield

    def finish(self, at: TrainState) -> None:
        """All is saved: the model becomes the common result, for good."""
        if self._apart(at):
            at.replica().write(self._result(at))
            self._agrees, at.info.evaluated_weights = True, None

    def _apart(self, at: TrainState) -> bool:
        """Whether the weights to judge and to keep are others than the model's own."""
        return not self._agrees or at.info.evaluated_weights is not None

    def _result(self, at: TrainState) -> Sequence[Tensor]:
        """The weights to judge and to keep: averages if a callback gives some, else what the workers have agreed on."""
        averages = at.info.evaluated_weights
        if averages is None:
            return self.strategy.agreed(at.replica())
        if self._agrees:
            return averages
        with _changed(at, averages):
            return [tensor.clone() for tensor in self.strategy.agreed(at.replica())]

    def keeps(self, info: Info, common: bool) -> bool:
        """Whether the weights of this step are to be kept; `common`: all workers have come to where they report."""
        return any(info.step in mark.keep for mark in info.marks.values())

    def report_error(self, error: BaseException) -> None:
        """This worker ends because of an error."""

    def _is_same(self, state: State) -> bool:
        """Whether a state was saved under this kind of strategy, or before any began."""
        return state.kind in (None, type(self.strategy).__name__)

    def _check_kind(self, state: State) -> None:
        """Raises where the rows that were used are known to a center, or would have to be."""
        if self.leased != ("ledger" in (state.strategy or {})):
            raise CheckpointError(
                f"the run was saved under {state.kind or 'no strategy with a center'} and cannot be gone on with "
                f"under {type(self.strategy).__name__}: one has a center that lends the data, the other has none. "
                "Begin another run from its weights: hr.load_weights."
            )

    def _is_warm(self, at: TrainState) -> bool:
        """Whether the time is over in which every worker makes all updates by itself."""
        return self.strategy.start_after is None or self.strategy.start_after.reached(at.info.counters)

    def _start(self, at: TrainState) -> None:
        """The time is over: all get the same weights."""

    def _own_state(self, at: TrainState) -> Own:
        own, replica = at.own_state(), at.replica()
        if not self._idle:
            own["strategy"] = self.strategy.own_state()
        if self._apart(at):
            # what is kept are averages: the weights that are trained stay beside them
            part = own if at.info.evaluated_weights is None else own.setdefault("trained", {})
            part |= {"weights": at.named(replica.tensors), "counts": replica.counts}
        return own

    @staticmethod
    def _put_back(replica: Replica, mine: Own) -> None:
        """The weights of this worker's own, if it had others than all."""
        if "weights" in mine:
            replica.write(replica.joined(mine["weights"]))
            for count, saved in zip(replica.counts, mine["counts"], strict=True):
                count.copy_(saved)

    def leave(self) -> None:
        """This worker's part in the training is over, however it has ended."""

    def _owns(self, own: Own) -> list[Own] | None:
        """What every worker has of its own, for the one who saves it."""
        return [own]


@contextmanager
def _changed(at: TrainState, tensors: Sequence[Tensor]) -> Iterator[None]:
    """For a while, the model has these weights."""
    replica = at.replica()
    own = [tensor.clone() for tensor in replica.tensors]
    replica.write(tensors)
    try:
        yield
    finally:
        at.replica().write(own)


def _anew(state: State) -> State:
    """A state that another number of workers goes on from: where all had the same weights for the last time."""
    optimizers = [own["optimizers"] for own in state.owns if "optimizers" in own]
    if optimizers:
        state = replace(state, step=state.step | {"optimizers": mean_of([state.step["optimizers"], *optimizers])})
    if state.agrees is False:
        assert state.strategy is not None
        began, start = state.round, state.strategy["start"]
        state = replace(
            state,
            model={name: start.get(name, value) for name, value in state.model.items()},
            source=state.source | {"cursor": began["cursor"]},
            counters=began["counters"],
            place=began["place"],
            rates=began["rates"],
            done=[],
            complete=True,
        )
    return state


def mean_of(values: Sequence[Any]) -> Any:
    """Nested states as one: of numbers with fractions in tensors the mean, of all else the first."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: mean_of([value[key] for value in values if key in value]) for key in first}
    if isinstance(first, Tensor) and first.is_floating_point():
        return torch.stack([value.double() for value in values]).mean(dim=0).to(first.dtype)
    return first
