"""`open_ctf`: a file in CNTK's text format as a Table, parsed once and then read in place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...data.batch import Stream
from ...data.source import Table, fingerprint_of
from ...data.views import Wrapper
from ...errors import ConfigError, DataError, unknown
from ..select import streams_in
from ..table import open_table
from .build import Summary, build
from .cache import Cache, sample
from .keep import summary_of
from .layout import Layout
from .pieces import Stamp, open_text


def open_ctf(
    path: str | Path,
    streams: Sequence[Stream],
    *,
    fields: Mapping[str, str] | None = None,
    bad_rows: Literal["stop", "skip"] = "stop",
    cache: str | Path | None = None,
    workers: int = 1,
) -> Table:
    """The sequences of a text file, one a row, as they are declared.

    `streams`: a stream with `sequence=True` has an item for each line of the sequence that has its field, any other
    one item for each sequence, on whichever of its lines. `fields`: what a stream is called in the file, where that
    is not its name: {"words": "x"}. Fields that no stream reads are ignored.
    `bad_rows`: "stop" raises at the first thing that cannot be read, "skip" drops the sequences that have one, and
    says how many. `workers`: that many processes parse; the result is the same.

    The file is parsed once: its rows are kept in an Arrow file beside it, or in the directory `cache`, and read from
    there as long as the file and what is asked of it stay the same. Packed files (`.gz`) are read by one process.
    """
    reading = Reading.of(path, streams, fields, bad_rows, cache, workers)
    return reading.open(again=True)


@dataclass(frozen=True)
class Reading:
    """What was asked for: enough to ask again, from another process for example."""

    path: Path
    streams: tuple[Stream, ...]
    fields: tuple[tuple[str, str], ...]
    skip: bool
    cache: Path | None
    workers: int

    @classmethod
    def of(cls, path: Any, streams: Any, fields: Any, bad_rows: str, cache: Any, workers: int) -> "Reading":
        if "://" in str(path):
            raise ConfigError(f"{path} is not a local file. Copy it here, and open the copy.")
        if bad_rows not in ("stop", "skip"):
            raise ConfigError(unknown("bad_rows", bad_rows, ("stop", "skip")))
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers= is a number of processes, at least 1, got {workers!r}.")
        if streams is None:
            raise ConfigError(f"{path}: a text file does not say what its streams are. Declare them: streams=[...].")
        streams_in(streams)
        if cache is not None and not Path(cache).is_dir():
            raise ConfigError(f"cache= is to be a directory that exists, got {str(cache)!r}.")
        told = tuple(dict(fields or {}).items())
        where = None if cache is None else Path(cache)
        return cls(Path(path).expanduser(), tuple(streams), told, bad_rows == "skip", where, workers)

    def open(self, again: bool) -> Table:
        """The table; `again` builds the cache anew if it turns out to be damaged."""
        layout = Layout.of(self.streams, dict(self.fields))
        with open_text(self.path) as text:
            mark = sample(text.descriptor)
            said = [layout.described(), [stream.name for stream in self.streams], self.skip]
            cache = Cache.of(self.path, text.descriptor, mark, said, self.cache)
            text.check_unchanged()
        kept = cache.find()
        if kept is None:
            kept, summary = self._build(cache, layout, text.stamp)
        else:
            summary = None
        try:
            table = open_table(kept)
            summary = summary or Summary(**summary_of(kept))
        except (DataError, OSError, KeyError, TypeError, ValueError):
            cache.discard(kept)
            if not again:
                raise
            return self.open(again=False)
        summary.warn(str(self.path), level=3)
        return TextTable(table, self, mark)

    def _build(self, cache: Cache, layout: Layout, stamp: Stamp) -> tuple[Path, Summary]:
        with cache.writing() as target:
            try:
                summary = build(self.path, stamp, layout, self.streams, target, skip=self.skip, workers=self.workers)
            except OSError as error:
                raise cache.cannot(error) from None
            return cache.publish(target), summary


class TextTable(Wrapper):
    """The rows of a text file, in place in the Arrow file that was made of them."""

    def __init__(self, table: Table, reading: Reading, mark: str) -> None:
        super().__init__(table)
        self.reading, self.mark = reading, mark
        cache = None if reading.cache is None else reading.cache.absolute()
        self._again = replace(reading, path=reading.path.absolute(), cache=cache)  # from wherever it is opened

    def fingerprint(self) -> str:
        """Of the text, and of how it is read: neither where it is nor when it was written."""
        return fingerprint_of(self.mark, len(self), *self.streams, self.reading.fields, self.reading.skip)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._again, self.mark)


def _reopen(reading: Reading, mark: str) -> Table:
    table = reading.open(again=True)
    if not isinstance(table, TextTable) or table.mark != mark:
        raise DataError(f"{reading.path} has changed since this table was opened. Open it again.")
    return table
