"""Workers that meet at one center in turn, in one thread: enough to try strategies with a center, without a trainer."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from headrace import Batch
from headrace.arena.arena import Arena
from headrace.arena.replica import Replica
from headrace.length import Counters
from headrace.workers.center import Center, Push, Vectors
from headrace.workers.center_state import CenterState, LocalCenter
from headrace.workers.centered import Centered
from headrace.workers.comm import Null
from headrace.workers.leased import Leased
from kit.toy_workers import through_codec


class NothingToReadError(Exception):
    """A worker has nothing to read for now."""


def pause() -> None:
    raise NothingToReadError


class Seat(Null):
    """One worker of several that share a center."""

    def __init__(self, held: CenterState, index: int, count: int, now: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.shard = hr.Shard(index, count)
        self._seat = LocalCenter(held, index, now, pause)

    @property
    def center(self) -> Center:
        return self._seat


@dataclass(frozen=True)
class Marks:
    """A rule that shows what has been applied: a push adds what it brings, and the worker takes the center."""

    def apply(self, center: Vectors, push: Push, staleness: int) -> Vectors | None:
        for name, tensor in center.items():
            tensor.add_(push.vectors[name])  # type: ignore[attr-defined]
        return center


class Trainee:
    """One worker: a small model, rows that the center leases it, and the loop that a trainer would be."""

    def __init__(
        self,
        held: CenterState,
        index: int,
        count: int,
        strategy: Centered,
        model: nn.Module,
        table: hr.Table,
        batch: int = 4,
        epochs: int = 1,
        rate: float = 0.1,
        resume: Mapping[str, Any] | None = None,
        anew: bool = False,
    ) -> None:
        self.strategy, self.batch, self.model = strategy, batch, copy.deepcopy(model)
        strategy.join(Seat(held, index, count))
        strategy.plan_leases(rows=len(table), batch=batch, end=epochs * len(table))
        self.source = Leased(hr.Reader(table, seed=7), strategy.comm.center)
        self.cursor: Any = self.source.state_dict()
        self.counters = Counters()
        self.rows: list[int] = []
        """Which rows were trained on, in order."""
        if resume is not None:
            self.model.load_state_dict(resume["model"])
            self.counters = copy.copy(resume["counters"])
            if not anew:
                self.source.load_state_dict(resume["cursor"])
                self.cursor = resume["cursor"]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.0)
        self.arena = Arena(self.model, self.optimizer)
        self.replica = Replica(self.model, lambda: [self.arena])
        if resume is not None:
            strategy.load_state_dict(self.replica, resume["shared"], None if anew else resume["own"])
        strategy.begin(self.replica)

    def run(self) -> Iterator[str]:
        """Update after update: "updated", or "waiting" where there is nothing to read for now."""
        while True:
            try:
                batch = self.source.pull(self.batch)
            except NothingToReadError:
                yield "waiting"
                continue
            if batch is None:
                return
            self.update(batch)
            yield "updated"

    def update(self, batch: Batch) -> None:
        self.arena.begin()
        F.mse_loss(self.model(batch["x"]), batch["y"]).backward()
        self.arena.collect()
        self.optimizer.step()
        self.rows += batch["row"].tolist()
        self.cursor = batch.cursor
        self.counters.steps += 1
        self.strategy.used(batch.cursor, {"loss": [1.0, float(batch.rows), float(batch.rows)]})
        self.strategy.after(self.replica, self.counters, batch.rows, batch.total, batch.ends_epoch)

    def save(self) -> dict[str, Any]:
        """Everything, as a checkpoint has it."""
        return {
            "shared": through_codec(self.strategy.comm.center.state_dict()),
            "own": through_codec(self.strategy.own_state()),
            "model": self.weights,
            "cursor": copy.deepcopy(self.cursor),
            "counters": copy.copy(self.counters),
        }

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def in_turn(trainees: Sequence[Trainee], updates: int = 10_000) -> None:
    """Each makes an update in its turn, until all have ended or so many rounds have been made."""
    runs = [trainee.run() for trainee in trainees]
    for _ in range(updates):
        said = [next(run, "ended") for run in runs]
        if {*said} == {"ended"}:
            return
        assert "updated" in said or "ended" in said, "everybody waits"


def regression() -> tuple[nn.Module, hr.ArrayTable]:
    """A small model with a buffer, and 50 rows to train it on."""
    rows, inputs = 50, 5
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator)
    y = x @ torch.randn(inputs, 2, generator=generator)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
    return model, hr.ArrayTable({"x": x, "y": y, "row": torch.arange(rows)})
