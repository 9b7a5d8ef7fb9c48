"""A source cut into epochs of a given length."""

import copy
from collections.abc import Callable, Mapping, Sequence

import torch

from ..errors import SourceError
from .batch import Batch, State, Stream
from .source import WHOLE, Shard, Source


class Epochs(Source):
    """A source whose epochs have `rows` rows, each going on where the last one ended.

    The last batch of an epoch is as small as it has to be, if the source gives what is asked; else it crosses the
    end. A source that ends is rewound, where it can be, and goes on within the epoch.
    """

    def __init__(self, source: Source, rows: int) -> None:
        self.take_over(source, marks_ends=True, endless=False)
        self._source, self.rows = source, rows
        self._given = 0
        self._initial = copy.deepcopy(source.state_dict())

    @property
    def streams(self) -> Sequence[Stream]:
        return self._source.streams

    @property
    def waiting(self) -> Callable[[], None]:
        """What the source calls while it waits."""
        return self._source.waiting

    @waiting.setter
    def waiting(self, call: Callable[[], None]) -> None:
        self._source.waiting = call

    @property
    def title(self) -> str:
        return self._source.title

    @property
    def read_by(self) -> Mapping[str, Sequence[str]] | None:
        return self._source.read_by

    @property
    def level(self) -> str:
        return self._source.level

    @property
    def row_bytes(self) -> float:
        return self._source.row_bytes

    @property
    def item_bytes(self) -> float:
        return self._source.item_bytes

    def resident(self, device: torch.device) -> bool:
        return self._source.resident(device)

    def apart(self) -> "Epochs":
        source = self._source.apart()
        if source is self._source:
            return self
        found = copy.copy(self)
        found._source = source
        return found

    def batches(self, size: int) -> int | None:
        exact = self._source.endless and self.sized_by == "rows" and not self.own_size
        return -(-self.rows // size) if exact else None

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        wanted = min(size, self.rows - self._given) if self.sized_by == "rows" else size
        batch = self._source.pull(wanted, shard)
        if batch is None:  # it has ended: once more from its beginning, where it goes back to by itself if not by us
            if self._initial is not None:
                self._source.load_state_dict(copy.deepcopy(self._initial))
            batch = self._source.pull(wanted, shard)
        if batch is None:
            return None
        self._given += batch.total
        ends = self._given >= self.rows
        self._given -= self.rows * ends
        return Batch(batch.fields, batch.rows, total=batch.total, ends_epoch=ends)

    def state_dict(self) -> State | None:
        inner = self._source.state_dict()
        return None if inner is None else {"rows": self.rows, "given": self._given, "source": inner}

    def load_state_dict(self, state: State) -> None:
        if not state.keys() >= {"rows", "given", "source"}:
            raise SourceError(f"this is not the state of epochs of a {type(self._source).__name__}: {list(state)}.")
        if state["rows"] != self.rows:
            raise SourceError(f"this is the state of epochs of {state['rows']} rows; these have {self.rows}.")
        self._source.load_state_dict(state["source"])
        self._given = int(state["given"])
