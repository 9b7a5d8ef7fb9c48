"""The conformance kit for strategies: small trainings on virtual workers, stopped after any step and resumed."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.arena.replica import Replica
from headrace.errors import CheckpointError
from headrace.store.checkpoints import Store
from headrace.store.codec import encode
from headrace.testing.trial import PromiseTrial, Report
from headrace.workers.strategy import Strategy
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

IN_MEMORY = Path("/dev/shm")  # where there is such a place, nothing waits for a disk
CLOSE = 1e-6  # how near several workers come to one whose updates they share

PROMISES = {
    "calls": "every call works, and returns in time",
    "same": "the same training gives the same bits, time after time",
    "rows": "an epoch uses every row once, however unevenly the workers share it",
    "agree": "where `after` says that all workers agree, and when all is over, they have the same weights",
    "buffers": "they agree on buffers too: on statistics, and on counters where a round ends",
    "learns": "the loss is less afterwards",
    "alone": "one worker alone that shares every update trains as without a strategy, to the bit",
    "joint": "workers that share every update make those that one makes of whole batches, to 1e-6",
    "state": "its state is plain JSON values and tensors",
    "agreed": "`consensus` gives the same tensors on all workers, like those of the replica",
    "asking": "to be asked for its state and for what all agree on changes nothing",
    "saving": "to be saved after every step changes nothing",
    "restore": "stopped after any step, as many workers go on to the same bits",
    "workers": "another number of workers goes on from where all agreed for the last time, with the rows left then",
}


def check_strategy(make: Make, *, workers: Sequence[int] = (1, 2, 3), limit_s: float = 60.0) -> Report:
    """Holds the strategies that `make` makes to the contract; an AssertionError names the promise that is broken.

    Every call makes a strategy anew, with rounds of a few steps: two epochs of 25 rows are trained, 4 to a batch, by
    each of these numbers of virtual workers. `limit_s`: a training takes no longer than this.
    """
    trial = PromiseTrial(PROMISES, limit_s)

    def work() -> None:
        probe = trial.call("calls", "the factory", make)
        trial.that("calls", isinstance(probe, Strategy), "the factory", "a Strategy", type(probe).__name__)
        trial.report.subject = type(probe).__name__
        trial.that("calls", make() is not probe, "the factory", "a new strategy at every call", "the same one")
        memory = str(IN_MEMORY) if IN_MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="headrace-check-", dir=memory) as room:
            for count in sorted(set(workers)):
                others = [other for other in sorted(set(workers)) if other != count]
                _Workers(trial, make, probe, count, others, Path(room)).check()

    return trial.run(work)


@dataclass
class _Workers:
    """The checks of one number of workers."""

    trial: PromiseTrial
    make: Make
    probe: Strategy
    count: int
    others: Sequence[int]
    room: Path

    def __post_init__(self) -> None:
        self.name = f"{self.count} worker{'s' * (self.count > 1)}"
        self.training = SmallTraining(self.make, self.count)

    def check(self) -> None:
        traces = self._train(self.training, self.name)
        self._same("same", traces, self._train(self.training, self.name), f"{self.name}, a second time")
        self._rows(traces)
        if self.probe.joint:
            self._joint(traces)
        else:
            self.trial.skip("joint", "every worker makes updates of its own")
            self.trial.skip("alone", "every worker makes updates of its own")
        if self.probe.centered:
            for promise in ("agree", "agreed", "buffers"):
                self.trial.skip(promise, "workers meet the center at different times, and worker 0 has its weights")
        else:
            self._agree(traces)
        before, after = loss_of(traces[0].start), loss_of(traces[0].end)
        self.trial.that("learns", after < before, self.name, f"a loss below {before:g}", f"{after:g}")
        self._asked(traces)
        self._saved(traces)

    def _train(self, training: SmallTraining, where: str, promise: str = "calls") -> list[Trace]:
        traces: list[Trace] = self.trial.call(promise, f"{where}: training", training)
        return traces

    def _rows(self, traces: list[Trace]) -> None:
        """Every row, in every epoch that all workers end together."""
        if self.probe.centered:
            self._used_up("rows", [trace.moments for trace in traces], self.name)
            return
        ends = [k for k, moment in enumerate(traces[0].moments) if moment.ends_epoch]
        self.trial.equal("rows", EPOCHS, len(ends), f"{self.name}: epochs")
        start = 0
        for epoch, end in enumerate(ends):
            parts = [trace.moments[start : end + 1] for trace in traces]
            self._used_up("rows", parts, f"{self.name}, epoch {epoch}", times=1)
            start = end + 1

    def _used_up(self, promise: str, parts: Sequence[Sequence[Moment]], where: str, times: int = EPOCHS) -> None:
        used = Counter(row for part in parts for moment in part for row in moment.rows)
        wrong = {row: used[row] for row in range(ROWS) if used[row] != times}
        self.trial.that(promise, not wrong, where, f"{ROWS} rows, each used {times} times", f"row: times {wrong}")

    def _agree(self, traces: list[Trace]) -> None:
        for moments in zip(*(trace.moments for trace in traces), strict=False):
            where = f"{self.name}, after step {moments[0].step}"
            told = {moment.agrees for moment in moments}
            self.trial.that("agree", len(told) == 1, where, "all workers to say the same", told)
            if moments[0].agrees:
                kinds = (PARAMETER,) if self.probe.joint else (PARAMETER, STATISTIC, COUNTER)
                self._alike([moment.weights for moment in moments], kinds, where)
        self._ends_alike(traces, self.name)

    def _ends_alike(self, traces: list[Trace], where: str) -> None:
        self._alike([trace.end for trace in traces], (PARAMETER, STATISTIC), f"{where}, at the end")

    def _alike(self, weights: Sequence[Weights], kinds: Sequence[str], where: str) -> None:
        for name in [name for name in weights[0] if kind_of(name) in kinds]:
            one, promise = weights[0][name], "agree" if kind_of(name) == PARAMETER else "buffers"
            for number, other in enumerate(weights[1:], 1):
                same, at = torch.equal(one, other[name]), f"{where}, {name!r} of workers 0 and {number}"
                self.trial.that(promise, same, at, one.flatten()[:3], other[name].flatten()[:3])

    def _joint(self, traces: list[Trace]) -> None:
        if self.count == 1:
            alone = self._train(SmallTraining(None, 1), "no strategy")
            self._same("alone", alone, traces, f"{self.name}, beside none with a strategy")
        one = self._train(SmallTraining(None, 1, statistics=False), "no strategy")[0]
        several = self._train(replace(self.training, statistics=False), self.name)
        for k, moment in enumerate(one.moments):
            for worker, trace in enumerate(several):
                where = f"{self.name}, worker {worker} after step {moment.step}"
                far = _apart(moment.weights, trace.moments[k].weights)
                self.trial.that("joint", far <= CLOSE, where, f"weights within {CLOSE:g} of those of one", f"{far:g}")

    def _asked(self, traces: list[Trace]) -> None:
        answers: list[list[_Answer]] = [[] for _ in range(self.count)]

        def ask(worker: int, strategy: Strategy, replica: Replica) -> None:
            states = {"state_dict": strategy.state_dict(replica), "own_state": strategy.own_state()}
            answer = _Answer(_refused(states), [tensor.shape for tensor in replica.tensors])
            if not strategy.centered:  # to ask the center takes time
                answer.agreed = [tensor.clone() for tensor in strategy.consensus(replica)]
            answers[worker].append(answer)

        asked = self._train(replace(self.training, ask=ask), f"{self.name}, asked after every step", "asking")
        for worker, said in enumerate(answers):
            for step, answer in enumerate(said, 1):
                where = f"{self.name}, worker {worker} after step {step}"
                self.trial.that("state", not answer.refused, where, "a state", answer.refused)
                if not self.probe.centered:
                    shapes = [tensor.shape for tensor in answer.agreed]
                    self.trial.equal("agreed", answer.shapes, shapes, f"{where}, shapes of agreed()")
        self._same("asking", traces, asked, f"{self.name}, asked for state_dict, own_state and agreed after every step")
        for step, each in enumerate(zip(*answers, strict=True), 1) if not self.probe.centered else ():
            for worker, answer in enumerate(each):
                same = all(map(torch.equal, each[0].agreed, answer.agreed))
                where = f"{self.name}, after step {step}"
                self.trial.that("agreed", same, where, "the same on all workers", f"another on worker {worker}")

    def _saved(self, traces: list[Trace]) -> None:
        run = self.room / f"of-{self.count}"
        saved = self._train(replace(self.training, run=run), f"{self.name}, saved after every step", "saving")
        self._same("saving", traces, saved, f"{self.name}, saved after every step")
        for k in range(len(traces[0].moments) + 1):
            where = f"{self.name}, stopped after step {k}"
            going = replace(self.training, run=self._stopped(run, k), saves="1000 steps")
            rest = self._train(going, f"{where} and gone on", "restore")
            known = saved[0].moments[k - 1].samples if k else 0
            if self.probe.centered:
                self._same("restore", [saved[0].since(k)], rest[:1], where)  # others are at other steps
            else:
                self._same("restore", [trace.since(k) for trace in traces], rest, where)
            if self.others:
                other = self.others[k % len(self.others)]
                again = replace(going, workers=other, run=self._stopped(run, k))
                self._taken_over(traces, k, known, again, f"{where}, taken up by {other}")

    def _taken_over(self, traces: list[Trace], k: int, known: int, training: SmallTraining, where: str) -> None:
        """Another number of workers goes on from where all agreed for the last time up to step k."""
        rest = self._train(training, where, "workers")
        if self.probe.centered:
            self._all_learnt("workers", known, rest, where)
            return
        self._ends_alike(rest, where)
        start = max(step for step in range(k + 1) if not step or traces[0].moments[step - 1].agrees)
        agreed, now = traces[0].after(start), rest[0].start
        for name in [name for name in agreed if now and kind_of(name) == PARAMETER]:
            same = torch.equal(agreed[name], now[name])
            self.trial.that("workers", same, where, f"{name!r} as after step {start}", "another")
        parts = [trace.moments[:start] for trace in traces] + [trace.moments for trace in rest]
        self._used_up("workers", parts, where)

    def _all_learnt(self, promise: str, known: int, rest: list[Trace], where: str) -> None:
        """The rows that the center had learnt from, no fewer than worker 0 had heard of, and those since."""
        used = Counter(row for trace in rest for moment in trace.moments for row in moment.rows)
        rows = f"{EPOCHS * ROWS} rows, {rest[0].samples} of them before, none more than {EPOCHS} times since"
        complete = used.total() + rest[0].samples == EPOCHS * ROWS and max(used.values(), default=0) <= EPOCHS
        self.trial.that(promise, complete, where, rows, f"row: times {dict(used)}")
        before = rest[0].samples
        self.trial.that(promise, before >= known, where, f"at least {known} rows before", f"{before} rows")

    def _stopped(self, run: Path, k: int) -> Path:
        """A copy of the run as it would be if nothing had been saved after step k."""
        place = Path(tempfile.mkdtemp(dir=self.room)) / "run"
        store = Store(run / "checkpoints", None)
        late = {store.at(step).name for step in store.steps() if step > k}
        shutil.copytree(run, place, ignore=lambda at, names: late)
        return place

    def _same(self, promise: str, expected: Sequence[Trace], got: Sequence[Trace], where: str) -> None:
        """Raises at the first update that is not the same on a worker."""
        for worker, (one, other) in enumerate(zip(expected, got, strict=True)):
            for before, now in zip(one.moments, other.moments, strict=False):
                at = f"{where}, worker {worker} after step {before.step}"
                self.trial.that(promise, before.rows == now.rows, f"{at}: rows", before.rows, now.rows)
                self.trial.that(promise, before.digest == now.digest, at, "the same weights", _differing(before, now))
            self.trial.equal(promise, len(one.moments), len(other.moments), f"{where}, worker {worker}: updates")
            same = bits_of(one.end) == bits_of(other.end)
            self.trial.that(promise, same, f"{where}, worker {worker} at the end", "the same weights", "others")


@dataclass
class _Answer:
    """What a strategy returned after a step."""

    refused: str
    """Why its state cannot be saved, if it cannot."""
    shapes: list[torch.Size]
    """Those of the replica's tensors."""
    agreed: list[Tensor] = field(default_factory=list)


def _refused(states: Mapping[str, Any]) -> str:
    try:
        encode(states, {}, "strategy", strict=True)
    except CheckpointError as error:
        return str(error)
    return ""


def _apart(one: Weights, other: Weights) -> float:
    """The largest difference."""
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def _differing(one: Moment, other: Moment) -> str:
    names = [name for name, tensor in one.weights.items() if not torch.equal(tensor, other.weights[name])]
    return f"others: {', '.join(names)}" if names else "another answer of `after`, or another epoch"
