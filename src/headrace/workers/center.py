"""The interface of a center, which applies workers' changes to shared weights at once, and leases them rows.

One exchange does everything: it applies what a worker has learnt, and records which rows it learnt it from. So what
the center holds and what it says of the data can never differ, whoever dies when.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..errors import WorkerError

TIMEOUT_S = 600.0
"""A worker of whom nothing is heard for so many seconds is not waited for any more."""
Vectors = Mapping[str, Tensor]
"""Parameters and floating-point buffers by name, on the host."""


class Rule(Protocol):
    """What an exchange does to the center: a strategy's own, of plain settings, equal to another with the same ones."""

    def apply(self, center: Vectors, push: "Push", staleness: int) -> Vectors | None:
        """Changes the center's weights in place; returns those for the worker, or `None` if the push is refused.

        That is the center itself, or memory of its own; the push is left as it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How data are leased: positions 0 to `end` (`None`: no end), in leases of `lease` rows that end with an epoch.

    Where workers differ in `lease`, that of the first one holds.
    """

    rows: int
    """Rows of an epoch."""
    lease: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Positions `start` to `stop`, counted from the beginning of the first epoch, for one worker to read."""

    id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class NothingYet:
    """Nothing can be given now: the call is to be made again later."""

    workers: tuple[int, ...] = ()
    """The workers that are waited for."""
    what: str = ""
    """What they have to do first, for messages."""
    last_call_s: float = 0.0
    """When one of them last called, in seconds on the center's clock."""


class Patience:
    """Ends a wait at a center when none of the workers that are waited for has called for `timeout_s`."""

    def __init__(self, worker: int, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._timeout_s, self._now = worker, timeout_s, now
        self._last, self._since = NothingYet(), 0.0

    def check(self, wait: NothingYet) -> None:
        """Called before each pause of a wait."""
        if wait != self._last:
            self._last, self._since = wait, self._now()
        elif self._now() - self._since > self._timeout_s:
            who = f"worker{'s' * (len(wait.workers) > 1)} {', '.join(map(str, wait.workers))}"
            raise WorkerError(
                f"worker {self._worker} has waited at the center for {who} {wait.what}, of whom nothing was heard for "
                f"{self._timeout_s:g} s. If they may take longer, raise timeout_s."
            )


@dataclass(slots=True)
class Push:
    """What a worker sends to the center: weights or changes of them, and the rows that they come from."""

    sequence: int
    """Counted from 1 by each worker: a push that arrives twice is applied once."""
    base: int
    """The version of the center that it began with."""
    vectors: Vectors
    rows: int
    done: list[tuple[int, int, int]] = field(default_factory=list)
    """(lease, start, stop): positions used since the last push."""
    exact: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """What rounding has lost, for a center that has not moved since: indices into a flat tensor and values, by name."""
    origin: Vectors = field(default_factory=dict)
    """The weights of version `base`, for a rule that asks for them."""
    tally: dict[str, list[float]] = field(default_factory=dict)
    """Coefficient, sum and weight of loss terms since the last push."""


@dataclass(slots=True)
class Reply:
    """The center's answer: the weights that a worker goes on with, in memory of its own."""

    version: int
    vectors: Vectors
    taken: bool
    """Whether the push was applied; if not, its rows are leased again."""
    samples: int
    """Rows that the center's weights have learnt from."""
    epochs: int
    """Whole passes over the data that have been used up."""
    stop: str = ""
    """Why every worker is to stop, if somebody has said so."""
    leader_values: Mapping[str, Any] | None = None
    """What worker 0 gave when it began, if the center still knows: to those that join."""


def add_terms(tally: dict[str, list[float]], name: str, coefficient: float, total: float, weight: float) -> None:
    """Adds the sum and the weight of a loss term to its entry in a tally."""
    _, totals, weights = tally.get(name, (0.0, 0.0, 0.0))
    tally[name] = [coefficient, totals + total, weights + weight]


class Center(ABC):
    """One worker's client of the center. `call` carries a request there and the answer back, `wait` lets time pass.

    Trainings are numbered: each worker counts those that it joins, from 1. A process that takes the place of a lost
    worker counts from 1 again, and so finds which of its trainings are over.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self._requests = self._trainings = 0

    @abstractmethod
    def call(self, name: str, *given: Any) -> Any:
        """Sends a request to `CenterState.serve`; its answer."""

    @abstractmethod
    def wait(self, why: NothingYet) -> None:
        """Lets time pass, until a lease may be free; a `WorkerError` once that has lasted too long."""

    def join(
        self,
        rule: Rule,
        terms: LeaseTerms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        leader_values: Mapping[str, Any] | None = None,
    ) -> Reply | None:
        """A worker joins its next training, perhaps once more: leases that it held are free again.

        Worker 0 begins a training once the others have left the one before, and gives the weights, or the `state` to
        go on from. `None` if the training is over: the center has begun a later one. `leader_values`: plain values,
        which the others get in their reply.
        """
        number = self._trainings + 1
        while isinstance(reply := self.call("join", rule, terms, weights, state, leader_values, number), NothingYet):
            self.wait(reply)
        self._trainings = number
        found: Reply | None = reply
        return found

    def lease(self) -> Lease | NothingYet | None:
        """Rows to read; `None` once all have been used, or when all workers are to stop."""
        self._requests += 1
        found: Lease | NothingYet | None = self.call("lease", self._requests)
        return found

    def exchange(self, push: Push) -> Reply:
        """Applies a push, records its rows, and gives what to go on with."""
        reply: Reply = self.call("exchange", push)
        return reply

    def pull(self) -> Reply:
        """The weights as they are."""
        reply: Reply = self.call("pull")
        return reply

    def ask_to_stop(self, why: str) -> None:
        """Asks every worker to stop; each reads it in the reply to its next exchange."""
        self.call("ask_to_stop", why)

    def leave(self) -> None:
        """A worker goes: leases that it held are free again. Twice is no error, nor if it has never joined."""
        self.call("leave")

    def status(self) -> dict[str, Any]:
        """Counters for a person to see: pushes applied, dropped and repeated, staleness, and each worker's rows."""
        found: dict[str, Any] = self.call("status")
        return found

    def state_dict(self) -> dict[str, Any]:
        """Weights, versions, who has pushed what, and which rows have been used or leased."""
        found: dict[str, Any] = self.call("state_dict")
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; rows that were leased then, and not used, are free."""
        self.call("load_state_dict", state)
