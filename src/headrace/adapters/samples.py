"""The samples of a map-style dataset, asked for one by one, as a Table."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch, Stream
from ..data.fields import Field, cat
from ..data.source import Table
from ..errors import DataError, HeadraceError, SourceError
from ..store import rng
from .named import Names, collated

AT_ONCE = 512  # samples collated together: so few are still in the processor's cache when they are
_CPU = torch.device("cpu")


class Samples(Table):
    """The samples of a map-style dataset. What its streams are is learned from the first."""

    def __init__(self, dataset: Any, names: Names = None, sequences: Sequence[str] = ()) -> None:
        self.dataset, self._names, self._sequences = dataset, names, tuple(sequences)
        self._who, self._length = type(dataset).__name__, _length(dataset)
        if not self._length:
            raise DataError(f"{self._who} has no rows: there is nothing to read.")
        self._many = callable(getattr(dataset, "__getitems__", None))
        before, stood = rng.capture(_CPU), rng.standing()
        self._streams = tuple(self.take(torch.zeros(1, dtype=torch.int64)).streams)
        if rng.standing() != stood:
            rng.restore(before, _CPU)
            warnings.warn(
                f"{self._who} draws random numbers for its samples. As a Table it is read ahead, in a thread, so that "
                "no two runs and no resume are alike. Draw them in hr.map(table, change), or pass a DataLoader of it.",
                stacklevel=_level(),
            )

    @property
    def streams(self) -> Sequence[Stream]:
        return self._streams

    def __len__(self) -> int:
        return self._length

    def take(self, indices: Tensor) -> Batch:
        if not len(indices):
            one = self._collated([0])
            return Batch({name: field[:0] for name, field in one.items()}, 0)  # type: ignore[index]
        parts = [self._collated(rows.tolist()) for rows in indices.split(AT_ONCE)]
        return Batch({name: cat([part[name] for part in parts]) for name in parts[0]}, len(indices))

    def _collated(self, rows: list[int]) -> dict[str, Field]:
        return collated(self._samples(rows), self._names, self._sequences, self._who)

    def _samples(self, rows: list[int]) -> Sequence[Any]:
        if self._many:
            try:
                found: Sequence[Any] = self.dataset.__getitems__(rows)
                return found
            except HeadraceError:
                raise
            except Exception as error:
                for row in rows:
                    self._sample(row)
                raise SourceError(f"{self._who} failed at rows {_listed(rows)}: {_said(error)}.") from error
        return [self._sample(row) for row in rows]

    def _sample(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except HeadraceError:
            raise
        except Exception as error:
            raise SourceError(f"{self._who} failed at row {row}: {_said(error)}.") from error


def _level() -> int:
    """Of which frame, as the caller counts, the line is that is not the library's."""
    library, frame, level = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == library:
        frame, level = frame.f_back, level + 1
    return level


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise DataError(
            f"{type(dataset).__name__} has no __len__: its rows cannot be counted. Give it one, or make it an "
            "IterableDataset."
        ) from None


def _listed(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (" and others" if len(rows) > 8 else "")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
