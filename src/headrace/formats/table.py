"""`open_table` and `open_ctf`: files as tables, read where they lie as far as their kind allows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..data.batch import Stream
from ..data.read_by import ReadBy
from ..data.source import Categories, Table, fingerprint_of
from ..data.views import Concat, Wrapper
from ..errors import ConfigError, DataError, unknown
from .ctf.build import build, summary_of
from .ctf.cache import CtfCache, sample
from .ctf.layout import Layout
from .ctf.text import open_text
from .described import opened
from .files import FileRequest, assemble, open_file
from .frames import is_frame, open_frame
from .nulls import nulls_in
from .paths import SUFFIXES, DataFile, Paths, digests, find
from .select import Columns, Selection, categories_in, streams_in


def open_table(
    path: Any,
    *,
    columns: Columns | None = None,
    dtypes: Mapping[str, Any] | None = None,
    categories: Categories | None = None,
    nulls: Mapping[str, Any] | None = None,
    streams: Sequence[Stream] | None = None,
    fields: Mapping[str, str] | None = None,
    bad_rows: Literal["stop", "skip"] = "stop",
    cache: str | Path | None = None,
) -> Table:
    """Opens files, or a frame, as a table, whose rows are read in place as far as the kind of file allows.

    `path`: a file, a list of them, a pattern like "train-*.parquet", a directory, or an fsspec URL like
    "s3://bucket/train.parquet". Kinds, by the suffix: `.npy` (stream "x"), `.npz`, `.arrow`, `.feather` or `.ipc`,
    `.parquet`, `.csv` or `.tsv`, also with `.gz`, and CNTK's text format, `.ctf` or, where it is named, `.txt`, also
    with `.gz`. Files are read one after the other, those of a list in its order, others sorted by name. Or a frame of
    pandas or Polars, a table of Arrow.

    `columns`: which of them, ["a", "b"], or what is made of them, {"x": ["width", "height"], "y": "species"}: several
    columns of numbers stand side by side. `dtypes`: {"x": "float32"}; a number that it does not hold is refused, and
    fractions are rounded. `categories`: what the codes of a column of strings stand for, {"y": ["setosa", ...]}, when
    it is not to be all of its strings, sorted: validation data take those of the training data,
    `categories=train.categories`.
    `nulls`: what stands for missing values, {"age": "mean", "fare": 0.0, "home": "unknown"}: "mean" or "median" of the
    rows that have one, a number, or a category of its own for strings; of several columns side by side a list. With
    ["mean", "indicate"] a stream `age_null` says which were missing; "indicate" alone fills in 0. Whole numbers filled
    with fractions become float64, and NaN counts as missing. `Table.nulls` has what was filled in: other data take it
    by `nulls=train.nulls`.
    `streams`: what a file does not say of itself: the streams of a `.ctf` file, the width of sparse rows.
    `fields`, `bad_rows` and `cache`: for `.ctf` files, as `open_ctf` takes them.
    """
    streams = None if streams is None else streams_in(streams)
    categories = None if categories is None else categories_in(categories)
    fills = {} if nulls is None else nulls_in(nulls)
    selection = Selection(columns, dtypes)
    if is_frame(path):
        given = {"streams=": streams, "fields=": fields, "cache=": cache}
        if told := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"a frame is read without {told[0]}, which is for files. Leave it out.")
        return open_frame(path, selection, ReadBy(categories or {}, fills))

    path = [*path] if isinstance(path, Iterator) else path  # it is read more than once

    def open_() -> Table:
        files = find(path)
        if unread := next((file for file in files if not file.kind), None):
            raise ConfigError(f"{unread} is of no known kind. Known are: {', '.join(SUFFIXES)}.")
        if files[0].kind == "ctf":
            others = {"columns=": columns, "dtypes=": dtypes, "categories=": categories, "nulls=": nulls}
            return _open_text(files, streams, fields, bad_rows, cache, others)
        if fields is not None or bad_rows != "stop" or cache is not None:
            raise ConfigError(f"{files[0]}: fields=, bad_rows= and cache= are for .ctf files. Leave them out.")
        return assemble(files, FileRequest(selection, dict(categories or {}), tuple(streams or ()), nulls=fills))

    return opened(path, open_)


def open_by(path: Paths, categories: Categories) -> Table:
    """Opens files as `open_table` does; `categories` holds for those columns that turn out to hold strings."""

    def open_() -> Table:
        files = find(path)
        if files[0].kind in ("", "ctf"):
            return open_table(path)
        return assemble(files, FileRequest(Selection(), {}, (), categories))

    return opened(path, open_)


def column_names(path: Paths) -> list[str]:
    """Returns the names of the columns of a file, whatever they hold; of several files, those of the first."""

    def listed(held: Sequence[str], aside: Collection[str] = ()) -> list[str]:
        raise _ListedError([name for name in held if name not in aside])

    try:
        open_file(find(path)[0], FileRequest(Selection(), {}, ()), listed)
    except _ListedError as found:
        return found.names
    return []


class _ListedError(DataError):
    """Ends the opening of a file once the names of its columns are known."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)


def _open_text(
    files: Sequence[DataFile],
    streams: Sequence[Stream] | None,
    fields: Mapping[str, str] | None,
    bad_rows: Literal["stop", "skip"],
    cache: str | Path | None,
    others: Mapping[str, object],
) -> Table:
    """Opens files in CNTK's text format."""
    if streams is None:
        raise ConfigError(
            f"{files[0]} does not say what its streams are. Declare them: streams=[Stream('x', (4,)), ...]."
        )
    if files[0].remote is not None:
        raise ConfigError(f"{files[0]}: text is read from a local disk. Copy it there, or convert it to .parquet.")
    if told := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"{files[0]}: a .ctf file is read by streams= alone, without {told[0]}")
    tables = [open_ctf(file.again, streams, fields=fields, bad_rows=bad_rows, cache=cache) for file in files]
    return tables[0] if len(tables) == 1 else Concat(tables)


# --- CNTK's text format -------------------------------------------------------------------------------------


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
            table = assemble([DataFile.local(str(kept))], FileRequest(Selection(), {}, ()))
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
