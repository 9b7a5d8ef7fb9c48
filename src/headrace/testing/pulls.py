"""A source under trial: every pull is held to the declaration, seen as it came, and compared."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ..data.batch import Batch, State, Stream
from ..data.fields import has_rows
from ..data.source import WHOLE, Shard, Source, check_batch
from ..errors import SourceError
from .seen import Saved, Seen, beside, streams_of
from .trial import Trial

ENDLESS = 40  # batches that are read of a source that never ends


@dataclass
class Run:
    """What one source gave, batch after batch."""

    size: int
    batches: list[Seen]
    finished: bool
    """Whether None came after the last one."""

    @property
    def stops(self) -> list[int]:
        """How many rows have come after each batch."""
        stops, at = [], 0
        for batch in self.batches:
            at += batch.total
            stops.append(at)
        return stops

    @property
    def flagged(self) -> list[int]:
        """The batches that say that they end an epoch."""
        return [k for k, batch in enumerate(self.batches) if batch.ends]

    @property
    def rows(self) -> list[Hashable]:
        """The rows of all batches."""
        return [row for batch in self.batches for row in batch.rows]


class Pulls:
    """One source, made by the factory."""

    def __init__(self, trial: Trial, factory: Callable[[], Source]) -> None:
        self._trial = trial
        self.source: Source = trial.call("calls", "the factory", factory)
        trial.that("calls", isinstance(self.source, Source), "the factory", "a Source", type(self.source).__name__)
        trial.report.subject = type(self.source).__name__
        self.streams: Sequence[Stream] = trial.call("streams", "streams", streams_of, self.source)
        self.given: list[Batch] = []
        """The batches themselves, as long as they are wanted."""
        self.promise = "calls"
        """What is broken if a pull fails."""

    def pull(self, size: int, where: str, shard: Shard = WHOLE) -> Seen | None:
        """The next batch as the source itself gives it."""
        what = f"{where}: next_batch({size}, {shard})"
        batch = self._trial.call(self.promise, what, self.source.next_batch, size, shard)
        if batch is None:
            return None
        self._check(batch, size, what, shard)
        self.given.append(batch)
        return self.see(batch, what)

    def part(self, size: int, where: str, shard: Shard) -> Seen | None:
        """A worker's part of the next batch, cut by the library if the source does not."""
        if self.source.shards:
            return self.pull(size, where, shard)
        found = self.macrobatch(size, 1, where, shard)
        return found[0][0] if found[0] else None

    def macrobatch(self, size: int, rows: int, where: str, shard: Shard = WHOLE) -> tuple[list[Seen], bool]:
        """The batches of the next macrobatch, and whether the source is finished after them."""
        what = f"{where}: next_macrobatch({size}, {rows}, {shard})"
        held = self._trial.call("macrobatch", what, self.source.next_macrobatch, size, rows, shard)
        if held is None:
            return [], True
        if held.finish is not None:
            held.fields = held.finish(held.fields)
        return [self.see(batch, what) for batch in held.batches()], held.finishes

    def run(self, size: int, batches: int, epochs: int = 2, saved: "list[Saved] | None" = None) -> Run:
        """Some epochs from where it stands, up to None or the first batch behind them; states are added to `saved`."""
        source, found, since, ended = self.source, Run(size, [], False), 0, 0
        while True:
            where = f"size {size}, batch {len(found.batches)}"
            batch = self.pull(size, where)
            if batch is None:
                self._trial.that("end", not source.endless, where, "a batch, being endless", None)
                found.finished = True
                return found
            found.batches.append(batch)
            if saved is not None:
                self.save(saved, where)
            if ended == epochs or (source.endless and len(found.batches) >= ENDLESS):
                return found
            ended, since = ended + batch.ends, 0 if batch.ends else since + 1
            self._trial.that(
                "end",
                source.endless or since < batches,
                where,
                f"the end of the epoch within {batches} batches (say endless = True if there is none, and pass "
                "batches= if there are more)",
                batch,
            )

    def state(self, where: str) -> State | None:
        state: State | None = self._trial.call("state", f"{where}: state_dict()", self.source.state_dict)
        return state

    def save(self, saved: list[Saved], where: str) -> State | None:
        """Adds the state as a checkpoint would keep it, and compares the cursor of the batch before with it."""
        state = self.state(where)
        if state is None and not saved:
            return None
        self._trial.that("state", state is not None, where, "a state, as there was one before", None)
        kept: Saved = self._trial.call("state", f"{where}: saving state_dict()", Saved, state)
        if self.given and (cursor := self.given[-1].cursor) is not None:
            same_state(self._trial, "cursor", kept, Saved(cursor).text, where)
        saved.append(kept)
        return state

    def load(self, saved: Saved, where: str, promise: str = "restore") -> None:
        """Goes to a state that has been in a checkpoint; the source keeps nothing of what it is given."""
        self._trial.call(promise, f"{where}: load_state_dict({saved})", self.source.load_state_dict, saved.load())

    def see(self, batch: Batch, what: str) -> Seen:
        seen: Seen = self._trial.call("streams", what, Seen.of, batch, self.source.sized_by)
        return seen

    def _check(self, batch: Batch, size: int, what: str, shard: Shard) -> None:
        trial, source = self._trial, self.source
        trial.call("streams", what, check_batch, batch, self.streams, type(source).__name__)
        names = [stream.name for stream in self.streams]
        trial.uncompared(batch)
        extra = [name for name in batch if name not in names]
        trial.that("streams", not extra, what, f"the streams {names}", f"{extra} beside them")
        trial.that("rows", shard.count > 1 or batch.rows > 0, what, "rows, or None at the end", batch)
        trial.that("rows", shard.count > 1 or batch.total == batch.rows, what, f"total={batch.rows}", batch.total)
        if source.sized_by != "rows":
            trial.call("declared", what, _sequences, batch, source.sized_by)
        if not source.own_size:
            found = batch.rows if source.sized_by == "rows" else batch.items(source.sized_by)
            alone = source.sized_by != "rows" and batch.rows <= 1
            trial.that("size", found <= size or alone, what, f"at most {size} {_unit(source)}", found)


def same(trial: Trial, promise: str, expected: Sequence[Seen | None], got: Sequence[Seen | None], where: str) -> None:
    """Raises at the first batch that is not the same."""
    for k, (one, other) in enumerate(zip(expected, got, strict=False)):
        trial.that(
            promise,
            one == other,
            f"{where}, batch {k}",
            one,
            other if other is None or one == other else other.against(one),
        )
    trial.equal(promise, len(expected), len(got), f"{where}, number of batches")


def same_state(trial: Trial, promise: str, expected: Saved, got: str | None, where: str) -> None:
    """Raises unless a state is the one that was saved."""
    if got is not None and got != expected.text:
        trial.that(promise, False, where, *beside(expected.text, got))
    trial.that(promise, got is not None, where, expected, got)


def uncut(run: Run) -> bool:
    """Whether the batches have fields that the library cannot cut for workers."""
    return any(batch.whole for batch in run.batches)


def _unit(source: Source) -> str:
    return "rows" if source.sized_by == "rows" else f"items of {source.sized_by!r}"


def _sequences(batch: Batch, stream: str) -> None:
    field = batch[stream]
    if not has_rows(field) or not hasattr(field, "host_offsets"):
        raise SourceError(f"sized_by = {stream!r} names no stream of sequences")
