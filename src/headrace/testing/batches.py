"""What a source gives, pull by pull: every batch checked against the declaration, kept as values and compared."""

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch, State, Stream
from ..data.fields import Field, has_rows
from ..data.ragged import Ragged
from ..data.shard import WHOLE, Shard
from ..data.source import Source, Table, check_batch, check_names
from ..data.sparse import Sparse
from ..errors import SourceError
from ..store.codec import decode, encode
from .trial import PromiseTrial

SHOWN = 160  # characters of a batch or a state in a message
ROWS = 8  # rows of a batch in a message
ENDLESS = 40  # batches that are read of a source that never ends


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of a batch when it was given."""

    rows: tuple[Hashable, ...]
    """Every row as a value; of fields without rows nothing is compared."""
    total: int
    ends: bool
    cursor: str | None
    """The cursor that came with it, if any, as a text that differs if the cursor does."""
    text: str = field(compare=False)
    items: tuple[int, ...] = field(compare=False)
    """Of every row, how many items it counts for."""
    whole: bool = field(compare=False)
    """Whether it has a field that cannot be cut into rows."""

    @classmethod
    def of(cls, batch: Batch, sized_by: str = "rows") -> "Seen":
        return cls(
            rows_of(batch.fields, batch.rows),
            batch.total,
            batch.ends_epoch,
            None if batch.cursor is None else SavedState(batch.cursor).text,
            shown(batch.fields),
            (1,) * batch.rows if sized_by == "rows" else tuple(batch[sized_by].host_offsets.diff().tolist()),
            not all(has_rows(held) for held in batch.fields.values()),
        )

    def against(self, other: "Seen | None") -> str:
        """This one, told beside another that it should have been."""
        if other is None or str(self) != str(other):
            return str(self)
        differ = [k for k, (one, two) in enumerate(zip(self.rows, other.rows, strict=True)) if one != two]
        return f"the same but for row {differ[0]}" if differ else "the same with another cursor"

    def __str__(self) -> str:
        return f"{len(self.rows)} of {self.total} rows{' that end the epoch' * self.ends}, {self.text}"


class SavedState:
    """A state as a checkpoint keeps it: JSON, and tensors beside it."""

    def __init__(self, state: State) -> None:
        tensors: dict[str, Tensor] = {}
        self._json = json.dumps(encode(state, tensors, "state", strict=True), sort_keys=True)
        self._tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        digests = (f"{name}={_digest(tensor)}" for name, tensor in sorted(self._tensors.items()))
        self.text = " ".join([self._json, *digests])

    def load(self) -> State:
        """The state, as read from the checkpoint."""
        state: State = decode(json.loads(self._json), {name: held.clone() for name, held in self._tensors.items()})
        return state

    def __str__(self) -> str:
        return cut(self.text)


def streams_of(held: Source | Table) -> list[Stream]:
    """The streams that it declares."""
    found = held.streams
    check_names(found)
    return list(found)


def rows_of(fields: Mapping[str, Field], rows: int) -> tuple[Hashable, ...]:
    """Every row as a value, its streams in the order of their names."""
    columns = [_column(fields[name]) for name in sorted(fields) if has_rows(fields[name])]
    return tuple(zip(*columns, strict=True)) if columns else ((),) * rows


def shown(fields: Mapping[str, Field]) -> str:
    """The streams in short, for a message."""
    return cut(", ".join(f"{name}={_shown(held)}" for name, held in fields.items()))


def cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def beside(one: str, other: str) -> tuple[str, str]:
    """Two texts in short, from just before the place where they differ."""
    place = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, place - SHOWN // 4)
    return tuple(f"{'…' * bool(start)}{cut(text[start:])}" for text in (one, other))  # type: ignore[return-value]


def _column(held: Any) -> list[Hashable]:
    if isinstance(held, Tensor):
        flat = held.detach().cpu().reshape(len(held), math.prod(held.shape[1:]))
        # A column counts as contiguous whatever its stride if it is a single row, and has no bytes side by side.
        flat = flat.clone(memory_format=torch.contiguous_format)
        return [row.tobytes() for row in flat.view(torch.uint8).numpy()] if flat.numel() else [b""] * len(held)
    if isinstance(held, Ragged):
        return _runs(_column(held.values), held)
    if isinstance(held, Sparse):
        numbers = torch.ones(len(held.indices), dtype=held.dtype) if held.values is None else held.values
        return _runs(list(zip(_column(held.indices.long()), _column(numbers), strict=True)), held)
    return [_column(held[k : k + 1])[0] for k in range(len(held))]


def _runs(items: list[Any], held: Ragged | Sparse) -> list[Hashable]:
    return [tuple(items[start:stop]) for start, stop in pairwise(held.offsets.tolist())]


def _shown(held: Any) -> str:
    return str(_values(held[:ROWS])) if has_rows(held) else type(held).__name__


def _values(held: Any) -> list[Any]:
    """The values as lists; of sparse rows the indices."""
    if not isinstance(held, Ragged | Sparse):
        values: list[Any] = held.tolist()
        return values
    items = _values(held.values) if isinstance(held, Ragged) else held.indices.tolist()
    return [items[start:stop] for start, stop in pairwise(held.offsets.tolist())]


def _digest(tensor: Tensor) -> str:
    content = b"".join(_column(tensor.reshape(-1)))  # type: ignore[arg-type]
    return f"{tensor.dtype}{list(tensor.shape)}:{hashlib.blake2b(content, digest_size=6).hexdigest()}"


@dataclass
class Pulled:
    """The batches that one source gave."""

    size: int
    batches: list[Seen]
    finished: bool
    """Whether None came after the last one."""

    @property
    def stops(self) -> list[int]:
        """How many rows have come after each batch."""
        return list(accumulate(batch.total for batch in self.batches))

    @property
    def flagged(self) -> list[int]:
        """The batches that say that they end an epoch."""
        return [k for k, batch in enumerate(self.batches) if batch.ends]

    @property
    def rows(self) -> list[Hashable]:
        """The rows of all batches."""
        return [row for batch in self.batches for row in batch.rows]


class Pulls:
    """One source, made by the factory, and checked at every pull."""

    def __init__(self, trial: PromiseTrial, factory: Callable[[], Source]) -> None:
        self._trial = trial
        self.source: Source = trial.call("calls", "the factory", factory)
        trial.that("calls", isinstance(self.source, Source), "the factory", "a Source", type(self.source).__name__)
        trial.report.subject = type(self.source).__name__
        self.streams: Sequence[Stream] = trial.call("streams", "streams", streams_of, self.source)
        self.given: list[Batch] = []
        """The batches themselves, as long as they are wanted."""
        self.promise = "calls"
        """The promise that is broken if a pull fails."""

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

    def run(self, size: int, batches: int, epochs: int = 2, saved: "list[SavedState] | None" = None) -> Pulled:
        """Some epochs from where it stands, up to None or the first batch behind them; states are added to `saved`."""
        source, found, since, ended = self.source, Pulled(size, [], False), 0, 0
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

    def save(self, saved: list[SavedState], where: str) -> State | None:
        """Adds the state as a checkpoint would keep it, and compares the cursor of the batch before with it."""
        state = self.state(where)
        if state is None and not saved:
            return None
        self._trial.that("state", state is not None, where, "a state, as there was one before", None)
        kept: SavedState = self._trial.call("state", f"{where}: saving state_dict()", SavedState, state)
        if self.given and (cursor := self.given[-1].cursor) is not None:
            same_state(self._trial, "cursor", kept, SavedState(cursor).text, where)
        saved.append(kept)
        return state

    def load(self, saved: SavedState, where: str, promise: str = "restore") -> None:
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
        extra = [name for name in batch.fields if name not in names]
        trial.that("streams", not extra, what, f"the streams {names}", f"{extra} beside them")
        trial.that("rows", shard.count > 1 or batch.rows > 0, what, "rows, or None at the end", batch)
        trial.that("rows", shard.count > 1 or batch.total == batch.rows, what, f"total={batch.rows}", batch.total)
        if source.sized_by != "rows":
            trial.call("declared", what, _sequences, batch, source.sized_by)
        if not source.own_size:
            found = batch.rows if source.sized_by == "rows" else batch.items(source.sized_by)
            is_one_sequence = source.sized_by != "rows" and batch.rows <= 1
            trial.that("size", found <= size or is_one_sequence, what, f"at most {size} {_unit(source)}", found)


def same(
    trial: PromiseTrial, promise: str, expected: Sequence[Seen | None], got: Sequence[Seen | None], where: str
) -> None:
    """Raises at the first batch that is not the same."""
    for k, (one, other) in enumerate(zip(expected, got, strict=False)):
        came = other if other is None or one == other else other.against(one)
        trial.that(promise, one == other, f"{where}, batch {k}", one, came)
    trial.equal(promise, len(expected), len(got), f"{where}, number of batches")


def same_state(trial: PromiseTrial, promise: str, expected: SavedState, got: str | None, where: str) -> None:
    """Raises unless a state is the one that was saved."""
    if got is not None and got != expected.text:
        trial.that(promise, False, where, *beside(expected.text, got))
    trial.that(promise, got is not None, where, expected, got)


def uncut(run: Pulled) -> bool:
    """Whether the batches have fields that the library cannot cut for workers."""
    return any(batch.whole for batch in run.batches)


def _unit(source: Source) -> str:
    return "rows" if source.sized_by == "rows" else f"items of {source.sized_by!r}"


def _sequences(batch: Batch, stream: str) -> None:
    field = batch[stream]
    if not has_rows(field) or not hasattr(field, "host_offsets"):
        raise SourceError(f"sized_by = {stream!r} names no stream of sequences")
