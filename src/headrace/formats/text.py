"""`open_ctf`: files in CNTK's text format as tables, read from an Arrow file that is made of them once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..data.batch import Stream
from ..data.source import Table, fingerprint_of
from ..data.views import Wrapper
from ..errors import ConfigError, DataError, unknown
from .ctf.build import build, summary_of
from .ctf.cache import CtfCache, sample
from .ctf.layout import Layout
from .ctf.text import open_text
from .encode import Request
from .files import open_files
from .paths import DataFile, digests
from .select import streams_in


def open_ctf(
    path: str | Path,
    streams: Sequence[Stream],
    *,
    fields: Mapping[str, str] | None = None,
    bad_rows: Literal["stop", "skip"] = "stop",
    cache: str | Path | None = None,
    workers: int = 1,
) -> Table:
    """Opens a file in CNTK's text format as a table, with a row for each sequence.

    `streams`: a stream with `sequence=True` has an item for each line of the sequence that has its field, any other
    one item for each sequence, on whichever of its lines. `fields`: what a stream is called in the file, where that
    is not its name: {"words": "x"}. Fields that no stream reads are ignored.
    `bad_rows`: "stop" raises at the first thing that cannot be read, "skip" drops the sequences that have one, and
    says how many. `workers`: that many threads parse; the result is the same.

    The file is parsed once: its rows are kept in an Arrow file beside it, or in the directory `cache`, and read from
    there as long as the file and what is asked of it stay the same.
    """
    request = CtfRequest.of(path, streams, fields, bad_rows, cache, workers)
    return request.open()


@dataclass(frozen=True)
class CtfRequest:
    """The arguments of `open_ctf`, checked; another process opens the same table with them."""

    path: Path
    streams: tuple[Stream, ...]
    fields: tuple[tuple[str, str], ...]
    skip: bool
    cache: Path | None
    workers: int

    @classmethod
    def of(cls, path: Any, streams: Any, fields: Any, bad_rows: str, cache: Any, workers: int) -> "CtfRequest":
        if "://" in str(path):
            raise ConfigError(f"{path} is not a local file. Copy it here, and open the copy.")
        if bad_rows not in ("stop", "skip"):
            raise ConfigError(unknown("bad_rows", bad_rows, ("stop", "skip")))
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers= is a number of threads, at least 1, got {workers!r}.")
        streams = streams_in(streams)
        if cache is not None and not Path(cache).is_dir():
            raise ConfigError(f"cache= is to be a directory that exists, got {str(cache)!r}.")
        told = tuple(dict(fields or {}).items())
        where = None if cache is None else Path(cache)
        return cls(Path(path).expanduser(), streams, told, bad_rows == "skip", where, workers)

    def open(self, again: bool = True) -> "TextTable":
        """Opens the table; `again` builds the cache anew if it turns out to be damaged."""
        layout = Layout.of(self.streams, dict(self.fields))
        with open_text(self.path) as text:
            (mark,) = digests([DataFile.local(str(self.path))])
            said = [layout.described(), [stream.name for stream in self.streams], self.skip]
            cache = CtfCache.of(self.path, text.descriptor, sample(text.descriptor), said, self.cache)
            text.check_unchanged()
        if (kept := cache.find()) is None:
            with cache.writing() as target:
                try:
                    build(self.path, text.stamp, layout, self.streams, target, skip=self.skip, workers=self.workers)
                except OSError as error:
                    raise cache.cannot(error) from None
                kept = cache.publish(target)
        try:
            table = open_files([DataFile.local(str(kept))], Request())
            summary = summary_of(kept)
        except (DataError, OSError, KeyError, TypeError, ValueError):
            if not again:
                cache.discard(kept)
                raise
        else:
            summary.warn(str(self.path), level=3)
            return TextTable(table, self, mark)
        cache.discard(kept)  # now that no error keeps it open
        return self.open(again=False)


class TextTable(Wrapper):
    """The rows of a text file, read from the Arrow file that was made of it."""

    def __init__(self, table: Table, request: CtfRequest, mark: str) -> None:
        super().__init__(table)
        self.request, self.mark = request, mark
        cache = None if request.cache is None else request.cache.absolute()
        self._again = replace(request, path=request.path.absolute(), cache=cache)  # from wherever it is opened

    def fingerprint(self) -> str:
        """A hash of the text and of how it is read; it does not depend on where the file is or when it was written."""
        return fingerprint_of(self.mark, len(self), *self.streams, self.request.fields, self.request.skip)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._again, self.mark)


def _reopen(request: CtfRequest, mark: str) -> Table:
    table = request.open()
    if table.mark != mark:
        raise DataError(f"{request.path} has changed since this table was opened. Open it again.")
    return table
