"""A table and a source as users write them, for tests that need one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import headrace as hr


class Elsewhere(hr.Table):
    """Rows that are not in the memory of the device, so that a thread reads them; `look` gets their numbers first."""

    thread_safe = True

    def __init__(self, columns: Mapping[str, Any], look: Callable[[Tensor], None] = lambda rows: None) -> None:
        self._table, self._look = hr.ArrayTable(columns), look

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return self._table.streams

    def __len__(self) -> int:
        return len(self._table)

    def take(self, indices: Tensor) -> hr.Batch:
        self._look(indices)
        return self._table.take(indices)

    def lengths(self, stream: str) -> Tensor:
        return self._table.lengths(stream)


class Pulled(hr.Source):
    """Gives rows one after the other, with `None` at the end of a pass, and has a state to go back to.

    With `ends="flag"` the last batch of a pass has `ends_epoch`, and the next pass begins by itself; with "both",
    `None` comes as well. Without `state` it begins again after `None`. Other arguments say what it is: `thread_safe`.
    """

    def __init__(self, columns: Mapping[str, Any], ends: str = "None", state: bool = True, **says: Any) -> None:
        self.columns, self.ends, self.state = columns, ends, state
        self.rows, self.at, self.given = len(next(iter(columns.values()))), 0, list[int]()
        self.marks_ends = ends == "flag"
        for name, value in says.items():
            setattr(self, name, value)

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream.of(name, column) for name, column in self.columns.items()]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        if self.at >= self.rows:
            self.at = self.at if self.state else 0
            return None
        start, self.at = self.at, min(self.rows, self.at + size)
        self.given.append(start)
        ends = self.at == self.rows and self.ends != "None"
        batch = hr.Batch({name: c[start : self.at] for name, c in self.columns.items()}, ends_epoch=ends)
        if ends and self.ends == "flag":
            self.at = 0
        return batch

    def state_dict(self) -> dict[str, Any] | None:
        return {"at": self.at} if self.state else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def counted(rows: int, **options: Any) -> Pulled:
    """A source of the stream `x`, which is the number of a row."""
    return Pulled({"x": torch.arange(rows)}, **options)
