"""Every strategy keeps the promises of strategies, and one that breaks a promise is noticed."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from kit.sampled import sampled
from kit.small_training import (
    COUNTER,
    EPOCHS,
    PARAMETER,
    ROWS,
    STATISTIC,
    Make,
    Moment,
    SmallTraining,
    Trace,
    Weights,
    bits_of,
    kind_of,
    loss_of,
)
from torch import Tensor
from torch.optim import Adam

from headrace import BlockMomentum, DiLoCo, Elastic, Periodic, Strategy, Synchronous
from headrace.arena.arena import Arena
from headrace.arena.replica import Replica
from headrace.length import Counters
from headrace.store.checkpoints import Store
from headrace.store.codec import encode
from headrace.workers.comm import Comm, largest, mean

State = Mapping[str, Any]
CLOSE = 1e-6  # how near several workers come to one whose updates they share

PROMISES = {
    "same": "the same training gives the same bits, time after time",
    "rows": "an epoch uses every row once, however unevenly the workers share it",
    "agree": "where `after` says that all workers agree, and when all is over, they have the same weights",
    "buffers": "they agree on buffers too: on statistics, and on counters where a round ends",
    "learns": "the loss is less afterwards",
    "alone": "one worker that shares every update trains as without a strategy, to the bit",
    "joint": "workers that share every update make those that one makes of whole batches, to 1e-6",
    "state": "its state is plain JSON values and tensors",
    "agreed": "`consensus` gives the same tensors on all workers, like those of the replica",
    "asking": "to be asked for its state and for what all agree on changes nothing",
    "saving": "to be saved after every step changes nothing",
    "restore": "stopped after any step, as many workers go on to the same bits",
    "workers": "another number of workers goes on from where all agreed for the last time, with the rows left then",
}


def holds(promise: str, kept: bool, where: str) -> None:
    if not kept:
        raise AssertionError(f"{promise}: {PROMISES[promise]}. Not so: {where}")


def traces_of(training: SmallTraining, promise: str) -> list[Trace]:
    """A small training; what goes wrong in it breaks a promise."""
    try:
        return training()
    except Exception as error:
        raise AssertionError(f"{promise}: {error!r}") from error


def check(make: Make, workers: Sequence[int]) -> None:
    """Trains with each of these numbers of virtual workers; an error begins with the promise that is broken."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as room:
        for count in workers:
            probe, training = make(), SmallTraining(make, count)
            traces = traces_of(training, "same")
            holds("same", alike(traces, traces_of(training, "same")), f"{count} workers")
            check_rows(probe, traces)
            if probe.joint:
                check_joint(training, traces)
            if not probe.centered:
                check_agreement(probe, traces)
            holds("learns", loss_of(traces[0].end) < loss_of(traces[0].start), f"{count} workers")
            check_asking(probe, training, traces)
            others = [other for other in workers if other != count]
            check_saving(probe, replace(training, run=Path(room) / f"of-{count}"), traces, others)


def alike(one: Iterable[Trace], other: Iterable[Trace]) -> bool:
    """Whether every update, and the end, are the same on every worker."""
    digests = [[([m.digest for m in trace.moments], bits_of(trace.end)) for trace in each] for each in (one, other)]
    return digests[0] == digests[1]


def used(parts: Iterable[Sequence[Moment]]) -> Counter[int]:
    return Counter(row for part in parts for moment in part for row in moment.rows)


def check_rows(probe: Strategy, traces: list[Trace]) -> None:
    """Every row is used in every epoch that all workers end together, or as often at a center."""
    ends = [k + 1 for k, moment in enumerate(traces[0].moments) if moment.ends_epoch]
    spans = [(None, None, EPOCHS)] if probe.centered else [(a, b, 1) for a, b in zip([0, *ends], ends, strict=False)]
    for start, stop, times in spans:
        found = used(trace.moments[start:stop] for trace in traces)
        holds("rows", found == Counter(dict.fromkeys(range(ROWS), times)), f"rows {start} to {stop}: {found}")
    holds("rows", probe.centered or len(ends) == EPOCHS, f"{len(ends)} epochs")


def check_agreement(probe: Strategy, traces: list[Trace]) -> None:
    for moments in zip(*(trace.moments for trace in traces), strict=False):
        where = f"after step {moments[0].step}"
        holds("agree", len({moment.agrees for moment in moments}) == 1, where)
        if moments[0].agrees:
            kinds = (PARAMETER,) if probe.joint else (PARAMETER, STATISTIC, COUNTER)
            check_weights([moment.weights for moment in moments], kinds, where)
    check_weights([trace.end for trace in traces], (PARAMETER, STATISTIC), "at the end")


def check_weights(weights: Sequence[Weights], kinds: Sequence[str], where: str) -> None:
    for name in [name for name in weights[0] if kind_of(name) in kinds]:
        promise = "agree" if kind_of(name) == PARAMETER else "buffers"
        same = all(torch.equal(weights[0][name], other[name]) for other in weights[1:])
        holds(promise, same, f"{where}, {name!r}")


def check_joint(training: SmallTraining, traces: list[Trace]) -> None:
    if training.workers == 1:
        holds("alone", alike(SmallTraining(None, 1)(), traces), "1 worker, beside none with a strategy")
    one = SmallTraining(None, 1, statistics=False)()[0]
    for trace in replace(training, statistics=False)():
        for expected, found in zip(one.moments, trace.moments, strict=True):
            far = max(float((w - found.weights[name]).abs().max()) for name, w in expected.weights.items())
            holds("joint", far <= CLOSE, f"after step {expected.step}: {far:g} away")


def check_asking(probe: Strategy, training: SmallTraining, traces: list[Trace]) -> None:
    refused: list[Exception] = []
    agreed: list[list[list[Tensor]]] = [[] for _ in traces]
    shapes: list[list[torch.Size]] = []

    def ask(worker: int, strategy: Strategy, replica: Replica) -> None:
        states = {"state_dict": strategy.state_dict(replica), "own_state": strategy.own_state()}
        try:
            encode(states, {}, "strategy", strict=True)
        except Exception as error:
            refused.append(error)
        if not strategy.centered:  # to ask the center takes time
            shapes.append([tensor.shape for tensor in replica.tensors])
            agreed[worker].append([tensor.clone() for tensor in strategy.consensus(replica)])

    asked = traces_of(replace(training, ask=ask), "asking")
    holds("state", not refused, str(refused[:1]))
    holds("asking", alike(traces, asked), "asked for state_dict, own_state and consensus after every step")
    for step, found in enumerate(zip(*agreed, strict=True), 1):
        holds("agreed", [tensor.shape for tensor in found[0]] == shapes[0], f"after step {step}: shapes")
        same = all(all(map(torch.equal, found[0], other)) for other in found[1:])
        holds("agreed", same, f"after step {step}")


def check_saving(probe: Strategy, training: SmallTraining, traces: list[Trace], others: Sequence[int]) -> None:
    saved = traces_of(training, "saving")
    holds("saving", alike(traces, saved), "saved after every step")
    for k in sampled(range(len(traces[0].moments) + 1), keep=stops(len(traces[0].moments))):
        where = f"{training.workers} workers, stopped after step {k}"
        going = replace(training, run=stopped(training, k), saves="1000 steps")
        rest, lot = traces_of(going, "restore"), slice(0, 1) if probe.centered else slice(None)  # others are elsewhere
        holds("restore", alike([trace.since(k) for trace in saved[lot]], rest[lot]), where)
        if others:
            again = replace(going, workers=others[k % len(others)], run=stopped(training, k))
            check_taken_over(probe, saved, k, traces_of(again, "workers"), f"{where}, taken up by {again.workers}")


def stops(last: int) -> set[int]:
    """Each place of a round of three steps, and the ends of both epochs; nightly, every step."""
    return {0, min(4, last), min(5, last), last // 2, last}


def check_taken_over(probe: Strategy, saved: list[Trace], k: int, rest: list[Trace], where: str) -> None:
    """Another number of workers goes on from where all agreed for the last time up to step k."""
    found = used(trace.moments for trace in rest)
    if probe.centered:  # the rows that the center had learnt from, no fewer than worker 0 had heard of, and those since
        complete = found.total() + rest[0].samples == EPOCHS * ROWS and max(found.values(), default=0) <= EPOCHS
        known = saved[0].moments[k - 1].samples if k else 0
        holds("workers", complete and rest[0].samples >= known, f"{where}: {rest[0].samples} rows, and {found}")
        return
    check_weights([trace.end for trace in rest], (PARAMETER, STATISTIC), where)
    start = max(step for step in range(k + 1) if not step or saved[0].moments[step - 1].agrees)
    agreed, now = saved[0].after(start), rest[0].start
    same = all(torch.equal(agreed[name], now[name]) for name in agreed if now and kind_of(name) == PARAMETER)
    holds("workers", same, f"{where}: weights as after step {start}")
    found += used(trace.moments[:start] for trace in saved)
    holds("workers", found == Counter(dict.fromkeys(range(ROWS), EPOCHS)), f"{where}: {found}")


def stopped(training: SmallTraining, k: int) -> Path:
    """A copy of the run as it would be if nothing had been saved after step k."""
    assert training.run is not None
    place = Path(tempfile.mkdtemp(dir=training.run.parent)) / "run"
    store = Store(training.run / "checkpoints", None)
    late = {store.at(step).name for step in store.steps() if step > k}
    shutil.copytree(training.run, place, ignore=lambda at, names: late)
    return place


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


@pytest.mark.parametrize("name", sampled(GOOD, keep=["synchronous", "elastic", "block momentum"]))
def test_every_strategy_keeps_its_promises(name: str) -> None:
    check(GOOD[name], workers=(1, 3))


def test_a_strategy_of_ones_own_keeps_its_promises() -> None:
    check(Mean, workers=(1, 2))


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


class Boaster(Mean):
    def after(self, *args: Any, **options: Any) -> bool:
        super().after(*args, **options)
        return True


class Stubborn(Mean):
    def merge(self, replica: Replica) -> None:
        replica.write(self.start)
        largest(self.comm, replica.counts)

    def consensus(self, replica: Replica) -> list[Tensor]:
        return self.start


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


class NoStart(Mean):
    def state_dict(self, replica: Replica) -> dict[str, Any]:
        return {}

    def load_state_dict(self, replica: Replica, state: State, own: State | None) -> None:
        self.begin(replica)
        self.rows = 0 if own is None else own["rows"]


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


BROKEN: list[tuple[Callable[[], Strategy], str, tuple[int, ...]]] = [
    (Clocked, "same", (2,)),
    (Deaf, "rows", (2,)),
    (Boaster, "agree", (2,)),
    (Uneven, "agree", (2,)),
    (OwnStatistics, "buffers", (2,)),
    (OwnCounters, "buffers", (3,)),
    (Stubborn, "learns", (2,)),
    (partial(Weightless, "3 steps"), "learns", (2,)),
    (Rounded, "alone", (1,)),
    (MeanOfMeans, "joint", (2,)),
    (Tuples, "state", (2,)),
    (Disagreed, "agreed", (3,)),
    (Touchy, "asking", (2,)),
    (AskedEarly, "saving", (2,)),
    (ForgetsRows, "restore", (2,)),
    (partial(ForgetsRowsOfCenter, "3 steps"), "restore", (2,)),
    (NoStart, "workers", (1, 2)),
]


@pytest.mark.parametrize(("make", "promise", "workers"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_strategy_is_named_by_the_promise_that_it_breaks(
    make: Callable[[], Strategy], promise: str, workers: tuple[int, ...]
) -> None:
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        check(make, workers)


def test_every_promise_can_be_broken() -> None:
    assert {promise for _, promise, _ in BROKEN} == set(PROMISES)
