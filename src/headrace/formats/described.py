"""Files that are described rather than read: what a run keeps of its data, so that it can be used without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch, Stream
from ..data.encoding import Categories, Encoding
from ..data.fields import Field
from ..data.maps import Changed, Mapped, probing
from ..data.ragged import Ragged
from ..data.source import Table, forwarded
from ..data.views import Wrapper
from ..errors import CorruptError, DataError, SourceError
from .documents import document_of, encoding_in

Open = Callable[[], Table]


class Described(Table):
    """A table whose rows are not there, and of which the rest is known: how they were read, and how many.

    A map is shown rows of zeros when it is made, which tell what streams it gives. Anything else that reads rows is
    refused, so that nothing is ever computed from numbers that are not there.
    """

    encoding: Encoding = Encoding()
    streams: Sequence[Stream] = forwarded("encoding.streams")
    categories: Categories = forwarded("encoding.categories")

    def __init__(self, path: str, rows: int, encoding: Encoding) -> None:
        self.path, self._rows, self.encoding = path, rows, encoding

    def __len__(self) -> int:
        return self._rows

    def take(self, indices: Tensor) -> Batch:
        if not probing():
            raise self._gone()
        return Batch({stream.name: _zeros(stream, len(indices)) for stream in self.streams}, len(indices))

    def fingerprint(self) -> str:
        raise self._gone()

    def _gone(self) -> SourceError:
        return SourceError(
            f"{self.path} is not there: the run has kept what it holds, and not its rows, which are read here. "
            "Put the file back. What a recipe computes from rows, as a mean, belongs in a buffer of the model."
        )

    def document(self) -> dict[str, Any]:
        """It as plain values."""
        return {"path": self.path, "rows": len(self), **document_of(self.encoding)}

    @staticmethod
    def read(document: Any) -> Described:
        """One that was kept as plain values."""
        try:
            return Described(str(document["path"]), int(document["rows"]), encoding_in(document))
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptError(f"the description of a run's data makes no sense: {error!r}") from None


def description_of(table: Table, inputs: Sequence[str] | Any) -> dict[str, Any]:
    """What a run keeps of its training data beside their encoding.

    `inputs`: what the model is given, as a trainer's `inputs=`.
    """
    base, _ = unwrapped(table)
    files = getattr(base, "files", None)
    path = str(files[0]) if files else "the training data"
    return {"path": path, "rows": len(base), "inputs": inputs}


def unwrapped(table: Table) -> tuple[Table, list[Changed]]:
    """What views and maps are of, and the maps from the inside out; those that draw are for training alone."""
    changes: list[Changed] = []
    while isinstance(table, Wrapper) and not hasattr(table, "files"):
        if isinstance(table, Mapped):
            changes.insert(0, table)
        table = table.table
    return table, changes


@dataclass(slots=True)
class _Files:
    """The files that a recipe opens, in the order in which it does."""

    reads: bool
    """Whether descriptions take the place of files that are not there; else, files are described as they are opened."""
    known: list[Described] = field(default_factory=list)
    within: bool = False


_files: ContextVar[_Files | None] = ContextVar("files", default=None)


@contextmanager
def describing() -> Iterator[list[Described]]:
    """Meanwhile, every file that is opened as a table is described; the descriptions."""
    files = _Files(reads=False)
    token = _files.set(files)
    try:
        yield files.known
    finally:
        _files.reset(token)


@contextmanager
def standing_in(known: Sequence[Described]) -> Iterator[None]:
    """Meanwhile, a file that cannot be opened is what its description says, where there is one."""
    token = _files.set(_Files(reads=True, known=[*known]))
    try:
        yield
    finally:
        _files.reset(token)


def opened(path: Any, open_: Open) -> Table:
    """A table as `open_` gives it, described or replaced by its description where somebody asks for that."""
    files = _files.get()
    if files is None or files.within:
        return open_()
    name, files.within = _name(path), True
    try:
        found = open_()
    except (DataError, OSError):
        if files.reads and (known := _first(files.known, name)) is not None:
            return known
        raise
    finally:
        files.within = False
    if files.reads:
        _first(files.known, name)
    else:
        files.known.append(Described(name, len(found), found.encoding))
    return found


def _first(known: list[Described], name: str) -> Described | None:
    """The next description of a file of this name, which is taken out unless it is the last of them."""
    fits = [k for k, each in enumerate(known) if each.path == name]
    return None if not fits else known.pop(fits[0]) if len(fits) > 1 else known[fits[0]]


def _name(path: Any) -> str:
    if isinstance(path, list | tuple | Set):
        names = [str(each) for each in path]
        return "\n".join(sorted(names) if isinstance(path, Set) else names)
    return str(Path(path)) if isinstance(path, str | Path) and "://" not in str(path) else str(path)


def _zeros(stream: Stream, rows: int) -> Field:
    """Rows of a stream that hold zeros; sequences are of one item."""
    shape = [max(1, size) for size in stream.shape]
    dtype = getattr(torch, stream.dtype)
    if stream.layout == "sparse":
        raise SourceError(f"stream {stream.name!r} is sparse, and a map cannot be shown rows of it without its file.")
    items = torch.zeros(rows, *shape, dtype=dtype)
    return Ragged(items, torch.arange(rows + 1)) if stream.sequence else items
