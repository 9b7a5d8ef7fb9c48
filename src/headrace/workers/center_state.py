"""A center in this process: the weights, who has brought what, and which rows it has learnt from."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, ConfigError, WorkerError
from .center import TIMEOUT_S, Lease, Patience, Push, Reply, Rule, Terms, Vectors, Wait
from .ledger import Ledger
from .members import Counts, Member, Members

REMEMBERED = 4
"""Workers whose last reply is kept, in case that it is lost on its way and the push is repeated."""
PAUSE_S = 0.05
"""How long a worker waits before it asks once more whether there are rows to read."""


class CenterState:
    """The state of a center, for workers known by number; `now` is when they call, in seconds, on any clock.

    One call applies a push and records its rows, and nothing else does either. So the weights have learnt from
    exactly the rows that are recorded as used, each once, whoever dies when and whatever is said twice:

    - A push that comes again is answered again, with the center's weights if the answer is forgotten.
    - A push from rows that are no longer the worker's is not taken: somebody else reads them, or has done so.
    - What a worker has leased that joins anew, leaves, or is silent for `timeout_s` is free again.

    It goes by what workers say, so it is called by one at a time. `generation`: how often a center of the same
    training has been lost before; leases from before are told from new ones by it. Replies may hold the center's own
    tensors, which change with the next push.
    """

    def __init__(self, generation: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        self.rule: Rule | None = None
        self.weights: dict[str, Tensor] = {}
        self.version = 0
        """How many pushes have been applied to the weights."""
        self.stop = ""
        self.said: Mapping[str, Any] | None = None
        """What worker 0 said when it began."""
        self.training = 0
        """The number of the training that worker 0 has begun last, counted from 1."""
        self._generation, self.timeout_s = generation, timeout_s
        self._start_over(Terms(1, 1))

    @property
    def terms(self) -> Terms:
        """How data are leased."""
        return self._ledger.terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self._ledger.terms = terms

    def join(
        self,
        worker: int,
        now: float,
        rule: Rule,
        terms: Terms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        said: Mapping[str, Any] | None = None,
        training: int = 1,
    ) -> Reply | Wait | None:
        """A worker joins the training of this number; `None` if a later one has begun.

        Worker 0 alone knows what a training goes on from, and begins it once the others have left the one before. What
        worker 0 brings to one that has begun was lost with it. A worker that comes when all rows have been used finds
        nothing left to read.
        """
        if training < self.training:
            return None
        if training > self.training:
            if worker != 0:
                return self._wait([0], f"to begin training {training}")
            if others := [other for other in self._roll.inside(now - self.timeout_s) if other != worker]:
                return self._wait(others, f"to leave training {self.training}")
            self._begin(terms, weights, state)
            self.said, self.training = said, training
        self._check(rule, terms, weights)
        member = self._member(worker, now)
        member.sequence, member.asked = 0, None
        self._ledger.leave(worker)
        return replace(self._reply(self.weights), told=self.said)

    def lease(self, worker: int, now: float, number: int) -> Lease | Wait | None:
        """Rows to read. A request of the same number gets what was given before."""
        member = self._member(worker, now)
        if member.asked is not None and member.asked[0] == number and self._ledger.has(worker, member.asked[1].id):
            return member.asked[1]
        self._ledger.expire(now, self.timeout_s)
        found = None if self.stop else self._ledger.lease(worker)
        member.asked = (number, found) if isinstance(found, Lease) else None
        if isinstance(found, Wait):
            others = sorted(self._ledger.leases.keys() - {worker})
            return self._wait(others, "to train with the rows that they have been given")
        return found

    def meet(self, worker: int, now: float, push: Push) -> Reply:
        """Applies a push and records its rows, or neither."""
        member = self._member(worker, now)
        if push.sequence <= member.sequence:
            self.counts.repeated += 1
            return self._again(worker, push.sequence)
        self._same(push.vectors, "pushes")
        staleness = self.version - push.base
        if staleness < 0 or not self._ledger.holds(worker, push.done):
            self.counts.lost += 1
            return self._refuse(worker, push)
        assert self.rule is not None
        vectors = self.rule.meet(self.weights, push, staleness)
        self.counts.staleness[staleness] = self.counts.staleness.get(staleness, 0) + 1
        member.sequence, member.taken = push.sequence, vectors is not None
        if vectors is None:
            return self._refuse(worker, push)
        self._ledger.use(worker, push.done)
        self.counts.add(push)
        self.version += 1
        member.pushes, member.rows = member.pushes + 1, member.rows + push.rows
        reply = self._reply(vectors)
        self._remember(worker, push.sequence, reply)
        return reply

    @property
    def inside(self) -> tuple[int, ...]:
        """The workers that have joined the training and not left it."""
        return self._roll.inside()

    def enter(self, worker: int, now: float) -> None:
        """A worker is in the training, as a center knew that was lost."""
        self._roll.enter(worker, now)

    def pull(self, worker: int, now: float) -> Reply:
        """The weights as they are; also for a worker that has left."""
        self._begun()
        if worker in self._roll.members:
            self._roll[worker].heard = now
        return self._reply(self.weights)

    def ask_to_stop(self, why: str) -> None:
        """Every worker is told; the first reason stays."""
        self.stop = self.stop or why

    def leave(self, worker: int) -> None:
        """A worker goes. It may come back, and the weights stay to be read."""
        self._roll.leave(worker)
        self._ledger.leave(worker)

    def status(self, now: float) -> dict[str, Any]:
        """Plain values, for a person to see."""
        leases = self._ledger.leases
        return {
            "training": self.training,
            "version": self.version,
            "samples": self._ledger.samples,
            "epochs": self._ledger.epochs,
            **asdict(self.counts),
            "workers": {
                worker: {
                    "pushes": member.pushes,
                    "rows": member.rows,
                    "leased": sum(stop - start for start, stop in leases.get(worker, [])),
                    "silent_s": max(0.0, now - member.heard),
                    "inside": member.inside,
                }
                for worker, member in sorted(self._roll.members.items())
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and the weights, which are the center's own."""
        self._begun()
        return {
            "training": self.training,
            "version": self.version,
            "weights": dict(self.weights),
            "terms": asdict(self.terms),
            "ledger": self._ledger.state_dict(),
            "counts": self.counts.state_dict(),
            "workers": self._roll.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; what was leased is free."""
        self._start_over(Terms(**state["terms"]))
        self._ledger.load_state_dict(state["ledger"])
        self.weights = {name: tensor.detach().clone() for name, tensor in state["weights"].items()}
        self.training, self.version = int(state.get("training", 1)), int(state["version"])
        self.counts = Counts.of(state["counts"])
        self._roll.load_state_dict(state["workers"])

    def _start_over(self, terms: Terms) -> None:
        """Another training, of which nothing is known but what it is to read."""
        self._ledger = Ledger(terms, self._generation << 32)
        self._roll, self.counts = Members(), Counts()
        self._remembered: dict[int, tuple[int, Reply]] = {}
        self.version, self.stop = 0, ""

    def _begin(self, terms: Terms, weights: Vectors, state: Mapping[str, Any] | None) -> None:
        """A training begins, with nobody in it."""
        self.rule = None
        if state is not None:
            self.load_state_dict(state)
            self._differ_in_rows(terms)
            self.terms = terms
        else:
            self._start_over(terms)
            self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def _check(self, rule: Rule, terms: Terms, weights: Vectors) -> None:
        """Whoever joins has the same model, the same settings and the same data."""
        self._same(weights, "has")
        self._differ_in_rows(terms)
        if self.rule is None:
            self.rule = rule
        if self.rule != rule:
            raise ConfigError(f"workers have different strategies: {self.rule} and {rule}. Give all the same settings.")
        if self.terms.end != terms.end:
            raise ConfigError(
                f"workers read to different ends: rows {self.terms.end} and {terms.end}. Give all the same limits."
            )

    def _differ_in_rows(self, terms: Terms) -> None:
        if self.terms.rows != terms.rows:
            raise ConfigError(
                f"an epoch had {self.terms.rows} rows at the center and has {terms.rows} here. Read the same data."
            )

    def _same(self, vectors: Vectors, what: str) -> None:
        """Raises unless these fit the center's weights, before anything is changed by them."""
        if missing := sorted(self.weights.keys() ^ vectors.keys()):
            where = "only the center has" if missing[0] in self.weights else f"only a worker {what}"
            raise CheckpointError(f"workers have different models: {where} {missing[0]!r}.")
        for name, tensor in vectors.items():
            own = self.weights[name]
            if tensor.shape != own.shape or tensor.dtype != own.dtype:
                raise CheckpointError(
                    f"workers have different models: {name!r} is {_kind(own)} at the center, a worker {what} "
                    f"{_kind(tensor)}."
                )

    def _begun(self) -> None:
        if not self.weights:
            raise WorkerError("nobody has joined the center yet, or it has been lost with all that it had learnt.")

    def _member(self, worker: int, now: float) -> Member:
        """Who calls; one that has been given up, or that a loaded state does not know, is in again."""
        self._begun()
        self._ledger.hear(worker, now)
        return self._roll.enter(worker, now)

    def _wait(self, workers: Sequence[int], what: str) -> Wait:
        return Wait(tuple(workers), what, self._roll.heard(workers))

    def _refuse(self, worker: int, push: Push) -> Reply:
        """Not taken: others may read its rows."""
        self.counts.dropped += 1
        self._ledger.free(worker, push.done)
        return self._reply(self.weights, taken=False)

    def _reply(self, vectors: Vectors, taken: bool = True) -> Reply:
        return Reply(self.version, vectors, taken, self._ledger.samples, self._ledger.epochs, self.stop)

    def _again(self, worker: int, sequence: int) -> Reply:
        """The answer to a push that has been judged before."""
        known, reply = self._remembered.get(worker, (0, None))
        if reply is not None and known == sequence:
            return replace(self._reply(reply.vectors), version=reply.version)
        last = self._roll[worker]
        return self._reply(self.weights, taken=last.taken or sequence < last.sequence)

    def _remember(self, worker: int, sequence: int, reply: Reply) -> None:
        """Keeps a reply whose vectors exist nowhere else, and forgets the oldest."""
        self._remembered.pop(worker, None)
        if reply.vectors is not self.weights:
            self._remembered[worker] = (sequence, reply)
        if len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


class LocalCenter:
    """A center in this process, as one worker sees it. `now` is its clock, in seconds; `pause` lets time pass."""

    def __init__(
        self,
        held: CenterState | None = None,
        worker: int = 0,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
    ) -> None:
        self.held = CenterState() if held is None else held
        self._worker, self._now, self._pause = worker, now, pause
        self._patience = Patience(worker, self.held.timeout_s, now)
        self._requests = self._trainings = 0

    def join(
        self,
        rule: Rule,
        terms: Terms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> Reply | None:
        number = self._trainings + 1
        while True:
            reply = self.held.join(self._worker, self._now(), rule, terms, weights, state, said, number)
            if not isinstance(reply, Wait):
                self._trainings = number
                return reply and self._own(reply)
            self.wait(reply)

    def lease(self) -> Lease | Wait | None:
        self._requests += 1
        return self.held.lease(self._worker, self._now(), self._requests)

    def meet(self, push: Push) -> Reply:
        return self._own(self.held.meet(self._worker, self._now(), push))

    def pull(self) -> Reply:
        return self._own(self.held.pull(self._worker, self._now()))

    def ask_to_stop(self, why: str) -> None:
        self.held.ask_to_stop(why)

    def wait(self, why: Wait) -> None:
        self._patience.check(why)
        self._pause()

    def leave(self) -> None:
        self.held.leave(self._worker)

    def status(self) -> dict[str, Any]:
        return self.held.status(self._now())

    def state_dict(self) -> dict[str, Any]:
        state = self.held.state_dict()
        return {**state, "weights": _copied(state["weights"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.held.load_state_dict(state)

    def _own(self, reply: Reply) -> Reply:
        """Others go on changing the center: what a worker gets is a copy."""
        return replace(reply, vectors=_copied(reply.vectors)) if reply.vectors is self.held.weights else reply


def _copied(vectors: Vectors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in vectors.items()}


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
