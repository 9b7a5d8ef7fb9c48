"""What the workers of one training settle among themselves; one worker alone settles everything by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..arena.replica import Replica
from ..data.batch import Batch
from ..data.source import Source
from ..errors import CheckpointError, ConfigError
from ..length import Counters, Length
from ..loss.loss_sums import LossSums
from ..loss.metrics import Metrics
from ..step.config import differences
from ..step.signals import Signals
from ..step.team import Team
from ..step.trainable import Trainable
from ..watch.info import Info
from ..workers.strategy import Single
from .checkpointer import Checkpointer, State
from .train_state import TrainState

Report = tuple[dict[str, float], dict[str, Any]]
"""Losses and metrics by name."""


class Coordinator:
    """A worker alone, and what is the same with several."""

    leads = True
    """Whether this worker scores, calls the user's callbacks, and knows what is to be known."""
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

    def compare(self, trainer: Trainable, facts: Mapping[str, Any]) -> None:
        """Before anything else: raises unless these facts about the training are the same for all."""

    def handed(self, state: State) -> State:
        """A state to go on from, with what is this worker's of it: tallies, metrics, random numbers, and `mine`."""
        owns, here, joint = state["owns"], self.comm.shard.index, self.strategy.joint
        self._check_kind(state)
        alike = len(owns) == self.comm.count and self._is_same(state)
        mine: State = owns[here] if here < len(owns) else {}
        held = [mine] if alike else [] if here else [own for own in owns if own]  # of some, perhaps only its own
        if "strategy" not in state:  # each had done the same, and worker 0 tells of it
            held = owns[: 0 if here else 1]
        state = state | {"mine": mine if alike else None, "rng": mine.get("rng")}
        if not self._is_same(state):
            state = {part: value for part, value in state.items() if part not in ("strategy", "agrees")}
            joint = True  # it goes on with the weights that all had agreed on, from where it was
        if not alike and not joint:
            state, held = _anew(state), []
        for part in ("optimizers", "microbatch") if alike and here else ():  # worker 0's are the step's own
            if part in mine:
                state["step"] = state["step"] | {part: mine[part]}
        trained = [own["trained"] for own in owns if own and "trained" in own]
        state["trained"] = (mine["trained"] if alike else mean_of(trained)) if trained else None
        tallies = [own["tally"] for own in held]
        if joint and not alike and "strategy" in state:  # every worker knows them all
            tallies = [owns[0]["tally"]]
        return state | {"tallies": tallies, "metrics": [own["metrics"] for own in held]}

    def begin(self, at: TrainState, state: State | None) -> None:
        """The training begins, or goes on from a state; the model has its weights."""
        self.strategy.started = self._is_warm(at)
        replica = at.replica()
        if state is not None and state["trained"] is not None:
            self._put_back(replica, state["trained"])
        if self._idle:
            return
        self.strategy.begin(replica)
        if state is None or "strategy" not in state:
            at.mark_round()
            return
        mine = state["mine"]
        if mine is not None:
            self._put_back(replica, mine)
        self.strategy.load_state_dict(replica, state["strategy"], None if mine is None else mine["strategy"])
        self._agrees = mine is None or bool(state["agrees"])

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

    def trained(self, tally: LossSums, metrics: Metrics) -> Report:
        """Losses and metrics over what was trained since the last report."""
        return tally.read(), metrics.compute()

    def has_scored(self) -> None:
        """Data were scored: the time that it took is no time of the training."""

    def last_news(self, info: Info) -> bool:
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
        found = at.state_dict(agreed) | {"owns": owns}
        if self._idle:
            return found
        kind = type(self.strategy).__name__
        return found | {"strategy": self.strategy.state_dict(at.replica()), "kind": kind, "agrees": self._agrees}

    @contextmanager
    def agreed(self, at: TrainState) -> Iterator[None]:
        """For a while, the model is what all workers together think that it should be."""
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
        """Whether the model should be something else than it is."""
        return not self._agrees or at.info.evaluated_weights is not None

    def _result(self, at: TrainState) -> Sequence[Tensor]:
        """What all workers together think that the model should be, or whoever watches the training."""
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

    def tell(self, error: BaseException) -> None:
        """This worker ends because of an error."""

    def _is_same(self, state: State) -> bool:
        """Whether a state was saved under this kind of strategy, or before any began."""
        kind = type(self.strategy).__name__
        return bool(state.get("kind", kind) == kind)

    def _check_kind(self, state: State) -> None:
        """Raises where the rows that were used are known to a center, or would have to be."""
        if self.leased != ("ledger" in state.get("strategy", {})):
            raise CheckpointError(
                f"the run was saved under {state.get('kind', 'no strategy with a center')} and cannot be gone on with "
                f"under {type(self.strategy).__name__}: one has a center that lends the data, the other has none. "
                "Begin another run from its weights: hr.load_weights."
            )

    def _is_warm(self, at: TrainState) -> bool:
        """Whether the time is over in which every worker makes all updates by itself."""
        return self.strategy.start_after is None or self.strategy.start_after.reached(at.info.counters)

    def _start(self, at: TrainState) -> None:
        """The time is over: all get the same weights."""

    def _own_state(self, at: TrainState) -> State:
        own, replica = at.own_state(), at.replica()
        if not self._idle:
            own["strategy"] = self.strategy.own_state()
        if self._apart(at):
            # what is kept are averages: the weights that are trained stay beside them
            part = own if at.info.evaluated_weights is None else own.setdefault("trained", {})
            part |= {"weights": at.named(replica.tensors), "counts": replica.counts}
        return own

    @staticmethod
    def _put_back(replica: Replica, mine: State) -> None:
        """The weights of this worker's own, if it had others than all."""
        if "weights" in mine:
            replica.write(replica.joined(mine["weights"]))
            for count, saved in zip(replica.counts, mine["counts"], strict=True):
                count.copy_(saved)

    def leave(self) -> None:
        """This worker's part in the training is over, however it has ended."""

    def _owns(self, own: State) -> list[State] | None:
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
    optimizers = [own["optimizers"] for own in state["owns"] if "optimizers" in own]
    if optimizers:
        state["step"] = state["step"] | {"optimizers": mean_of([state["step"]["optimizers"], *optimizers])}
    if not state.get("agrees", True):
        began, start = state["round"], state["strategy"]["start"]
        state["model"] = {name: start.get(name, value) for name, value in state["model"].items()}
        state["source"] = state["source"] | {"cursor": began["cursor"]}
        state |= {"counters": began["counters"], "place": began["place"], "done": [], "complete": True}
        state["rates"] = began.get("rates", state["rates"])  # 0.1.0 kept none for the round
    return state


def mean_of(values: Sequence[Any]) -> Any:
    """Nested states as one: of numbers with fractions in tensors the mean, of all else the first."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: mean_of([value[key] for value in values if key in value]) for key in first}
    if isinstance(first, Tensor) and first.is_floating_point():
        return torch.stack([value.double() for value in values]).mean(dim=0).to(first.dtype)
    return first


def compare(facts: Mapping[int, Mapping[str, Any]]) -> None:
    """Raises unless these workers, known by number, are all to do the same as worker 0."""
    for number, other in facts.items():
        if found := differences(facts[0], other, between=("for worker 0", f"for worker {number}")):
            listed = "\n  ".join(found[:8])
            raise ConfigError(
                f"worker {number} is to do something else than worker 0:\n  {listed}\n"
                "Give every worker the same model, data and settings."
            )
