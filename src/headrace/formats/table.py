"""Tables from files: whatever their kind, columns become streams and strings become codes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..data.batch import Stream
from ..data.categories import Categories, shown, strings_of
from ..data.source import Table, fingerprint_of
from ..data.views import Concat, Wrapper
from ..errors import ConfigError, DataError, unknown
from .blocks import BUDGET_BYTES, Block, Cache, Store, firsts
from .csv import READ_AS, open_csv
from .ipc import open_ipc
from .npy import open_npy, open_npz
from .parquet import open_parquet
from .paths import SUFFIXES, File, Paths, find, reading
from .select import Columns, Selection, are_numbers, categories_in, inner, streams_in

FINGERPRINTED = 1000  # files that a fingerprint tells apart
JOINED_BYTES = BUDGET_BYTES // 2  # of a table, and not of each file; what is decoded besides has room in the cache too


def open_table(
    path: Paths,
    *,
    columns: Columns | None = None,
    dtypes: Mapping[str, Any] | None = None,
    categories: Categories | None = None,
    streams: Sequence[Stream] | None = None,
    fields: Mapping[str, str] | None = None,
    bad_rows: Literal["stop", "skip"] = "stop",
    cache: str | Path | None = None,
) -> Table:
    """The rows of files, read where they lie as far as their kind allows.

    `path`: a file, a list of them, a pattern like "train-*.parquet", a directory, or an fsspec URL like
    "s3://bucket/train.parquet". Kinds, by the suffix: `.npy` (stream "x"), `.npz`, `.arrow`, `.feather` or `.ipc`,
    `.parquet`, `.csv` or `.tsv`, also with `.gz`, and CNTK's text format, `.ctf` or, where it is named, `.txt`, also
    with `.gz`. Files are read one after the other, sorted by name.

    `columns`: which of them, ["a", "b"], or what is made of them, {"x": ["width", "height"], "y": "species"}: several
    columns of numbers stand side by side. `dtypes`: {"x": "float32"}; a number that it does not hold is refused, and
    fractions are rounded. `categories`: what the codes of a column of strings stand for, {"y": ["setosa", ...]}, when
    it is not to be all of its strings, sorted: validation data take those of the training data,
    `categories=train.categories`.
    `streams`: what a file does not say of itself: the streams of a `.ctf` file, the width of sparse rows.
    `fields`, `bad_rows` and `cache`: for `.ctf` files, as `open_ctf` takes them.
    """
    streams = None if streams is None else streams_in(streams)
    categories = None if categories is None else categories_in(categories)
    selection = Selection(columns, dtypes)
    files = find(path)
    if unread := next((file for file in files if not file.kind), None):
        raise ConfigError(f"{unread} is of no known kind. Known are: {', '.join(SUFFIXES)}.")
    if files[0].kind == "ctf":
        others = {"columns=": columns, "dtypes=": dtypes, "categories=": categories}
        return _open_text(files, streams, fields, bad_rows, cache, others)
    if fields is not None or bad_rows != "stop" or cache is not None:
        raise ConfigError(f"{files[0]}: fields=, bad_rows= and cache= are for .ctf files. Leave them out.")
    return _assemble(files, Wish(selection, dict(categories or {}), tuple(streams or ())))


def open_by(path: Paths, categories: Categories) -> Table:
    """As `open_table`, with these categories for those columns of strings that have any."""
    files = find(path)
    if files[0].kind in ("", "ctf"):
        return open_table(path)
    return _assemble(files, Wish(Selection(), {}, (), categories))


def column_names(path: Paths) -> list[str]:
    """What the columns of a file are called, whatever they hold; of several files, those of the first."""
    try:
        _open(find(path)[0], Wish(_Names(), {}, ()))
    except _ListedError as listed:
        return listed.names
    return []


@dataclass(frozen=True)
class Wish:
    """What is wanted of files, as `open_table` was told."""

    selection: Selection
    categories: Categories
    streams: tuple[Stream, ...]
    known: Categories = field(default_factory=dict)
    """The categories of columns that may be there, and may hold strings."""

    def inner(self, stream: str) -> list[str]:
        """The columns of a stream, by the names under which they are read."""
        return [inner(column) for column in self.selection.columns_of(stream)]

    def text_types(self) -> dict[str, str]:
        """What columns of text are to be read as, where that has been said."""
        kinds = {name: kind for name, kind in self.selection.dtypes.items() if kind in READ_AS}
        kinds |= dict.fromkeys(self.categories, "string")
        kinds |= {name: "string" for name, strings in self.known.items() if any(are_numbers([s]) for s in strings)}
        return {column: kind for name, kind in kinds.items() for column in self.selection.columns_of(name)}


class FileTable(Wrapper):
    """Files of one kind, one after the other. It travels to another process by name, and is opened again there."""

    def __init__(self, rows: Table, files: Sequence[File], wish: Wish, block: int, categories: Categories) -> None:
        super().__init__(rows)
        self.files, self.block = list(files), block
        self._wish, self._categories, self._fingerprint = wish, categories, ""

    @property
    def categories(self) -> Categories:
        return self._categories

    @property
    def columns(self) -> Mapping[str, Any] | None:
        """Which columns become which streams, as `open_table` was told."""
        return self._wish.selection.columns

    def fingerprint(self) -> str:
        """A hash of rows, streams and files, and behind a colon four digits for each file: see `changed_files`."""
        if not self._fingerprint:
            digests = [file.digest() for file in self.files]
            said = [len(self), *self.streams, self._wish.selection.columns, sorted(self._categories.items()), *digests]
            whole = fingerprint_of(*said)
            each = "".join(digest[:4] for digest in digests) if len(digests) <= FINGERPRINTED else ""
            self._fingerprint = f"{whole}:{each}"
        return self._fingerprint

    def changed_files(self, fingerprint: str) -> list[str]:
        """Which files are not those that had this fingerprint, as far as it tells."""
        each, now = (text.partition(":")[2] for text in (fingerprint, self.fingerprint()))
        if len(each) != len(now):
            return []
        places = range(0, len(now), 4)
        return [str(self.files[k // 4]) for k in places if each[k : k + 4] != now[k : k + 4]]

    def __reduce__(self) -> tuple[Any, ...]:
        names, sizes = [file.again for file in self.files], [file.size for file in self.files]
        return _reopen, (names, sizes, replace(self._wish, categories=self._categories))


def _assemble(files: Sequence[File], wish: Wish) -> FileTable:
    """Opens files, and makes one table of their blocks."""
    stores = [_open(file, wish) for file in files]
    spare = JOINED_BYTES
    for store in stores:
        spare -= store.gather(spare)
    texts = _texts(stores, wish)
    picks = [wish.selection.picks(store.streams, list(store.texts), store.file) for store in stores]
    cache, blocks = Cache(), list[Block]()
    for store, its in zip(stores, picks, strict=True):
        if its.streams != picks[0].streams:
            raise DataError(_unlike(stores[0].file, picks[0].streams, store.file, its.streams))
        blocks += [Block(store, k, first, its, texts, cache) for k, first in enumerate(firsts(store))]
    for block in blocks:
        block.look()
    if not blocks:
        raise DataError(f"{files[0]} has no rows{', nor have the others' if len(files) > 1 else ''}.")
    categories = {
        stream.name: list(texts[column])
        for stream in blocks[0].streams
        for column in wish.inner(stream.name)
        if column in texts
    }
    rows = blocks[0] if len(blocks) == 1 else Concat(blocks)
    return FileTable(rows, files, wish, max(store.run for store in stores), categories)


def _open(file: File, wish: Wish) -> Store:
    def wanted(names: Sequence[str], aside: Collection[str] = ()) -> list[str]:
        return wish.selection.wanted(names, file, aside)

    declared = [replace(stream, name=inner(stream.name)) for stream in wish.streams]
    if file.kind in ("npy", "npz"):
        if declared:
            raise ConfigError(f"{file} says itself what its streams are: leave streams= out.")
        return open_npy(file, wanted) if file.kind == "npy" else open_npz(file, wanted)
    if file.kind == "ipc":
        return open_ipc(file, wanted, declared)
    if file.kind == "parquet":
        return open_parquet(file, wanted, declared)
    return open_csv(file, wanted, declared, wish.text_types())


def _texts(stores: Sequence[Store], wish: Wish) -> dict[str, Sequence[str]]:
    """The categories of each column of strings: those that were given, those that the files say, or all strings."""
    columns = {column for store in stores for column in store.texts}
    found: dict[str, Sequence[str]] = {}
    for name, strings in wish.categories.items():
        for column in wish.inner(name):
            if column not in columns:
                raise ConfigError(
                    f"categories=: {unknown('column of strings', name, sorted(map(shown, columns)) or ['none'])}"
                )
            found[column] = list(strings)
    found = {inner(name): list(strings) for name, strings in wish.known.items() if inner(name) in columns} | found
    for column in columns - set(found):
        said = [store.texts.get(column) for store in stores]
        agreed = said[0] is not None and said.count(said[0]) == len(said)
        found[column] = (said[0] or []) if agreed else _all(stores, column)
    return found


def _all(stores: Sequence[Store], column: str) -> list[str]:
    """All strings of a column, read once through the files."""

    def parts() -> Iterator[Any]:
        for store in stores:
            with reading(store.file):
                yield from store.strings(column)

    return strings_of(parts())


class _ListedError(DataError):
    """No error: what the columns of a file are called, before anything else of it is read."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)


class _Names(Selection):
    """Wants no more of a file than what its columns are called."""

    def wanted(self, held: Sequence[str], where: object, aside: Collection[str] = ()) -> list[str]:
        raise _ListedError([name for name in held if name not in aside])


def _reopen(names: list[str], sizes: list[int], wish: Wish) -> Table:
    files = find(names)
    for file, size in zip(files, sizes, strict=True):
        if file.size != size:
            raise DataError(f"{file} has changed: it had {size} bytes, now {file.size}. Open the table again.")
    return _assemble(files, wish)


def _open_text(
    files: Sequence[File],
    streams: Sequence[Stream] | None,
    fields: Mapping[str, str] | None,
    bad_rows: Literal["stop", "skip"],
    cache: str | Path | None,
    others: Mapping[str, object],
) -> Table:
    """Files in CNTK's text format."""
    if streams is None:
        raise ConfigError(
            f"{files[0]} does not say what its streams are. Declare them: streams=[Stream('x', (4,)), ...]."
        )
    if files[0].remote is not None:
        raise ConfigError(f"{files[0]}: text is read from a local disk. Copy it there, or convert it to .parquet.")
    if told := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"{files[0]}: a .ctf file is read by streams= alone, without {told[0]}")
    from .ctf.table import open_ctf

    tables = [open_ctf(file.again, streams, fields=fields, bad_rows=bad_rows, cache=cache) for file in files]
    return tables[0] if len(tables) == 1 else Concat(tables)


def _unlike(one: File, its: Sequence[Stream], other: File, others: Sequence[Stream]) -> str:
    """How two files differ in their streams."""
    there = {stream.name: stream for stream in others}
    for stream in its:
        if stream.name not in there:
            return f"{one} has a stream {stream.name!r} and {other} has not. columns= says which are read."
        if there[stream.name] != stream:
            return (
                f"stream {stream.name!r} is {_kind(stream)} in {one} and {_kind(there[stream.name])} in {other}. "
                f"Make them one: dtypes={{{stream.name!r}: 'float32'}}, or write one of the files again."
            )
    added = sorted(set(there) - {stream.name for stream in its})
    if not added:
        return f"{one} and {other} have their streams in another order. columns= says which are read, and in which."
    return f"{other} has a stream {added[0]!r} and {one} has not. columns= says which are read."


def _kind(stream: Stream) -> str:
    return str(stream).partition(": ")[2]
