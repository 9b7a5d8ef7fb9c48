"""A source that reads the rows which a center leases this worker."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ..data.batch import Batch, Macrobatch, State
from ..data.reader import Reader, SourceWrapper
from ..data.shard import WHOLE, Shard
from ..data.source import Source
from ..errors import ConfigError, SourceError
from .center import CenterClient
from .leases import Rows

_OWN = ("used", "leases", "pass")


class Leased(SourceWrapper):
    """Reads what the center leases this worker, a lease at a time; every batch is whole its own, the shard is ignored.

    Batches do not cross leases, so the last one of a lease may be short. The next lease is asked for before that one
    is given. It ends an epoch of this worker, a *pass*, if the next lease is of a later epoch, or if there is none:
    then nothing is left to read, unless another worker gives rows back. As long as that may happen it waits for them;
    no epoch ends twice.

    Cursors are those of the Reader and say, beside, which positions the batch had and which lease to go on with:
    `used` is [start, stop], and `leases` is empty when there was nothing more to read. They are good as long as these
    rows are out with this worker.
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
        self.exhausted = False
        """Whether the center has said that all rows have been used."""
        self._reads = False
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
        """Batches of one lease; the last one stands alone where possible, so that the next lease is requested late."""
        self._reads = True
        try:
            return self._read(size, rows)
        finally:
            self._reads = False

    def cursor_now(self, cursor: State) -> State:
        """The cursor of the batch used last, with what has been leased since, while more is being read."""
        return cursor | _place(self._leases, self._pass) if self._reads else cursor

    def _read(self, size: int, rows: int) -> Macrobatch | None:
        if not self._leases and not self._await():
            return None
        lease, following = self._leases[0], self._leases[1:]
        reader, together = self.reader, max(size, min(rows, lease[1] - lease[0] - size))
        macrobatch = reader.reading.until(lease[1]).fetch(lease[0], size, together)
        assert macrobatch is not None
        cuts = list(accumulate(macrobatch.totals, initial=lease[0]))
        reader.position = cuts[-1]
        macrobatch.ends_epoch, passed = False, self._pass
        if cuts[-1] == lease[1]:
            following = following or self._following()
            self._pass = max(passed, self._epoch(following[0]) if following else self._epoch(lease) + 1)
            macrobatch.ends_epoch = self._pass > passed
        self._leases = [*_left(lease, cuts[-1]), *following]
        macrobatch.cursors = [
            {
                **(cursor or {}),
                "used": [start, stop],
                **_place([*_left(lease, stop), *following], self._pass if stop == lease[1] else passed),
            }
            for cursor, (start, stop) in zip(macrobatch.cursors, pairwise(cuts), strict=True)
        ]
        return macrobatch

    def state_dict(self) -> State:
        return {**self.reader.state_dict(), "used": None, **_place(self._leases, self._pass)}

    def load_state_dict(self, state: State) -> None:
        if missing := [key for key in _OWN if key not in state]:
            raise SourceError(f"this is not the cursor of leased rows: it lacks {', '.join(missing)}.")
        self.reader.load_state_dict(state)
        self._leases = [(int(start), int(stop)) for start, stop in state["leases"]]
        self._pass = state["pass"]

    def begin_at(self, epoch: int) -> None:
        """Epochs before this one have ended: what is left of them ends none."""
        self._pass = max(self._pass, epoch)

    def _following(self) -> list[Rows]:
        """The next lease, if there is one now."""
        rows = self.center.call("lease")["rows"]
        return [(rows[0], rows[1])] if rows else []

    def _await(self) -> bool:
        """Waits until there are rows to read; whether there are any left."""
        while not self.exhausted:
            answer = self.center.call("lease")
            if answer["rows"]:
                start, stop = answer["rows"]
                self._leases, self._pass = [(start, stop)], max(self._pass, self._epoch((start, stop)))
                return True
            self.exhausted = answer["over"]
            if not self.exhausted:
                self.center.wait(answer)
                self.waiting()
        return False

    def _epoch(self, lease: Rows) -> int:
        return lease[0] // self.reader.order.n


def _left(lease: Rows, at: int) -> list[Rows]:
    """What is left of a lease behind a position."""
    return [(at, lease[1])] if at < lease[1] else []


def _place(leases: Sequence[Rows], passed: int) -> State:
    """What to go on with."""
    return {"leases": [list(rows) for rows in leases], "pass": passed}
