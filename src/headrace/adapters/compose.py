"""Makes tables and sources of others: `zip concat mix head skip filter map split`."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ..data.maps import Change, Mapped
from ..data.order import Permutation
from ..data.orders import MixOrder
from ..data.packed import PackedTable
from ..data.reader import Reader
from ..data.source import Source, Table
from ..data.views import Concat, View, Zipped, blocks_of, name_of
from ..data.wrapped import Epochs
from ..errors import ConfigError, DataError
from ..length import Length, Points, as_count
from .adapt import as_data, as_table

GOLDEN = (5**0.5 - 1) / 2


def zip(*tables: Any) -> Table:
    """Joins tables side by side: row i beside row i. Join by a key before, with `pandas.merge`."""
    if not tables:
        raise ConfigError("zip() needs at least one table.")
    return Zipped([as_table(table) for table in tables])


def concat(*tables: Any) -> Table:
    """Joins tables with the same streams, one after the other."""
    return Concat([as_table(table) for table in tables])


Weights = Sequence[float] | Mapping[Any, Sequence[float]]


def mix(
    tables: Sequence[Any],
    weights: Weights,
    *,
    rows: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    **options: Any,
) -> Reader:
    """Mixes rows of several tables in given proportions; each table is shuffled separately.

    Args:
        tables: the tables. One that has been used completely begins its next epoch.
        weights: the proportions. They may change, as in `{0: [9, 1], "1000 steps": [1, 1]}`, and be 0 for a while.
        rows: the rows in an epoch of the mix; by default the rows of all tables.
        seed: the seed of the orders.
        batch_size: needed for weights that change at a number of steps.
        options: `count`, `cross_epochs`, `max_epochs`, `max_samples` and `augment` of `Reader`.
    """
    given = [as_table(table) for table in tables]
    lengths, later = [len(table) for table in given], list[tuple[int, Sequence[float]]]()
    in_steps: int | None = None
    if isinstance(weights, Mapping):
        points = Points(weights, "weights", '{0: [9, 1], "1000 steps": [1, 1]}')
        until = partial(_rows_until, rows or sum(lengths), batch_size, bool(options.get("cross_epochs")))
        later = [(until(point), each) for point, each in points.later]
        in_steps = batch_size if any(point.unit == "steps" for point, _ in points.later) else None
        if [start for start, _ in later] != sorted({start for start, _ in later}):
            raise ConfigError(f"mix(): weights= changes in another order than it is written in: {weights!r}.")
        weights = points.first
    order = MixOrder(lengths, weights, rows=rows, seed=seed, later=later)
    order.batch_size = in_steps or 0
    return Reader(Concat(given), order, **options)


def _rows_until(epoch: int, batch_size: int | None, crosses: bool, point: Length) -> int:
    """How many rows are read until a point of the training."""
    count = int(point.count)
    if point.unit != "steps":
        return count * (epoch if point.unit == "epochs" else 1)
    if (size := as_count(batch_size)) is None:
        raise ConfigError(f"mix(): weights= from '{point}' on needs the rows of a step, as in batch_size=32.")
    if crosses:
        return count * size
    epochs, steps = divmod(count, -(-epoch // size))  # the last batch of an epoch may be small
    return epochs * epoch + steps * size


def pack(data: Any, length: int, stream: str, *, fill: Mapping[str, float] | None = None) -> Table:
    """Packs complete sequences of `stream` side by side into rows of `length` items, by best fit.

    All streams of the table are sequences of the same lengths. The padding of a row is 0, or `fill`, as in
    `{"labels": -100}`. Three streams are added: `positions`, the position in each sequence; `segments`, the number of
    the sequence in its row, from 1 on, and 0 in the padding; and `mask`, true where there is a sequence.
    """
    if not (size := as_count(length)):
        raise ConfigError(f"pack(): length= is a whole number above 0, got {length!r}.")
    return PackedTable(as_table(data), stream, size, fill or {})


def head(data: Any, rows: int) -> Any:
    """Takes the first `rows` rows of a table, or divides a Source into consecutive epochs of `rows` rows."""
    rows = _rows("head", rows, 1)
    found = as_data(data)
    if isinstance(found, Source):
        return Epochs(found, rows)
    return View(found, range(min(rows, len(found))))


def skip(table: Any, rows: int) -> Table:
    """Leaves out the first `rows` rows of a table."""
    rows = _rows("skip", rows, 0)
    found = as_table(table)
    return View(found, range(min(rows, len(found)), len(found)))


def filter(table: Any, keep: Callable[[dict[str, Any]], Any]) -> Table:
    """Keeps the rows for which `keep`, a function of the fields of many rows, is true; reads the table once."""
    found, kept, start = as_table(table), [], 0
    for batch in blocks_of(found):
        answer = torch.as_tensor(keep(dict(batch.fields)))
        if answer.dtype != torch.bool or answer.shape != (batch.rows,):
            raise DataError(
                f"filter(): {name_of(keep)} gave {answer.dtype}{list(answer.shape)} for {batch.rows} rows. "
                "It is to give one truth value for each."
            )
        kept.append(torch.nonzero(answer).view(-1).cpu() + start)
        start += batch.rows
    return View(found, torch.cat(kept) if kept else torch.empty(0, dtype=torch.int64))


def map(table: Any, change: Change) -> Any:
    """Changes the rows of a table or a mix, many at a time, by a function of the fields by name.

    `change` returns all the fields, for the same rows, and draws no random numbers: see `Trainer(augment=)`. It is
    called in the thread that trains. If it has an attribute `thread_safe` that is true, other threads call it while the
    model trains, perhaps several at once.
    """
    found = as_data(table)
    if isinstance(found, Reader):
        return found.over(map(found.table, change))
    if isinstance(found, Source):
        raise ConfigError("map() takes rows by number. A Source changes its batches where it makes them.")
    return Mapped(found, change)


def split(table: Any, *fractions: float, seed: int = 0, stratify: str | None = None) -> list[Table]:
    """Splits a table into shuffled parts: `train, val, test = split(data, 0.8, 0.1, 0.1)`.

    With `stratify`, a stream of whole numbers, each part has the same share of every number.
    """
    found = as_table(table)
    if not fractions or any(not 0 < f <= 1 for f in fractions) or sum(fractions) > 1 + 1e-9:
        raise ConfigError(
            f"split() takes fractions above 0 that make at most 1, got {', '.join(builtins.map(str, fractions))}."
        )
    if not len(found):
        raise DataError("split(): the table has no rows.")
    place = Permutation(len(found), "split", seed)(np.arange(len(found)))
    groups = [np.arange(len(found))]
    if stratify is not None:
        labels = _column(found, stratify)
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    parts: list[list[Any]] = [[] for _ in fractions]
    for c, group in enumerate(groups):
        lift = (c * GOLDEN + 0.5) % 1 - 0.5  # what is left over of the classes is shared out evenly, too
        shuffled = group[np.argsort(place[group], kind="stable")]
        cuts = np.round(np.cumsum([0, *fractions]) * len(group) + lift).astype(int)
        for part, start, stop in builtins.zip(parts, cuts, cuts[1:], strict=False):
            part.append(shuffled[start:stop])
    joined = [np.sort(np.concatenate(part)) for part in parts]  # on disk, what is near stays near
    for fraction, rows in builtins.zip(fractions, joined, strict=True):
        if not len(rows):
            raise DataError(f"split(): {fraction} of {len(found)} rows is none. Give it a larger part.")
    return [View(found, torch.from_numpy(rows)) for rows in joined]


def _column(table: Table, name: str) -> Any:
    """A stream of single whole numbers, read whole."""
    stream = table.stream(name)
    if stream.shape or stream.sequence or stream.dtype.startswith(("float", "bfloat", "complex")):
        raise DataError(f"expected a stream with one whole number for each row, got {stream}.")
    parts = [batch[name] for batch in blocks_of(table)]
    return torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.int64)


def _rows(who: str, rows: int, least: int) -> int:
    if (found := as_count(rows, least)) is None:
        raise ConfigError(f"{who}() takes a number of rows, at least {least}, got {rows!r}.")
    return found
