"""A source that reads the rows which a center leases this worker."""

from itertools import accumulate, pairwise

from ..data.batch import Batch, Macrobatch, State
from ..data.reader import Reader
from ..data.shard import WHOLE, Shard
from ..data.source import Source
from ..data.wrapped import SourceWrapper
from ..errors import ConfigError, SourceError
from .center import Rows
from .connection import CenterClient

_OWN = ("used", "leases", "pass")


class Leased(SourceWrapper):
    """Reads what the center leases this worker, a lease at a time; a batch is this worker's only, the shard is ignored.

    Batches do not cross leases, so the last one of a lease may be short. The next lease is requested before that batch
    is given. It ends an epoch of this worker, a *pass*, if the next lease is of a later epoch, or if there is none:
    then nothing is left to read, unless another worker gives rows back. As long as that may happen it waits for them;
    no epoch ends twice.

    Cursors are those of the Reader with the positions of the batch and the leases to continue with: `used` is [start,
    stop], and `leases` is empty when there was nothing more to read. They are valid as long as these rows are out with
    this worker.
    """

    center: CenterClient
    """Is set when the training begins."""

    def __init__(self, reader: Source) -> None:
        if not isinstance(reader, Reader):
            raise ConfigError(
                f"a strategy with a center lends workers rows by their numbers, which a {reader.title} does not know. "
                "Give the data as a Table, as hr.from_dataset makes of a Dataset, or use Synchronous or Periodic."
            )
        super().__init__(reader, thread_safe=False)
        self.reader = reader
        self._leases: list[Rows] = []  # what is left of them to read
        self._is_over = self._is_reading = False
        self._pass = -1  # the epoch that this worker is in: it has ended those before

    @property
    def level(self) -> str:
        return (
            "exactly on virtual workers; on others from the center's weights, with each row used once, and only worker "
            "0 keeps the state of its optimizer and its random numbers"
        )

    def next_batch(self, size: int, shard: Shard = WHOLE) -> Batch | None:
        macrobatch = self.next_macrobatch(size, size, shard)
        return None if macrobatch is None else macrobatch.only()

    def next_macrobatch(self, size: int, rows: int, shard: Shard = WHOLE) -> Macrobatch | None:
        """Batches of one lease; the last one comes separately if possible, so that the next lease is requested late."""
        self._is_reading = True
        try:
            return self._read(size, rows)
        finally:
            self._is_reading = False

    def cursor_now(self, cursor: State) -> State:
        """The cursor of the batch used last; while more is being read, with what has been leased since."""
        return cursor | _cursor(self._leases, self._pass) if self._is_reading else cursor

    def _read(self, size: int, rows: int) -> Macrobatch | None:
        if not self._leases:
            self._leases = self._lease(wait=True)
            if not self._leases:
                return None
            self._pass = max(self._pass, self._epoch(self._leases[0][0]))
        (first, end), following = self._leases[0], self._leases[1:]
        macrobatch = self.reader.until(end).fetch(first, size, max(size, min(rows, end - first - size)))
        assert macrobatch is not None
        cuts = list(accumulate(macrobatch.totals, initial=first))
        self.reader.position = cuts[-1]
        before = self._pass
        if cuts[-1] == end:
            following = following or self._lease()
            self._pass = max(before, self._epoch(following[0][0]) if following else self._epoch(first) + 1)
        macrobatch.ends_epoch = self._pass > before
        self._leases = [*_rest(cuts[-1], end), *following]
        macrobatch.cursors = [
            (cursor or {})
            | {"used": [start, stop]}
            | _cursor([*_rest(stop, end), *following], self._pass if stop == end else before)
            for cursor, (start, stop) in zip(macrobatch.cursors, pairwise(cuts), strict=True)
        ]
        return macrobatch

    def state_dict(self) -> State:
        return {**self.reader.state_dict(), "used": None, **_cursor(self._leases, self._pass)}

    def load_state_dict(self, state: State) -> None:
        if missing := [key for key in _OWN if key not in state]:
            raise SourceError(f"this is not the cursor of leased rows: it lacks {', '.join(missing)}.")
        self.reader.load_state_dict(state)
        self._leases = [(int(start), int(stop)) for start, stop in state["leases"]]
        self._pass = state["pass"]

    def _lease(self, wait: bool = False) -> list[Rows]:
        """The next lease; an empty list if there is none now or, after a `wait`, none any more."""
        while not self._is_over:
            answer = self.center.call("lease")
            if answer["rows"]:
                start, stop = answer["rows"]
                return [(start, stop)]
            if not wait:
                break
            self._is_over = answer["over"]
            if not self._is_over:
                self.center.wait(answer)
                self.waiting()
        return []

    def _epoch(self, position: int) -> int:
        return position // self.reader.order.n


def _rest(start: int, stop: int) -> list[Rows]:
    """What is left of a lease."""
    return [(start, stop)] if start < stop else []


def _cursor(leases: list[Rows], passed: int) -> State:
    """The part of a cursor that says what to continue with."""
    return {"leases": [list(rows) for rows in leases], "pass": passed}
