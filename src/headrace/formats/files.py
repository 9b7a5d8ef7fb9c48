"""Files of one kind as one table: columns become streams, and strings become numbers of categories."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from ..data.batch import Stream
from ..data.read_by import ReadBy, nulls_of, read_by_of
from ..data.source import UNNAMED, Categories, Table, fingerprint_of, forwarded
from ..data.views import Concat, Wrapper
from ..errors import ConfigError, DataError, unknown
from .arrow import READ_AS, ArrowFile, Wanted, open_csv, open_ipc, open_parquet
from .blocks import BUDGET_BYTES, Block, BlockCache, OpenFile
from .categories import refuse_numbers, shown, strings_of
from .npy import open_npy, open_npz
from .nulls import LEARNED, Fills, Nulls, fills_of, said_of, with_fill
from .paths import DataFile, digests, find, reading
from .select import Selection, inner

FINGERPRINTED = 1000  # files that a fingerprint tells apart
JOINED_BYTES = BUDGET_BYTES // 2  # of a table, and not of each file; what is decoded besides has room in the cache too


@dataclass(frozen=True)
class FileRequest:
    """The arguments of `open_table`, checked."""

    selection: Selection
    categories: Categories
    streams: tuple[Stream, ...]
    known: Categories = field(default_factory=dict)
    """Categories of columns that may be missing, or may hold no strings; with them what stands for nulls in these."""
    nulls: Nulls = field(default_factory=dict)
    """What stands for nulls, by stream."""

    def inner(self, stream: str) -> list[str]:
        """The columns of a stream, by the names that they have inside of the library."""
        return [inner(column) for column in self.selection.columns_of(stream)]

    def fills(self) -> tuple[Fills, Mapping[str, Sequence[str]]]:
        """What stands for nulls by column, and the streams that say where they were, of which columns."""
        known = {name: said for name, said in nulls_of(self.known).items() if name not in self.nulls}
        optional, indicators = fills_of(known, self.inner, optional=True)
        fills, others = fills_of(self.nulls, self.inner)
        return optional | fills, indicators | others

    def text_types(self) -> dict[str, str]:
        """The types that columns of a CSV file are read as, where the request says so."""
        kinds = {name: kind for name, kind in self.selection.dtypes.items() if kind in READ_AS}
        kinds |= dict.fromkeys(self.categories, "string")
        kinds |= {name: "string" for name, strings in self.known.items() if strings}
        types = {column: kind for name, kind in kinds.items() for column in self.selection.columns_of(name)}
        return types | {shown(column): "string" for column, fill in self.fills()[0].items() if fill.text}


class FileTable(Wrapper):
    """Files of one kind as one table. It is pickled by the names of its files, and opens them again."""

    categories: Categories = UNNAMED

    def __init__(
        self, rows: Table, files: Sequence[DataFile], request: FileRequest, block: int, categories: Categories
    ) -> None:
        super().__init__(rows)
        self.files, self.block = list(files), block
        self._request, self._fingerprint, self.categories = request, "", categories

    columns: Mapping[str, Any] | None = forwarded("_request.selection.columns")
    """Which columns become which streams, as given to `open_table`."""

    def fingerprint(self) -> str:
        """A hash of rows, streams and files, and behind a colon four digits for each file: see `changed_files`."""
        if not self._fingerprint:
            hashes = digests(self.files)
            said = [
                len(self),
                *self.streams,
                self._request.selection.columns,
                sorted(self.categories.items()),
                *sorted(self.nulls.items()),
                *hashes,
            ]
            whole = fingerprint_of(*said)
            each = "".join(each[:4] for each in hashes) if len(hashes) <= FINGERPRINTED else ""
            self._fingerprint = f"{whole}:{each}"
        return self._fingerprint

    def changed_files(self, fingerprint: str) -> list[str]:
        """Names the files that differ from those that had this fingerprint, as far as it tells."""
        each, now = (text.partition(":")[2] for text in (fingerprint, self.fingerprint()))
        if len(each) != len(now):
            return []
        places = range(0, len(now), 4)
        return [str(self.files[k // 4]) for k in places if each[k : k + 4] != now[k : k + 4]]

    def __reduce__(self) -> tuple[Any, ...]:
        names, sizes = [file.again for file in self.files], [file.size for file in self.files]
        request = replace(self._request, categories=dict(self.categories))
        return _reopen, (names, sizes, request)


def assemble(files: Sequence[DataFile], request: FileRequest) -> FileTable:
    """Opens files and makes one table of their blocks."""
    stores = [open_file(file, request) for file in files]
    request = _learned(stores, request)
    fills, indicators = request.fills()
    spare = JOINED_BYTES
    for store in stores:
        spare -= store.gather(spare)
    texts = _texts(stores, request, fills)
    indicators = {name: of for name, of in indicators.items() if of[0] in [s.name for s in stores[0].streams]}
    picks = [request.selection.picks(store.streams, list(store.texts), store.file, indicators) for store in stores]
    cache, blocks = BlockCache(), list[Block]()
    for store, its in zip(stores, picks, strict=True):
        if its.streams != picks[0].streams:
            raise DataError(_unlike(stores[0].file, picks[0].streams, store.file, its.streams))
        firsts = accumulate(store.counts, initial=0)
        blocks += [Block(store, k, next(firsts), its, texts, cache) for k in range(len(store.counts))]
    for block in blocks:
        block.prepare()
    if not blocks:
        raise DataError(f"{files[0]} has no rows{', nor have the others' if len(files) > 1 else ''}.")
    categories = {
        stream.name: list(texts[column])
        for stream in blocks[0].streams
        for column in request.inner(stream.name)
        if column in texts
    }
    rows = blocks[0] if len(blocks) == 1 else Concat(blocks)
    there = {column: fill for column, fill in fills.items() if column in [s.name for s in stores[0].streams]}
    nulls = said_of({**nulls_of(request.known), **request.nulls}, there, request.inner)
    return FileTable(rows, files, request, max(store.run for store in stores), read_by_of(ReadBy(categories, nulls)))


def _learned(stores: Sequence[OpenFile], request: FileRequest) -> FileRequest:
    """The request with the means and medians of columns that are filled by them, over all files."""
    held = [store for store in stores if isinstance(store, ArrowFile)]
    if not request.nulls or not held:
        return request
    fills = dict(request.fills()[0])
    for column in [column for column, fill in fills.items() if fill.value in LEARNED]:
        fills[column] = held[0].learn(column, held[1:])
        for store in held:
            store.put_fill(column, fills[column])
    return replace(request, nulls=said_of(request.nulls, fills, request.inner))


def open_file(file: DataFile, request: FileRequest, wanted: Wanted | None = None) -> OpenFile:
    """Opens a file by its kind; `wanted` chooses among the names of its columns, as the request does."""
    wanted = wanted or partial(request.selection.wanted, file)
    declared = [replace(stream, name=inner(stream.name)) for stream in request.streams]
    if file.kind in ("npy", "npz"):
        if declared:
            raise ConfigError(f"{file} says itself what its streams are: leave streams= out.")
        if request.nulls:
            raise ConfigError(f"{file} holds arrays, which have no nulls: leave nulls= out.")
        return open_npy(file, wanted) if file.kind == "npy" else open_npz(file, wanted)
    fills = request.fills()[0]
    if file.kind == "ipc":
        return open_ipc(file, wanted, declared, fills)
    if file.kind == "parquet":
        return open_parquet(file, wanted, declared, fills)
    return open_csv(file, wanted, declared, fills, request.text_types())


def _texts(stores: Sequence[OpenFile], request: FileRequest, fills: Fills) -> dict[str, Sequence[str]]:
    """The categories of each column of strings: those that were given, those that the files say, or all strings."""
    columns = {column for store in stores for column in store.texts}
    for store in stores:
        if isinstance(store, ArrowFile):
            refuse_numbers(request.known, {stream.name for stream in store.streams} - columns, store.file)
    found: dict[str, Sequence[str]] = {}
    for name, strings in request.categories.items():
        for column in request.inner(name):
            if column not in columns:
                raise ConfigError(
                    f"categories=: {unknown('column of strings', name, sorted(map(shown, columns)) or ['none'])}"
                )
            found[column] = list(strings)
    found = {inner(name): list(strings) for name, strings in request.known.items() if inner(name) in columns} | found
    for column in columns - set(found):
        said = [store.texts.get(column) for store in stores]
        agreed = said[0] is not None and said.count(said[0]) == len(said)
        found[column] = (said[0] or []) if agreed else strings_of(_strings(stores, column))
    given = {column for name in request.categories for column in request.inner(name)}
    return {column: with_fill(strings, column, fills, column in given) for column, strings in found.items()}


def _strings(stores: Sequence[OpenFile], column: str) -> Iterator[Any]:
    """All strings of a column, as Arrow arrays."""
    for store in stores:
        with reading(store.file):
            yield from store.strings(column)


def _reopen(names: list[str], sizes: list[int], request: FileRequest) -> Table:
    files = find(names)
    for file, size in zip(files, sizes, strict=True):
        if file.size != size:
            raise DataError(f"{file} has changed: it had {size} bytes, now {file.size}. Open the table again.")
    return assemble(files, request)


def _unlike(one: DataFile, its: Sequence[Stream], other: DataFile, others: Sequence[Stream]) -> str:
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
