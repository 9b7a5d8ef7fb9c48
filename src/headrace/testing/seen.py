"""Batches, states and declarations as values: to be kept, compared and shown."""

import hashlib
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch, State, Stream
from ..data.fields import Field, has_rows
from ..data.ragged import Ragged
from ..data.source import Source, Table, check_names
from ..data.sparse import Sparse
from ..store.codec import decode, encode

SHOWN = 160  # characters of a batch or a state in a message
ROWS = 8  # rows of a batch in a message


@dataclass(frozen=True, slots=True)
class Seen:
    """What a batch held when it was given."""

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
            None if batch.cursor is None else Saved(batch.cursor).text,
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


class Saved:
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
