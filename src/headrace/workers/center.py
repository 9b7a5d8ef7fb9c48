"""The center: weights in worker 0 with which workers exchange theirs, and the rows that it leases to them."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..arena.replica import Replica
from ..errors import CheckpointError, ConfigError, WorkerError
from .leases import Leases

PAUSE_S = 0.02
"""How long a worker waits before it asks once more whether there are rows to read."""
_ALIGNED = 16  # bytes: what the largest element needs
Body = dict[str, Any]
"""What a call says beside the weights: plain values."""
Merge = Callable[[list[Tensor], list[Tensor]], None]
"""Changes the tensors of the center and those of a worker, which it goes on with, both in place."""


class HostWeights:
    """The tensors of a replica in one piece of memory on the host: `named` are views of `flat`, which is bytes."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        sizes = {name: -(-tensor.nbytes // _ALIGNED) * _ALIGNED for name, tensor in like.items()}
        self.flat = torch.zeros(sum(sizes.values()), dtype=torch.uint8)
        self.named: dict[str, Tensor] = {}
        for (name, tensor), part in zip(like.items(), self.flat.split([*sizes.values()]), strict=True):
            self.named[name] = part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self.tensors = [*self.named.values()]

    @classmethod
    def of(cls, replica: Replica) -> "HostWeights":
        found = cls(replica.by_name(replica.tensors))
        found.read(replica)
        return found

    def read(self, replica: Replica) -> None:
        """Takes the weights of a replica."""
        self.load(replica.by_name(replica.tensors))

    def write(self, replica: Replica) -> None:
        """Gives these weights to a replica."""
        places = replica.by_name(replica.tensors)
        torch._foreach_copy_([places[name] for name in self.named], self.tensors)

    def load(self, named: Mapping[str, Tensor]) -> None:
        if missing := self.named.keys() - named.keys():
            raise CheckpointError(f"the center's state lacks {min(missing)!r}, which the model has.")
        torch._foreach_copy_(self.tensors, [named[name].detach() for name in self.named])

    def copy(self) -> dict[str, Tensor]:
        """Copies of the tensors, by name."""
        return {name: tensor.clone() for name, tensor in self.named.items()}


class Center:
    """The center itself, in worker 0; `serve` is called by one worker at a time.

    An exchange applies what a worker has learnt and records the rows that it comes from in one call, so that the
    weights have learnt from exactly the rows that are recorded as used.
    """

    def __init__(self, weights: HostWeights, leases: Leases, merge: Merge, count: int) -> None:
        self.weights, self.leases, self.count = weights, leases, count
        self.exchanges = 0
        self.stop = ""
        """Why all workers are to stop, if one of them has asked for it."""
        self.terms: dict[str, list[float]] = {}
        """Coefficient, sum and weight of each loss term that came with the exchanges."""
        self.rows = [0] * count
        """Rows that the weights have learnt from each worker."""
        self.left: set[int] = set()
        """The workers that have left the training."""
        self.lost: int | None = None
        """A worker whose connection has broken."""
        self._merge, self._lock, self._failure = merge, threading.Lock(), ""

    def serve(self, worker: int, name: str, body: Body, weights: HostWeights | None = None) -> Body:
        """Answers a call; the weights that come with it become those that the worker goes on with."""
        with self._lock:
            if self._failure:
                raise WorkerError(self._failure)
            try:
                return self._calls[name](self, worker, body, weights)
            except Exception as error:
                self._failure = f"the center failed while it served worker {worker}: {type(error).__name__}: {error}"
                raise

    def progress(self) -> Body:
        """How far the training is."""
        return {"samples": self.leases.used, "epochs": self.leases.epochs, "stop": self.stop}

    def status(self) -> Body:
        """Counters, for reports."""
        with self._lock:
            return {
                **self.progress(),
                "exchanges": self.exchanges,
                "rows": list(self.rows),
                "terms": {name: list(numbers) for name, numbers in self.terms.items()},
            }

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {
                "weights": self.weights.copy(),
                "leases": self.leases.state_dict(),
                "exchanges": self.exchanges,
                "rows": list(self.rows),
                "terms": {name: list(numbers) for name, numbers in self.terms.items()},
            }

    def load_state_dict(self, state: Mapping[str, Any], exact: bool) -> None:
        """Goes back to a state. `exact`: workers go on where they were; otherwise all rows that were out are free."""
        if (rows := int(state["leases"]["rows"])) != self.leases.rows:
            raise ConfigError(
                f"an epoch had {rows} rows when the run was saved, and has {self.leases.rows} now. Read the same data."
            )
        self.weights.load(state["weights"])
        self.leases.load_state_dict(state["leases"], self.count if exact else 0)
        self.exchanges = int(state["exchanges"])
        self.rows = [int(rows) for rows in state["rows"]][: self.count]
        self.rows += [0] * (self.count - len(self.rows))
        self.terms = {name: [float(number) for number in numbers] for name, numbers in state["terms"].items()}

    def _lease(self, worker: int, body: Body, weights: HostWeights | None) -> Body:
        """Rows to read, or nothing now: `over` if nothing will be free any more."""
        rows = None if self.stop else self.leases.lease(worker)
        over = rows is None and (bool(self.stop) or not self.leases.out)
        return {"rows": rows and list(rows), "over": over, "exchanges": self.exchanges}

    def _exchange(self, worker: int, body: Body, weights: HostWeights | None) -> Body:
        assert weights is not None
        self._merge(self.weights.tensors, weights.tensors)
        self.leases.use(worker, [(start, stop) for start, stop in body["used"]])
        for name, (coefficient, total, weight) in body["terms"].items():
            add_terms(self.terms, name, coefficient, total, weight)
        self.rows[worker] += body["rows"]
        self.exchanges += 1
        return self.progress()

    def _pull(self, worker: int, body: Body, weights: HostWeights | None) -> Body:
        """The weights as they are, and how far the training is."""
        if weights is not None:
            weights.flat.copy_(self.weights.flat)
        return self.progress()

    def _stop(self, worker: int, body: Body, weights: HostWeights | None) -> Body:
        self.stop = self.stop or body["why"]
        return {}

    def _leave(self, worker: int, body: Body, weights: HostWeights | None) -> Body:
        """A worker goes: rows that are out with it are free."""
        self.leases.give_back(worker)
        self.left.add(worker)
        return {}

    _calls: ClassVar = {"lease": _lease, "exchange": _exchange, "pull": _pull, "stop": _stop, "leave": _leave}


def add_terms(terms: dict[str, list[float]], name: str, coefficient: float, total: float, weight: float) -> None:
    """Adds the sum and the weight of a loss term to what is known of it."""
    _, totals, weights = terms.get(name, (0.0, 0.0, 0.0))
    terms[name] = [coefficient, totals + total, weights + weight]


class CenterClient(ABC):
    """How one worker calls the center."""

    @abstractmethod
    def call(self, name: str, body: Body | None = None, weights: HostWeights | None = None) -> Body:
        """The answer of `Center.serve`; the weights become those that the center gives back."""

    @abstractmethod
    def wait(self, answer: Body) -> None:
        """Lets time pass after this answer, that no rows are free, until some may be."""

    def close(self) -> None:
        """This worker calls no more. Worker 0 first waits until all others have left, unless it has failed."""

    def states_of_others(self, own: Any) -> list[Any]:
        """What all workers are saved with: where they take turns, every worker; else only this one."""
        return [own]

    def at_boundary(self, state: Callable[[], Any]) -> None:
        """Gives a function for the state of this worker, which holds whenever it waits at the center."""

    def clock(self) -> Body:
        """The virtual time of all workers."""
        return {}

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Gives a virtual time, as it was saved."""

    def go_back_in_time(self) -> None:
        """The virtual time becomes the one that was given, for all workers, who call this before their first update."""


class LocalCenter(CenterClient):
    """Calls a center in the same process, without a message; `attempt` makes a call that others may make fail."""

    def __init__(
        self, center: Center, timeout_s: float, attempt: Callable[..., Any] = lambda call, *given: call(*given)
    ) -> None:
        self._center, self._attempt, self._patience = center, attempt, Patience(timeout_s)

    def call(self, name: str, body: Body | None = None, weights: HostWeights | None = None) -> Body:
        found: Body = self._attempt(self._call, name, body or {}, weights)
        return found

    def _call(self, name: str, body: Body, weights: HostWeights | None) -> Body:
        if self._center.lost is not None and name != "leave":
            raise ConnectionError(f"worker {self._center.lost} has closed its connection with the center")
        return self._center.serve(0, name, body, weights)

    def wait(self, answer: Body) -> None:
        self._patience.check(answer)
        time.sleep(PAUSE_S)

    def close(self) -> None:
        others = set(range(1, self._center.count))
        while others - self._center.left:
            self.call("pull")
            time.sleep(PAUSE_S)


class Patience:
    """Ends a wait for rows once no worker has exchanged anything with the center for `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._exchanges, self._since_s = timeout_s, -1, 0.0

    def check(self, answer: Body) -> None:
        """Called before each pause."""
        now_s = time.monotonic()
        if answer["exchanges"] != self._exchanges:
            self._exchanges, self._since_s = answer["exchanges"], now_s
        elif now_s - self._since_s > self._timeout_s:
            raise WorkerError(
                f"all rows that are left are with other workers, of which none has come to the center for "
                f"{self._timeout_s:g} s. If they may take longer, raise timeout_s."
            )
