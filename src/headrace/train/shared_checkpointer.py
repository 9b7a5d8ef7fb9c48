"""One worker keeps the training for all of them: it alone touches the disk, and hands out what was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ..step import config
from ..step.team import by_leader
from ..watch.info import Best, Info
from ..workers.comm import Comm
from .checkpointer import Checkpointer, State


class SharedCheckpointer(Checkpointer):
    """Worker 0's checkpointer, seen by all workers."""

    def __init__(self, make: Callable[[], Checkpointer], comm: Comm) -> None:
        self._comm, self._asks = comm, False
        self._own = make()
        self.keeps, self.every, self.path = self._own.keeps, self._own.every, self._own.path
        if not comm.leader:
            self._own = Checkpointer()

    def __enter__(self) -> SharedCheckpointer:
        by_leader(self._comm, lambda: self._own.__enter__() and None)
        if not self._comm.leader:
            self._own.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._own.__exit__(*error)

    def find(self, model: nn.Module, settings: config.Config, limits: config.Config) -> State | None:
        owns: list[Any] = []

        def found() -> State | None:
            nonlocal owns
            state = self._own.find(model, settings, limits)
            owns = [] if state is None else state.pop("owns")
            return None if state is None else state | {"owners": len(owns)}

        state = by_leader(self._comm, found)
        if state is None:
            return None
        if state["owners"] == self._comm.count:  # everybody gets what is its own, and nothing else
            mine = self._comm.hand_out(owns)
            return state | {"owns": [mine if k == self._comm.shard.index else None for k in range(self._comm.count)]}
        return state | {"owns": self._comm.share(owns)}

    def begin(self, info: Info, nbytes: int) -> None:
        def begun() -> list[dict[str, Any]]:
            self._own.begin(info, nbytes)
            return info.history.rows[-1:]

        info.history.rows[-1:] = by_leader(self._comm, begun)  # with what was reported after the last checkpoint

    def started(self, info: Info, data: str) -> None:
        by_leader(self._comm, lambda: self._own.started(info, data))

    def due(self, info: Info) -> bool:
        every = self.every if self.keeps else None
        by_clock = every is None or every.unit == "minutes"
        self._asks = by_clock and self.keeps and self._comm.leader and self._own.due(info)
        return every is not None and not by_clock and every.fires(info.counters)

    def overdue(self) -> bool:
        return self._asks

    def settle(self) -> None:
        by_leader(self._comm, self._own.settle)

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        self._own.report(row, minutes)

    def save(self, state: State | None, info: Info, again: bool = False) -> None:
        if state is not None:
            self._own.save(state, info, again)

    def mark_best(self, model: nn.Module) -> None:
        if self._comm.leader:
            self._own.mark_best(model)

    def restore(self, best: Best, model: nn.Module) -> None:
        by_leader(self._comm, lambda: self._own.restore(best, model))

    def end(self, why: str) -> None:
        by_leader(self._comm, lambda: self._own.end(why))
