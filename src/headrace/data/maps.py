"""Tables whose rows are changed by a function of the fields when they are read, many at a time."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, HeadraceError, SourceError
from ..store import rng
from .batch import Batch, Stream
from .draws import Draws
from .encoding import Categories, Encoding
from .fields import Field, cat, map_tensors, nbytes_of, tensors_of
from .ragged import Ragged
from .source import Table
from .views import Wrapper, blocks_of, digest, name_of

Change = Callable[..., Mapping[str, Field]]
"""A function of the fields of many rows by name, and optionally of draws, which returns all new fields."""
PROBE = 64  # rows that show what a map makes of them


class Changed(Wrapper):
    """A table whose rows are changed when they are read. The streams are found by changing the first rows."""

    def __init__(self, table: Table, change: Change) -> None:
        super().__init__(table)
        self.change = change
        self.encoding = replace(table.encoding, maps=(*table.encoding.maps, name_of(change)))
        self.thread_safe = table.thread_safe and getattr(change, "thread_safe", False)

    streams: Sequence[Stream] = ()
    categories: Categories = MappingProxyType({})
    encoding: Encoding = Encoding()
    row_bytes = 0.0

    def learn(self, first: Batch) -> None:
        """Learns the streams from rows that have been changed."""
        self.streams = tuple(first.streams)
        self.row_bytes = nbytes_of(first.fields) / max(1, first.rows)
        self.categories = {name: strings for name, strings in self.table.categories.items() if name in first.fields}

    def fingerprint(self) -> str:
        return digest("map", self.table.fingerprint(), name_of(self.change))


class Mapped(Changed):
    """A table whose rows are changed by a function when they are read, many at a time."""

    aliases = False  # the function is given copies

    def __init__(self, table: Table, change: Change) -> None:
        super().__init__(table, change)
        self._lengths: dict[str, Tensor] = {}
        with _drawing_nothing(change):
            self.learn(self.rows(0, min(PROBE, len(table))))

    def take(self, indices: Tensor) -> Batch:
        return changed(self.change, self.table.take(indices))

    def rows(self, start: int, stop: int) -> Batch:
        return changed(self.change, owned(self.table.rows(start, stop)))

    def lengths(self, stream: str) -> Tensor:
        if stream not in self._lengths:
            blocks = (batch[self.sequence(stream).name] for batch in blocks_of(self))
            self._lengths[stream] = torch.cat([field.host_offsets.diff() for field in blocks])
        return self._lengths[stream]

    resident = Table.resident


class Augmented(Changed):
    """A table whose rows are changed for the training, with random numbers that belong to the rows.

    The Reader makes the change, because it knows the epoch; `take` returns the rows unchanged.
    """

    def __init__(self, table: Table, change: Change, where: Literal["host", "device"] = "host") -> None:
        super().__init__(table, change)
        self.augments, self._with_draws = where, takes_draws(change)
        self.encoding = table.encoding  # other data are read without it
        first = owned(table.rows(0, min(PROBE, len(table))))
        self._lengths_before = _lengths_of(first.fields)
        with _drawing_nothing(change):
            self.learn(Batch(self.augment(first.fields, Draws.at(0, [(0, 0, first.rows)])), first.rows))

    def learn(self, first: Batch) -> None:
        super().learn(first)
        after = _lengths_of(first.fields)
        self._kept = [name for name, lengths in self._lengths_before.items() if after.get(name) == lengths]

    def lengths(self, stream: str) -> Tensor:
        if self.sequence(stream).name not in self._kept:
            raise SourceError(
                f"map(): {name_of(self.change)} changes the lengths of {stream!r}: none can count its items."
            )
        return self.table.lengths(stream)

    def augment(self, fields: Mapping[str, Field], draws: Draws) -> Mapping[str, Field]:
        batch = Batch(self.table.augment(fields, draws), len(draws))
        return changed(self.change, batch, *[draws] * self._with_draws).fields


def changed(change: Change, batch: Batch, *draws: Draws) -> Batch:
    """A batch as a function of its fields has made it."""
    try:
        with torch.no_grad():
            fields = change(dict(batch.fields), *draws)
    except HeadraceError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise SourceError(f"map(): {name_of(change)} failed on {batch!r}: {said}") from error
    if not isinstance(fields, Mapping) or not fields:
        given = "no fields" if isinstance(fields, Mapping) else f"a {type(fields).__name__}"
        raise DataError(f"map(): {name_of(change)} returned {given}. Return the fields by name: {{**fields, ...}}.")
    found = Batch(fields, cursor=batch.cursor, total=batch.total, ends_epoch=batch.ends_epoch)
    if found.rows != batch.rows:
        raise DataError(
            f"map(): {name_of(change)} made {found.rows} rows of {batch.rows}. A map keeps rows; filter() drops some."
        )
    return found


def takes_draws(change: Change) -> bool:
    """Whether a function asks for a second argument; one that does not say is taken to want the fields alone."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(change).parameters.values()
    except (TypeError, ValueError):
        return False
    return len([p for p in parameters if p.kind in kinds and p.default is p.empty]) > 1


def check_rows_stay_apart(table: Table) -> None:
    """Raises if a row that a map makes depends on other rows, as far as the first rows of the table show it."""
    while isinstance(table, Wrapper):
        stop = min(PROBE, len(table))
        if isinstance(table, Mapped) and stop > 1:
            together, apart = table.rows(0, stop), [table.rows(0, stop // 2), table.rows(stop // 2, stop)]
            for name, field in together.fields.items():
                one, other = tensors_of(field), tensors_of(cat([batch[name] for batch in apart]))
                if [*map(_bits, one)] != [*map(_bits, other)]:
                    raise ConfigError(
                        f"map(): {name_of(table.change)} makes other bits of a row when it is given other rows with "
                        "it, and parts= promises the same bits for any number of workers. Change each row by itself."
                    )
        table = table.table


def _bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def owned(batch: Batch) -> Batch:
    """A copy of a batch, so that a function may change its tensors in place."""
    return Batch({name: map_tensors(field, torch.clone) for name, field in batch.fields.items()}, batch.rows)


def unwrapped(table: Table) -> tuple[Table, list[Mapped]]:
    """The table below views and maps, and the maps, the innermost first, without those of training rows only."""
    changes: list[Mapped] = []
    while isinstance(table, Wrapper) and not hasattr(table, "files"):
        if isinstance(table, Mapped):
            changes.insert(0, table)
        table = table.table
    return table, changes


@contextmanager
def _drawing_nothing(change: Change) -> Iterator[None]:
    """Raises if a function draws from a global generator: it is called in a thread, and not again after a resume."""
    before = rng.standing()
    yield
    if rng.standing() != before:
        raise ConfigError(
            f"map(): {name_of(change)} draws random numbers from a global generator, which no resume could repeat. "
            "Take them from a second parameter, the draws: def change(fields, draws)."
        )


def _lengths_of(fields: Mapping[str, Field]) -> dict[str, list[int]]:
    return {name: field.host_offsets.tolist() for name, field in fields.items() if isinstance(field, Ragged)}
