"""Sources made of other sources: one that is like another, and one with epochs of a given length."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import SourceError
from .batch import Batch, State, Stream
from .encoding import Encoding
from .reader import Reader
from .shard import WHOLE, Shard
from .source import Source, forwarded


class SourceWrapper(Source):
    """A source made of another one, which it is like but for what it overrides."""

    def __init__(self, source: Source, **others: Any) -> None:
        self._source = source
        self.take_over(source, **others)

    streams: Sequence[Stream] = forwarded("_source.streams")
    title: str = forwarded("_source.title")
    encoding: Encoding | None = forwarded("_source.encoding")
    row_bytes: float = forwarded("_source.row_bytes")
    item_bytes: float = forwarded("_source.item_bytes")
    resident = forwarded("_source.resident")
    generators = forwarded("_source.generators")

    @property
    def level(self) -> str:
        return self._source.level

    @property
    def waiting(self) -> Callable[[], None]:
        """What the source calls while it waits."""
        return self._source.waiting

    @waiting.setter
    def waiting(self, call: Callable[[], None]) -> None:
        self._source.waiting = call

    def passed(self) -> None:
        self._source.passed()


class Epochs(SourceWrapper):
    """A source whose epochs have `rows` rows, each going on where the last one ended.

    The last batch of an epoch is as small as it has to be, if the source gives what is asked; else it crosses the
    end. A source that ends is rewound, where it can be, and goes on within the epoch.
    """

    def __init__(self, source: Source, rows: int) -> None:
        super().__init__(source, marks_ends=True, endless=False)
        self.rows = rows
        self._given = 0
        self._initial = copy.deepcopy(source.state_dict())

    def independent_reader(self) -> "Epochs":
        source = self._source.independent_reader()
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


@contextmanager
def rewound(source: Source) -> Iterator[None]:
    """Puts a source back afterwards to where it stood, if it can be; a table is read from its first row meanwhile."""
    state = copy.deepcopy(source.state_dict())
    if isinstance(source, Reader) and state is not None:
        source.load_state_dict(source.cursor(0))
    try:
        yield
    finally:
        if state is not None:
            source.load_state_dict(state)
            source.passed()
