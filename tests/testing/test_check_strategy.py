"""The kit for strategies knows good ones, and names the promise that a bad one breaks."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from kit.check_strategy import PROMISES, check_strategy
from kit.sampled import sampled
from torch import Tensor
from torch.optim import Adam

from headrace import BlockMomentum, DiLoCo, Elastic, Periodic, Strategy, Synchronous
from headrace.arena.arena import Arena
from headrace.arena.replica import Replica
from headrace.length import Counters
from headrace.workers.comm import Comm, largest, mean

State = Mapping[str, Any]

GOOD: dict[str, Callable[[], Strategy]] = {
    "synchronous": Synchronous,
    "mean": lambda: Periodic("3 steps"),
    "each epoch, alike": lambda: Periodic("1 epoch", weights="equal"),
    "at the end": lambda: Periodic("end"),
    "samples": lambda: Periodic("20 samples", reset_inner=True),
    "outer Adam": lambda: Periodic("3 steps", outer=partial(Adam, lr=0.01)),
    "block momentum": lambda: BlockMomentum("3 steps"),
    "diloco": lambda: DiLoCo("3 steps"),
    "elastic": lambda: Elastic("3 steps"),
    "dislib's merge": lambda: Elastic("2 steps", alpha=0.5, take_center=True),
}


@pytest.mark.slow
def test_a_good_strategy_keeps_its_promises() -> None:
    report = check_strategy(Mean, workers=(2,))
    assert set(report.checked) == set(PROMISES) - {"joint", "alone", "workers"}


@pytest.mark.slow
def test_a_good_strategy_keeps_its_promises_with_another_number_of_workers() -> None:
    holds(Mean, {"joint", "alone"}, workers=(1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(GOOD, keep=["synchronous", "elastic"], of=3))
def test_every_strategy_keeps_its_promises(name: str) -> None:
    strategy = GOOD[name]()
    center = {"agree", "agreed", "buffers"} if strategy.centered else set[str]()
    holds(GOOD[name], center | (set() if strategy.joint else {"joint", "alone"}), workers=(1, 2, 3, 5))


def holds(make: Callable[[], Strategy], not_of: set[str], workers: Sequence[int]) -> None:
    """All promises are checked but those that strategies of its kind do not make."""
    report = check_strategy(make, workers=workers)
    assert set(report.checked) == set(PROMISES) - not_of
    assert set(report.skipped) == not_of


# --- a strategy of one's own, and how it can be broken ---------------------------------------------------


class Mean(Strategy):
    """The mean by rows, every three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.start = 0, list[Tensor]()

    def begin(self, replica: Replica) -> None:
        self.rows, self.start = 0, [tensor.clone() for tensor in replica.tensors]

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        self.rows += rows
        if counters.steps % 3:
            return False
        self.merge(replica)
        self.begin(replica)
        return True

    def merge(self, replica: Replica) -> None:
        replica.write(self.consensus(replica))
        largest(self.comm, replica.counts)

    def consensus(self, replica: Replica) -> list[Tensor]:
        return mean(self.comm, replica.tensors, self.rows)

    def state_dict(self, replica: Replica) -> dict[str, Any]:
        return {"start": replica.by_name(self.start)}

    def own_state(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, replica: Replica, state: State, own: State | None) -> None:
        self.begin(replica)
        if own is not None:
            self.rows, self.start = own.get("rows", 0), replica.joined(state["start"])


class Deaf(Mean):
    def join(self, comm: Comm) -> None:
        pass


class Clocked(Mean):
    def consensus(self, replica: Replica) -> list[Tensor]:
        return [tensor + time.perf_counter_ns() % 997 * 1e-5 for tensor in super().consensus(replica)]


class OwnStatistics(Mean):
    def consensus(self, replica: Replica) -> list[Tensor]:
        return [*mean(self.comm, replica.values, self.rows), *replica.statistics]


class OwnCounters(Mean):
    def merge(self, replica: Replica) -> None:
        replica.write(self.consensus(replica))


class VectorsOnly(Mean):
    def consensus(self, replica: Replica) -> list[Tensor]:
        found = super().consensus(replica)
        return [own if own.dim() == 0 else common for own, common in zip(replica.tensors, found, strict=True)]


class Boaster(Mean):
    def after(self, *args: Any, **options: Any) -> bool:
        super().after(*args, **options)
        return True


class Loner(Mean):
    def consensus(self, replica: Replica) -> list[Tensor]:
        return replica.tensors


class Stubborn(Mean):
    def merge(self, replica: Replica) -> None:
        replica.write(self.start)
        largest(self.comm, replica.counts)

    def consensus(self, replica: Replica) -> list[Tensor]:
        return self.start


class Partial(Mean):
    def merge(self, replica: Replica) -> None:
        replica.write(super().consensus(replica))
        largest(self.comm, replica.counts)

    def consensus(self, replica: Replica) -> list[Tensor]:
        return super().consensus(replica)[: len(replica.values)]


class Disagreed(Mean):
    """At the end of a round as all others; whoever asks before is told something of one's own."""

    def after(self, *args: Any, **options: Any) -> bool:
        self.ends = args[1].steps == 6
        return super().after(*args, **options)

    def merge(self, replica: Replica) -> None:
        replica.write(super().consensus(replica))
        largest(self.comm, replica.counts)

    def consensus(self, replica: Replica) -> list[Tensor]:
        found = super().consensus(replica)
        return found if self.ends else [tensor + self.comm.shard.index for tensor in found]


class Tuples(Mean):
    def own_state(self) -> dict[str, Any]:
        return {"rows": self.rows, "shard": (self.comm.shard.index, self.comm.count)}


class Touchy(Mean):
    def own_state(self) -> dict[str, Any]:
        rows, self.rows = self.rows, 0
        return {"rows": rows}


class AskedEarly(Mean):
    """Whoever saves it before the first update makes it count wrong."""

    def after(self, *args: Any, **options: Any) -> bool:
        self.begun = True
        return super().after(*args, **options)

    def state_dict(self, replica: Replica) -> dict[str, Any]:
        self.rows += 0 if getattr(self, "begun", False) else 100
        return super().state_dict(replica)


class ForgetsRows(Mean):
    def own_state(self) -> dict[str, Any]:
        return {}


class ForgetsOuter(DiLoCo):
    def load_state_dict(self, replica: Replica, state: State, own: State | None) -> None:
        self.begin(replica)
        if own is not None:
            self._start.load(state["start"])
            self._rows, self._total = own["rows"], own["total"]


class NoStart(Mean):
    def state_dict(self, replica: Replica) -> dict[str, Any]:
        return {}

    def load_state_dict(self, replica: Replica, state: State, own: State | None) -> None:
        self.begin(replica)
        self.rows = 0 if own is None else own["rows"]


class LiveStart(Mean):
    def begin(self, replica: Replica) -> None:
        self.rows, self.start = 0, replica.tensors


class OnlyAsMany(Mean):
    def load_state_dict(self, replica: Replica, state: State, own: State | None) -> None:
        assert own is not None
        super().load_state_dict(replica, state, own)


class LeaderAlone(Mean):
    def consensus(self, replica: Replica) -> list[Tensor]:
        return super().consensus(replica) if self.comm.leader else replica.tensors


class Failing(Mean):
    def merge(self, replica: Replica) -> None:
        raise ZeroDivisionError("no rows")


class MeanOfMeans(Strategy):
    """Gradients of each part's own mean, averaged alike: right only where parts are of one size."""

    joint: ClassVar[bool] = True

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        for vector in arena.vectors:
            self.comm.all_reduce(vector.gradients)
            vector.gradients /= self.comm.count
        for param in arena.loose:
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
            self.comm.all_reduce(param.grad)
            param.grad /= self.comm.count
        self.comm.all_reduce(numbers)
        return [True] * len(reached), numbers


class Rounded(Synchronous):
    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        replica.write([value * (1 + 1e-7) for value in replica.values])
        return True


class Uneven(Mean):
    """Almost the same on all workers."""

    def merge(self, replica: Replica) -> None:
        found = self.consensus(replica)
        replica.write([tensor * (1 + 1e-7 * self.comm.shard.index) for tensor in found])
        largest(self.comm, replica.counts)


class Weightless(Elastic):
    """Brings the center nothing."""

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        torch._foreach_copy_(worker, center)


class ForgetsRowsOfCenter(Elastic):
    def state_dict(self, replica: Replica) -> dict[str, Any]:
        found = super().state_dict(replica)
        return {**found, "leases": {**found["leases"], "next": 0, "free": [], "out": []}} if found else {}


ONLY = Mean()

BROKEN: list[tuple[Callable[[], Any], str, str, tuple[int, ...]]] = [
    (lambda: None, "calls", "expected a Strategy, got NoneType", (2,)),
    (lambda: ONLY, "calls", "a new strategy at every call", (2,)),
    (LeaderAlone, "calls", "2 workers: training raised", (2,)),
    (Failing, "calls", "ZeroDivisionError: no rows", (2,)),
    (Clocked, "same", "the same weights", (2,)),
    (Deaf, "rows", "25 rows, each used 1 times", (2,)),
    (Boaster, "agree", "after step 1", (2,)),
    (Loner, "agree", "after step 3", (2,)),
    (VectorsOnly, "agree", "'scale' of workers 0 and 1", (2,)),
    (Uneven, "agree", "after step 3", (2,)),
    (OwnStatistics, "buffers", "'norm.running_mean' of workers 0 and 1", (2,)),
    (OwnCounters, "buffers", "'norm.num_batches_tracked' of workers 0 and 2", (3,)),
    (Stubborn, "learns", "expected a loss below", (2,)),
    (Rounded, "alone", "1 worker, beside none", (1,)),
    (MeanOfMeans, "joint", "weights within 1e-06 of those of one", (2,)),
    (Tuples, "state", "'strategy/own_state/shard' holds (0, 2)", (2,)),
    (Partial, "agreed", "shapes of agreed()", (1,)),
    (Disagreed, "agreed", "another on worker 1", (3,)),
    (Touchy, "asking", "asked for state_dict, own_state and agreed", (2,)),
    (AskedEarly, "saving", "saved after every step", (2,)),
    (ForgetsRows, "restore", "stopped after step", (2,)),
    (partial(ForgetsOuter, "3 steps"), "restore", "stopped after step", (2,)),
    (NoStart, "workers", "KeyError: 'start'", (1, 2)),
    (LiveStart, "workers", "expected 'scale' as after step", (1, 2)),
    (OnlyAsMany, "workers", "taken up by", (1, 2)),
    (partial(Weightless, "3 steps"), "learns", "expected a loss below", (2,)),
    (partial(ForgetsRowsOfCenter, "3 steps"), "restore", "stopped after step", (2,)),
]
FIRST = {case[1]: case for case in reversed(BROKEN)}
"""One for every promise."""


@pytest.mark.parametrize(
    ("make", "promise", "said", "workers"),
    sampled(BROKEN, keep=list(FIRST.values()), of=4),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_strategy_is_named_by_the_promise_that_it_breaks(
    make: Callable[[], Any], promise: str, said: str, workers: tuple[int, ...]
) -> None:
    with pytest.raises(AssertionError) as error:
        check_strategy(make, workers=workers)
    assert f"broke the promise {promise!r}: {PROMISES[promise]}" in str(error.value)
    assert said in str(error.value)


def test_every_promise_can_be_broken() -> None:
    assert {promise for _, promise, _, _ in BROKEN} == set(PROMISES)
