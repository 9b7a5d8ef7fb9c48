"""The base of strategies whose workers exchange weights with a center, each at its own pace."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..arena.replica import Replica
from ..errors import CheckpointError, ConfigError, WorkerError
from ..length import Counters, Length, interval
from .center import Center, LeaseTerms, Push, Reply, Rule, Vectors, add_terms
from .center_state import LocalCenter
from .strategy import State, Strategy

SHARES = 8
"""Leases of an epoch for each worker, and batches of a lease, where nothing else says how many."""
OVER = "this training was over at the center before this worker joined it"


@dataclass(frozen=True, slots=True)
class CenterProgress:
    """How far the training is, as the center last told a worker."""

    samples: int
    """Rows that the center's weights have learnt from, over all workers."""
    epochs: int
    """Whole passes over the data, over all workers."""
    stop: str
    """Why every worker is to stop, if somebody has said so."""
    taken: bool
    """Whether what this worker brought last was applied."""


class Centered(Strategy, ABC):
    """Every worker updates its own replica, and `every` so often brings what it has learnt to the center.

    Nobody waits for anybody. `every` counts this worker's own updates, rows, or passes: one ends when the center
    leases it rows of a later epoch; "end" is once, when all is done. It meets earlier when there is nothing left for it
    to read, so that nobody waits for rows that it keeps. What the center leases is `lease` rows at a time.

    Data are used exactly once: a meeting applies a change and records the rows that it comes from in one call. What
    is lost with a worker is what it has learnt since its last meeting, and its rows are read by others. Optimizers
    keep their state, and integer buffers their counts, on their worker; other buffers are treated like parameters.
    """

    centered: ClassVar[bool] = True

    def __init__(self, every: str | Length, lease: int | None) -> None:
        super().__init__()
        if lease is not None and (not isinstance(lease, int) or isinstance(lease, bool) or lease < 1):
            raise ConfigError(f"lease= is a number of rows, at least 1, got {lease!r}.")
        self.every = None if every == "end" else interval(every, "every")
        self.lease = lease
        self._terms: LeaseTerms | None = None
        self._center_progress: CenterProgress | None = None
        self._counters = Counters()
        self._pending = Push(1, 0, {}, 0)
        """What this worker has learnt since it last met the center, but for the weights."""
        self._sent_terms: dict[str, list[float]] = {}
        self._idle = False
        self._resumed: State | None = None
        self._own_center: Center | None = None
        self.leader_values: Mapping[str, Any] = {}
        """Plain values that worker 0 gives to the others when the training begins."""
        self.received_values: Mapping[str, Any] | None = None
        """What worker 0 gave, if the center still knows."""

    @property
    def center(self) -> Center:
        """Where this worker meets the others, or a center of its own once the training is over for them."""
        return self._own_center or self.comm.center

    @property
    def center_progress(self) -> CenterProgress | None:
        """How far the training is, as the center last told this worker."""
        return self._center_progress

    @property
    def unsent_rows(self) -> int:
        """Rows that this worker has trained on since its last exchange with the center."""
        return self._pending.rows

    @property
    def sent_terms(self) -> dict[str, list[float]]:
        """Coefficients, sums and weights of the loss terms that this worker has sent to the center."""
        return self._sent_terms

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """What a meeting does to the center."""

    @abstractmethod
    def fill(self, push: Push, weights: Vectors) -> None:
        """Puts into a push what the center is to have of this worker's weights, which are the model's own."""

    def take(self, reply: Reply) -> None:
        """Takes what it needs from a reply, whose weights this worker goes on with."""

    def plan_leases(self, rows: int, batch: int, block: int = 1, end: int | None = None) -> LeaseTerms:
        """How the center is to lease the data: epochs of `rows` rows, read in batches, up to row `end`.

        Leases are whole batches, or whole blocks where rows are read in blocks, unless the epoch ends before. By
        default they hold the rows of a round and a few batches at least, and no more than a fair share of an epoch.
        """
        every = None if self.every is None or self.every.unit == "epochs" else self.every
        fair = -(-rows // (self.comm.count * (SHARES if every is None else 1)))
        unit = block if block > 1 else batch
        wanted = fair
        if every is not None:
            of_round = int(every.count) * (batch if every.unit == "steps" else 1)
            wanted = min(fair, max(of_round, SHARES * batch))
        self._terms = LeaseTerms(rows, min(self.lease or -(-wanted // unit) * unit, rows), end)
        return self._terms

    def begin(self, replica: Replica) -> None:
        """Joins the center and takes its weights."""
        assert self._terms is not None, "plan_leases comes before begin"
        state, self._resumed = self._resumed, None
        weights = _on_host(replica)
        self._own_center, self._counters = None, Counters()
        self._sent_terms, self._idle = {}, False
        reply = self.comm.center.join(self.rule, self._terms, weights, state, self.leader_values)
        if reply is None:
            reply = self._join_alone(weights, state)
        self.received_values = reply.leader_values
        self._go_on(replica, reply, 1)

    def _join_alone(self, weights: Vectors, state: State | None) -> Reply:
        """Makes a center for this worker alone, from a checkpoint: all others have ended the training."""
        if self.comm.leader and state is None:
            raise WorkerError(
                "worker 0 was started again while the others were in a later training, and the result of this one "
                "is not kept. Give every fit a run= of its own: then it goes on from there."
            )
        assert self._terms is not None
        self._own_center = alone = LocalCenter()
        reply = alone.join(self.rule, self._terms, weights, state)
        assert reply is not None
        if state is None:
            alone.ask_to_stop(OVER)
            reply.stop = OVER
        return reply

    def used(self, cursor: Mapping[str, Any] | None, tally: Mapping[str, Sequence[float]] | None = None) -> None:
        """Rows that the update comes from, as `Leased` says in a batch's cursor."""
        if cursor is not None and cursor.get("used") is not None:
            lease, start, stop = cursor["used"]
            done = self._pending.done
            if done and (done[-1][0], done[-1][2]) == (lease, start):
                start = done.pop()[1]
            done.append((lease, start, stop))
            self._idle = not cursor["leases"]
        for name, (coefficient, total, weight) in (tally or {}).items():
            add_terms(self._pending.tally, name, coefficient, total, weight)

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        own = self._counters
        own.steps, own.samples, own.epochs = own.steps + 1, own.samples + rows, own.epochs + ends_epoch
        own.rows, own.ends_epoch = rows, ends_epoch
        self._pending.rows += rows
        if self._idle or (self.every is not None and self.every.fires(own)):
            self.exchange(replica)
        return False

    def finish(self, replica: Replica) -> None:
        if self._pending.rows:
            self.exchange(replica)

    def leave(self) -> None:
        self.center.leave()

    def agreed(self, replica: Replica) -> list[Tensor]:
        """The center's weights."""
        return replica.joined(self.center.pull().vectors)

    def exchange(self, replica: Replica) -> None:
        """Sends what has been learnt since the last exchange, and takes the weights of the reply."""
        push = self._pending
        self.fill(push, _on_host(replica))
        reply = self.center.exchange(push)
        for name, (coefficient, total, weight) in push.tally.items() if reply.taken else ():
            add_terms(self._sent_terms, name, coefficient, total, weight)
        self._idle = False
        self._go_on(replica, reply, push.sequence + 1)

    def refresh(self) -> CenterProgress:
        """Asks the center how far the training is now."""
        self._note_progress(self.center.pull())
        assert self._center_progress is not None
        return self._center_progress

    def status(self) -> dict[str, Any]:
        """Counters of the center, for reports."""
        return self.center.status()

    def state_dict(self, replica: Replica) -> State:
        """The center's; worker 0 keeps it for all."""
        return self.center.state_dict() if self.comm.leader else {}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Before `begin`, which then joins the center in this state; nothing of a worker's own outlives it."""
        self._resumed = dict(state) or None

    def _note_progress(self, reply: Reply) -> None:
        self._center_progress = CenterProgress(reply.samples, reply.epochs, reply.stop, reply.taken)

    def _go_on(self, replica: Replica, reply: Reply, sequence: int) -> None:
        """With the weights of a reply, towards the push of that number."""
        self._note_progress(reply)
        places = replica.by_name(replica.tensors)
        if missing := places.keys() - reply.vectors.keys():
            raise CheckpointError(f"the center lacks {min(missing)!r}, which the model has.")
        torch._foreach_copy_(list(places.values()), [reply.vectors[name] for name in places])
        self.take(reply)
        self._pending = Push(sequence, reply.version, {}, 0)


def _on_host(replica: Replica) -> dict[str, Tensor]:
    """The replica's tensors by name; the model's own where they are on the host already."""
    return replica.by_name([tensor.detach().to("cpu") for tensor in replica.tensors])
