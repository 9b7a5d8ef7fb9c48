"""Tables whose rows are changed by a function of the fields when they are read, many at a time."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, HeadraceError, SourceError
from ..store import rng
from .batch import Batch, Stream, concat
from .draws import Draws
from .encoding import Encoding
from .fields import Field, cat, map_tensors, nbytes_of, split_fields, tensors_of
from .ragged import Ragged
from .source import Table, check_batch, fingerprint_of
from .views import Wrapper, blocks_of, name_of

Change = Callable[..., Mapping[str, Any]]
"""A function of the fields of many rows by name, and optionally of draws, which returns all new fields."""
PROBE = 64  # rows that show what a map makes of them
MAP, AUGMENT = "map():", "augment="


class Mapped(Wrapper):
    """A table whose rows are changed by a function when they are read. The streams are those of the first rows."""

    aliases = False  # the function is given copies

    def __init__(self, table: Table, change: Change) -> None:
        super().__init__(table)
        if takes_draws(change):
            raise ConfigError(
                f"map(): {name_of(change)} takes draws, which belong to the rows of a training. Give it to the "
                "trainer, hr.Trainer(..., augment=f), or in a loop of your own to the reader, hr.Reader(table, "
                "augment=f)."
            )
        self.change = change
        self.encoding = replace(table.encoding, maps=(*table.encoding.maps, name_of(change)))
        self.thread_safe = table.thread_safe and getattr(change, "thread_safe", False)
        self._lengths: dict[str, Tensor] = {}
        with _drawing_nothing(change, MAP):
            first = self.rows(0, min(PROBE, len(table)))
        self.streams = tuple(first.streams)
        self.row_bytes = nbytes_of(first.fields) / max(1, first.rows)

    streams: Sequence[Stream] = ()
    encoding: Encoding = Encoding()
    row_bytes = 0.0

    def take(self, indices: Tensor) -> Batch:
        return changed(self.change, self.table.take(indices), who=MAP)

    def rows(self, start: int, stop: int) -> Batch:
        return changed(self.change, owned(self.table.rows(start, stop)), who=MAP)

    def fingerprint(self) -> str:
        return fingerprint_of("map", self.table.fingerprint(), name_of(self.change))

    def lengths(self, stream: str) -> Tensor:
        if stream not in self._lengths:
            blocks = (batch[self.sequence(stream).name] for batch in blocks_of(self))
            self._lengths[stream] = torch.cat([field.host_offsets.diff() for field in blocks])
        return self._lengths[stream]

    resident = Table.resident


class Augmentation:
    """Changes the rows that a Reader reads of a table, once they are on the device, and gives the function `Draws`.

    The function gets the rows of one batch, so that rows may meet in it, and a resumed run gets the same bits. `count`
    is what a batch size counts: the function must not change the lengths of that stream.
    """

    def __init__(self, change: Change, table: Table, count: str) -> None:
        self.thread_safe = bool(getattr(change, "thread_safe", False))
        self.name = name_of(change)
        self._change, self._with_draws, self._count = change, takes_draws(change), count
        first = owned(table.rows(0, min(PROBE, len(table))))
        with _drawing_nothing(change, AUGMENT):
            found = self._changed(first.fields, Draws.at(0, [(0, 0, first.rows)]))
        self.streams = tuple(found.streams)
        """The streams of rows that have been changed."""

    def __call__(
        self, fields: Mapping[str, Field], seed: int, pieces: Sequence[tuple[int, int, int]], counts: Sequence[int]
    ) -> Mapping[str, Field]:
        """The fields of batches of so many rows each, changed. `pieces`: their positions, as (epoch, start, stop)."""
        device = next(iter(fields.values())).device  # type: ignore[union-attr]
        draws = Draws.at(seed, pieces).to(device)
        parts: Sequence[Mapping[str, Field]] = split_fields(fields, counts) if len(counts) > 1 else [fields]
        pairs = [*zip(parts, draws.split(counts), strict=True)]
        batches = [self._changed(*pair) for pair in pairs if len(pair[1])] or [self._changed(*pairs[0])]
        for batch in batches:
            check_batch(batch, self.streams, f"{AUGMENT} {self.name}")
        return concat(batches)

    def _changed(self, fields: Mapping[str, Field], draws: Draws) -> Batch:
        found = changed(self._change, Batch(fields, len(draws)), *[draws] * self._with_draws, who=AUGMENT)
        if self._count in fields and _items(found.fields.get(self._count)) != _items(fields[self._count]):
            raise SourceError(
                f"{AUGMENT} {self.name} changes the lengths of {self._count!r}, whose items a size counts."
            )
        return found


def changed(change: Change, batch: Batch, *draws: Draws, who: str) -> Batch:
    """A batch as a function of its fields has made it; `who` calls the function, for messages."""
    try:
        with torch.no_grad():
            fields = change(dict(batch.fields), *draws)
    except HeadraceError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise SourceError(f"{who} {name_of(change)} failed on {batch!r}: {said}") from error
    if not isinstance(fields, Mapping) or not fields:
        given = "no fields" if isinstance(fields, Mapping) else f"a {type(fields).__name__}"
        raise DataError(f"{who} {name_of(change)} returned {given}. Return the fields by name: {{**fields, ...}}.")
    found = Batch(fields, cursor=batch.cursor, total=batch.total, ends_epoch=batch.ends_epoch)
    if found.rows != batch.rows:
        raise DataError(
            f"{who} {name_of(change)} made {found.rows} rows of {batch.rows}. Return as many rows; filter() drops some."
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


def check_independent_rows(table: Table, augmentation: Augmentation | None) -> None:
    """Raises if a row that a function makes depends on other rows, as far as the first rows of the table show it."""
    if augmentation is not None:
        _compare_halves(table, partial(_augmented, augmentation), f"{AUGMENT} {augmentation.name}")
    while isinstance(table, Wrapper):
        if isinstance(table, Mapped):
            _compare_halves(table, lambda fields, _: fields, f"{MAP} {name_of(table.change)}")
        table = table.table


def _augmented(augmentation: Augmentation, fields: Mapping[str, Field], run: tuple[int, int]) -> Mapping[str, Field]:
    return augmentation(fields, 0, [(0, *run)], [run[1] - run[0]])


def _compare_halves(table: Table, change: Callable[..., Any], who: str) -> None:
    """Raises if the first rows differ when they are read, and changed, in two halves."""
    stop = min(PROBE, len(table))
    runs = [(0, stop), (0, stop // 2), (stop // 2, stop)] if stop > 1 else [(0, stop)]
    together, *halves = [change(owned(table.rows(*run)).fields, run) for run in runs]
    for name, field in together.items() if halves else ():
        one, other = tensors_of(field), tensors_of(cat([half[name] for half in halves]))
        if [*map(_bits, one)] != [*map(_bits, other)]:
            raise ConfigError(
                f"{who} makes other bits of a row when it is given other rows with it, and parts= promises the same "
                "bits for any number of workers. Change each row by itself."
            )


def _bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def owned(batch: Batch) -> Batch:
    """A copy of a batch, so that a function may change its tensors in place."""
    return Batch({name: map_tensors(field, torch.clone) for name, field in batch.fields.items()}, batch.rows)


def unwrapped(table: Table) -> tuple[Table, list[Mapped]]:
    """The table below views and maps, and the maps, the innermost first."""
    changes: list[Mapped] = []
    while isinstance(table, Wrapper) and not hasattr(table, "files"):
        if isinstance(table, Mapped):
            changes.insert(0, table)
        table = table.table
    return table, changes


@contextmanager
def _drawing_nothing(change: Change, who: str) -> Iterator[None]:
    """Raises if a function draws from a global generator: it is called in a thread, and not again after a resume."""
    before = rng.standing()
    yield
    if rng.standing() != before:
        raise ConfigError(
            f"{who} {name_of(change)} draws random numbers from a global generator, which no resume could repeat. "
            "Take them from the draws of an augmentation: Trainer(augment=f), with def f(fields, draws)."
        )


def _items(field: Any) -> Any:
    """The bounds of the items of sequences, by which sizes count them."""
    return field.host_offsets.tolist() if isinstance(field, Ragged) else None
