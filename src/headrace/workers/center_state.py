"""The state of a center: the weights, what each worker has pushed, and which rows the weights have learnt from."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, ConfigError, WorkerError
from .center import TIMEOUT_S, Center, Lease, LeaseTerms, NothingYet, Patience, Push, Reply, Rule, Vectors
from .ledger import Counts, Ledger, Member, Members

REMEMBERED = 4
"""Workers whose last reply is kept, in case that it is lost on its way and the push is repeated."""
PAUSE_S = 0.05
"""How long a worker waits before it asks once more whether there are rows to read."""


class CenterState:
    """The state of a center, for workers by number. `now` is the time of a call in seconds, on any clock.

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
        self.leader_values: Mapping[str, Any] | None = None
        """What worker 0 gave when it began, for the others."""
        self.training = 0
        """The number of the training that worker 0 has begun last, counted from 1."""
        self._generation, self.timeout_s = generation, timeout_s
        self._start_over(LeaseTerms(1, 1))

    def serve(self, worker: int, now: float, name: str, *given: Any) -> Any:
        """Answers a call that a worker makes through its `Center`."""
        caller = {"status": (now,), "leave": (worker,), "ask_to_stop": (), "state_dict": (), "load_state_dict": ()}
        return getattr(self, name)(*caller.get(name, (worker, now)), *given)

    def join(
        self,
        worker: int,
        now: float,
        rule: Rule,
        terms: LeaseTerms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        leader_values: Mapping[str, Any] | None = None,
        training: int = 1,
    ) -> Reply | NothingYet | None:
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
            if others := [other for other in self.members.inside(now - self.timeout_s) if other != worker]:
                return self._wait(others, f"to leave training {self.training}")
            self._begin(terms, weights, state)
            self.leader_values, self.training = leader_values, training
        self._check(rule, terms, weights)
        member = self._member(worker, now)
        member.sequence, member.asked = 0, None
        self.ledger.leave(worker)
        return replace(self._reply(self.weights), leader_values=self.leader_values)

    def lease(self, worker: int, now: float, number: int) -> Lease | NothingYet | None:
        """Rows to read. A request of the same number gets what was given before."""
        member = self._member(worker, now)
        if member.asked is not None and member.asked[0] == number and self.ledger.has(worker, member.asked[1].id):
            return member.asked[1]
        for silent in self.ledger.leases.keys() - set(self.members.inside(now - self.timeout_s)):
            self.ledger.leave(silent)
        found = None if self.stop else self.ledger.lease(worker)
        member.asked = (number, found) if isinstance(found, Lease) else None
        if isinstance(found, NothingYet):
            others = sorted(self.ledger.leases.keys() - {worker})
            return self._wait(others, "to train with the rows that they have been given")
        return found

    def exchange(self, worker: int, now: float, push: Push) -> Reply:
        """Applies a push and records its rows, or neither."""
        member = self._member(worker, now)
        if push.sequence <= member.sequence:
            self.counts.repeated += 1
            return self._again(worker, push.sequence)
        self._same(push.vectors, "pushes")
        staleness = self.version - push.base
        if staleness < 0 or not self.ledger.holds(worker, push.done):
            self.counts.lost += 1
            return self._refuse(worker, push)
        assert self.rule is not None
        vectors = self.rule.apply(self.weights, push, staleness)
        self.counts.staleness[staleness] = self.counts.staleness.get(staleness, 0) + 1
        member.sequence, member.taken = push.sequence, vectors is not None
        if vectors is None:
            return self._refuse(worker, push)
        self.ledger.use(worker, push.done)
        self.counts.add(push)
        self.version += 1
        member.pushes, member.rows = member.pushes + 1, member.rows + push.rows
        reply = self._reply(vectors)
        self._remember(worker, push.sequence, reply)
        return reply

    def pull(self, worker: int, now: float) -> Reply:
        """The weights as they are; also for a worker that has left."""
        self._begun()
        if worker in self.members.members:
            self.members[worker].called_s = now
        return self._reply(self.weights)

    def ask_to_stop(self, why: str) -> None:
        """Asks every worker to stop; the first reason stays."""
        self.stop = self.stop or why

    def leave(self, worker: int) -> None:
        """A worker goes. It may come back, and the weights stay to be read."""
        self.members.leave(worker)
        self.ledger.leave(worker)

    def status(self, now: float) -> dict[str, Any]:
        """Plain values, for a person to see."""
        leases = self.ledger.leases
        return {
            "training": self.training,
            "version": self.version,
            "samples": self.ledger.samples,
            "epochs": self.ledger.epochs,
            **asdict(self.counts),
            "workers": {
                worker: {
                    "pushes": member.pushes,
                    "rows": member.rows,
                    "leased": sum(stop - start for start, stop in leases.get(worker, [])),
                    "silent_s": max(0.0, now - member.called_s),
                    "inside": member.inside,
                }
                for worker, member in sorted(self.members.members.items())
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and the weights, which are the center's own."""
        self._begun()
        return {
            "training": self.training,
            "version": self.version,
            "weights": dict(self.weights),
            "terms": asdict(self.ledger.terms),
            "ledger": self.ledger.state_dict(),
            "counts": self.counts.state_dict(),
            "workers": self.members.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state; what was leased is free."""
        self._start_over(LeaseTerms(**state["terms"]))
        self.ledger.load_state_dict(state["ledger"])
        self.weights = {name: tensor.detach().clone() for name, tensor in state["weights"].items()}
        self.training, self.version = int(state.get("training", 1)), int(state["version"])
        self.counts = Counts.of(state["counts"])
        self.members.load_state_dict(state["workers"])

    def _start_over(self, terms: LeaseTerms) -> None:
        """Forgets the training before."""
        self.ledger = Ledger(terms, self._generation << 32)
        self.members, self.counts = Members(), Counts()
        self._remembered: dict[int, tuple[int, Reply]] = {}
        self.version, self.stop = 0, ""

    def _begin(self, terms: LeaseTerms, weights: Vectors, state: Mapping[str, Any] | None) -> None:
        """Begins a training, which no worker has joined yet."""
        self.rule = None
        if state is not None:
            self.load_state_dict(state)
            self._differ_in_rows(terms)
            self.ledger.terms = terms
        else:
            self._start_over(terms)
            self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def _check(self, rule: Rule, terms: LeaseTerms, weights: Vectors) -> None:
        """Raises unless a worker that joins has the same model, settings and data."""
        end = self.ledger.terms.end
        self._same(weights, "has")
        self._differ_in_rows(terms)
        if self.rule is None:
            self.rule = rule
        if self.rule != rule:
            raise ConfigError(f"workers have different strategies: {self.rule} and {rule}. Give all the same settings.")
        if end != terms.end:
            raise ConfigError(f"workers read to different ends: rows {end} and {terms.end}. Give all the same limits.")

    def _differ_in_rows(self, terms: LeaseTerms) -> None:
        if (rows := self.ledger.terms.rows) != terms.rows:
            raise ConfigError(f"an epoch had {rows} rows at the center and has {terms.rows} here. Read the same data.")

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
        return self.members.enter(worker, now)

    def _wait(self, workers: Sequence[int], what: str) -> NothingYet:
        return NothingYet(tuple(workers), what, self.members.last_call_s(workers))

    def _refuse(self, worker: int, push: Push) -> Reply:
        """Not taken: others may read its rows."""
        self.counts.dropped += 1
        self.ledger.free(worker, push.done)
        return self._reply(self.weights, taken=False)

    def _reply(self, vectors: Vectors, taken: bool = True) -> Reply:
        return Reply(self.version, vectors, taken, self.ledger.samples, self.ledger.epochs, self.stop)

    def _again(self, worker: int, sequence: int) -> Reply:
        """The answer to a push that has been answered before."""
        known, reply = self._remembered.get(worker, (0, None))
        if reply is not None and known == sequence:
            return replace(self._reply(reply.vectors), version=reply.version)
        last = self.members[worker]
        return self._reply(self.weights, taken=last.taken or sequence < last.sequence)

    def _remember(self, worker: int, sequence: int, reply: Reply) -> None:
        """Keeps a reply whose vectors exist nowhere else, and forgets the oldest."""
        self._remembered.pop(worker, None)
        if reply.vectors is not self.weights:
            self._remembered[worker] = (sequence, reply)
        if len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


class LocalCenter(Center):
    """The client of a center in this process. `now` is its clock, in seconds; `pause` lets time pass."""

    def __init__(
        self,
        held: CenterState | None = None,
        worker: int = 0,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
    ) -> None:
        super().__init__(worker)
        self.held = CenterState() if held is None else held
        self._now, self._pause = now, pause
        self._patience = Patience(worker, self.held.timeout_s, now)

    def call(self, name: str, *given: Any) -> Any:
        """Others go on changing the center: what a worker gets is a copy."""
        found = self.held.serve(self.worker, self._now(), name, *given)
        if isinstance(found, Reply) and found.vectors is self.held.weights:
            return replace(found, vectors=_copied(found.vectors))
        return {**found, "weights": _copied(found["weights"])} if name == "state_dict" else found

    def wait(self, why: NothingYet) -> None:
        self._patience.check(why)
        self._pause()


def _copied(vectors: Vectors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in vectors.items()}


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
