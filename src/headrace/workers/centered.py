"""The base of strategies whose workers exchange weights with a center, each at its own pace."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..arena.replica import Replica
from ..errors import ConfigError
from ..length import Counters, Length, interval
from ..loss.tally import LossSums
from .center import Body, Center, HostWeights, Leases, Rows, joined
from .connection import CenterClient
from .strategy import State, Strategy

SHARES = 8
"""Leases of an epoch for each worker, and batches of a lease, where nothing else says how many."""


class Centered(Strategy, ABC):
    """Every worker updates its own replica, and after each `every` exchanges weights with the center in worker 0.

    Override `merge`, which makes an exchange. Workers do not wait for each other. `every` counts the updates, rows or
    epochs of one worker; its epoch ends when the center leases it rows of a later one. With "end" there is one
    exchange, at the end of the training. A worker also exchanges weights when there are no more rows for it to read.
    The center leases `lease` rows at a time.

    Rows are used exactly once: an exchange applies a change and records its rows in one call. The state of an optimizer
    and integer buffers stay on their worker. Other buffers are treated like parameters.
    """

    centered: ClassVar[bool] = True

    def __init__(self, every: str | Length, lease: int | None = None) -> None:
        if lease is not None and (not isinstance(lease, int) or isinstance(lease, bool) or lease < 1):
            raise ConfigError(f"lease= is a number of rows, at least 1, got {lease!r}.")
        self.every = None if every == "end" else interval(every, "every")
        self.lease = lease
        self._leases = Leases(1, 1)
        self._resumed: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = None, None
        self._forget()

    def _forget(self) -> None:
        self.center: Center | None = None
        """The center itself, in worker 0, during a training."""
        self.progress: Body = {"samples": 0, "stop": ""}
        """The progress that the center reported last: rows that all workers have used, and why they are to stop."""
        self.unsent_rows = 0
        """Rows that this worker has trained on since its last exchange."""
        self.sums = LossSums()
        """The loss terms of these rows, of workers other than 0; the loop adds them."""
        self._used = list[Rows]()
        self._counters = Counters()
        self._due = False
        self._client: CenterClient | None = None

    @abstractmethod
    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        """Makes an exchange: changes the tensors of the center and those of the worker in place."""

    @property
    def client(self) -> CenterClient:
        """How this worker calls the center."""
        assert self._client is not None, "the training has not begun"
        return self._client

    def plan_leases(self, rows: int, batch: int, block: int = 1, end: int | None = None) -> Leases:
        """Sets how the center leases the data: epochs of `rows` rows, read in batches, up to row `end`.

        A lease consists of complete batches, or of complete blocks if rows are read in blocks, unless the epoch ends
        before. By default it has the rows of a round, but at least a few batches and at most a fair share of an epoch.
        """
        every = None if self.every is None or self.every.unit == "epochs" else self.every
        fair = -(-rows // (self.comm.count * (SHARES if every is None else 1)))
        unit = block if block > 1 else batch
        wanted = fair
        if every is not None:
            of_round = int(every.count) * (batch if every.unit == "steps" else 1)
            wanted = min(fair, max(of_round, SHARES * batch))
        self._leases = Leases(rows, min(self.lease or -(-wanted // unit) * unit, rows), end)
        return self._leases

    def begin(self, replica: Replica) -> None:
        """All workers begin together, with the center's weights, or with their own if they resume exactly."""
        state, own = self._resumed
        self._resumed = None, None
        self._forget()
        self._weights = HostWeights(replica.by_name(replica.tensors))
        if self.comm.leader:
            self.center = Center(HostWeights(self._weights.named), self._leases, self.merge, self.comm.count)
            if state is not None:
                self.center.load_state_dict(state, workers=0 if own is None else self.comm.count)
        self._client = self.comm.open_center(self.center)
        self.progress = self.comm.share(self.center and self.center.progress)
        if own is not None:
            self._load_own(own)

    def used(self, cursor: Mapping[str, Any]) -> None:
        """Called before `after`: the rows of the update, as `Leased` writes them into the cursor."""
        start, stop = cursor["used"]
        self._used.append((start, stop))
        self._due |= not cursor["leases"]

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        own = self._counters
        own.steps, own.samples, own.epochs = own.steps + 1, own.samples + rows, own.epochs + ends_epoch
        own.rows, own.ends_epoch = rows, ends_epoch
        self.unsent_rows += rows
        self._due |= self.every is not None and self.every.fires(own)
        return False

    def exchange_if_due(self, replica: Replica) -> None:
        """Exchanges weights with the center if an exchange is due."""
        if self._due:
            self.exchange(replica)

    def exchange(self, replica: Replica) -> None:
        """Sends the changes since the last exchange, and takes over the weights that the center returns."""
        named = replica.by_name(replica.tensors)
        self._weights.load(named)
        body = {"rows": self.unsent_rows, "used": joined(self._used), "terms": self.sums.totals()}
        self.progress = self.client.call("exchange", body, self._weights)
        torch._foreach_copy_([named[name] for name in self._weights.named], self._weights.tensors)
        self.sums.reset()
        self.unsent_rows, self._used, self._due = 0, [], False

    def refresh(self) -> Body:
        """Gets the progress of the training from the center."""
        self.progress = self.client.call("pull")
        return self.progress

    def finish(self, replica: Replica) -> None:
        if self.unsent_rows:
            self.exchange(replica)

    def leave(self) -> None:
        client, self._client, self.center = self._client, None, None
        if client is not None:
            client.leave()

    def consensus(self, replica: Replica) -> list[Tensor]:
        """The center's weights."""
        weights = HostWeights(self._weights.named)
        self.progress = self.client.call("pull", weights=weights)
        return replica.joined(weights.named)

    def state_dict(self, replica: Replica) -> State:
        """The state of the center and the virtual time of all workers, which worker 0 saves."""
        return {} if self.center is None else self.center.state_dict() | {"clock": self.client.clock()}

    def own_state(self) -> State:
        counters = self._counters
        return {
            "rows": self.unsent_rows,
            "used": [list(rows) for rows in joined(self._used)],
            "terms": self.sums.state_dict(),
            "due": self._due,
            "counters": [counters.steps, counters.samples, counters.epochs],
            "progress": dict(self.progress),
        }

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Called before `begin`. With `own=None`, the number of workers has changed, and no row is leased."""
        self._resumed = state, own

    def _load_own(self, own: Mapping[str, Any]) -> None:
        self.unsent_rows, self._due = int(own["rows"]), bool(own["due"])
        self._used = [(int(start), int(stop)) for start, stop in own["used"]]
        self.sums.load([own["terms"]])
        counters = self._counters
        counters.steps, counters.samples, counters.epochs = map(int, own["counters"])
        self.progress = dict(own["progress"]) | {"stop": ""}
