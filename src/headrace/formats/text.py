"""`open_ctf`: files in CNTK's text format as tables, read from an Arrow file that is made of them once."""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from ..data.batch import Batch, Stream
from ..data.source import Table, fingerprint_of
from ..errors import ConfigError, DataError, SourceError
from .cache import ENDING, converted
from .ctf.blocks import blocks, boundaries, has_ids, middle_of
from .ctf.columns import Column, columns_of
from .ctf.faults import fault_of, names_in
from .ctf.parse import read_block
from .encode import Request
from .files import FileTable, open_files
from .paths import DataFile, digests
from .select import streams_in

VERSION = 3
BLOCK_BYTES = 1 << 22  # what is made of larger ones does not stay in a processor's cache
EXACT_BYTES = 1 << 16  # so much of a text that cannot be read at once is looked at line by line
REMEDY = "Correct the line, or declare the stream as it is there."


def open_ctf(
    path: str | Path,
    streams: Sequence[Stream],
    *,
    fields: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
) -> Table:
    """Opens a file in CNTK's text format as a table, with a row for each sequence.

    The file is parsed once. Its rows are kept in an Arrow file, which is read as long as the file and the arguments
    stay the same.

    Args:
        path: the file.
        streams: a stream with `sequence=True` has an item for each line of the sequence that has its field. Any other
            stream has one item per sequence, on any of its lines. Fields without a stream are ignored.
        fields: the names of streams in the file, where they differ: `{"words": "x"}`.
        cache: the directory of the Arrow file; by default that of the file.
    """
    if "://" in str(path):
        raise ConfigError(f"{path} is not a local file. Copy it here, and open the copy.")
    streams, fields = streams_in(streams), dict(fields or {})
    if cache is not None and not Path(cache).is_dir():
        raise ConfigError(f"cache= is to be a directory that exists, got {str(cache)!r}.")
    columns, file = columns_of(streams, fields), DataFile.local(str(Path(path).expanduser()))
    names = [stream.name for stream in streams]
    key = fingerprint_of(VERSION, *digests([file]), *columns, names)
    folder = (Path(file.path).parent if cache is None else Path(cache)).absolute()
    kept = folder / f".{file.name[:50]}.{key}{ENDING}"
    converted(kept, lambda: (_TextRows(file, columns, names).batches, dict), f"the rows of {path}")
    table = open_files([DataFile.local(str(kept))], Request())
    again = partial(open_ctf, file.path, streams, fields=fields, cache=cache and folder)
    return FileTable(table.table, [file], table.encoding, table.block or 1, (_reopen, (again, key)), key)


def _reopen(again: partial[Table], key: str) -> Table:
    table = again()
    if table.fingerprint() != key:
        raise DataError(f"{again.args[0]} has changed since this table was opened. Open it again.")
    return table


class _TextRows:
    """The rows of a text file, a block at a time."""

    def __init__(self, file: DataFile, columns: Sequence[Column], names: Sequence[str]) -> None:
        self._file, self._columns, self._names = file, columns, names

    def batches(self) -> Iterator[Batch]:
        """All rows, in the order of the file."""
        self._lines, self._last, self._seen = 0, -1, set[str]()  # lines read, the last id, streams met
        any_rows = False
        try:
            with _opened(self._file) as text:
                start = _begin(text, self._file)
                self._ids = has_ids(iter(text))
                text.seek(start)
                for block in blocks(text, self._ids, BLOCK_BYTES):
                    for batch in self._rows_of(block):
                        any_rows = True
                        yield batch
        except (EOFError, zlib.error, OSError) as error:
            raise SourceError(f"{self._file} is cut short or damaged ({error}). Make or copy the file again.") from None
        finally:
            if self._file.has_changed:  # that is what is wrong, whatever else is
                raise SourceError(
                    f"{self._file} changed while it was read. Wait until it is complete, and open it again: a file is "
                    "best written under another name and renamed."
                )
        if not any_rows:
            raise SourceError(f"{self._file} holds no sequences: it is empty, or has no line with a field to be read.")
        self._check_streams()

    def _rows_of(self, piece: bytes) -> Iterator[Batch]:
        """The rows of a piece of text. One that cannot be read at once is read in parts, and these by sequences."""
        parsed = read_block(piece, self._columns, self._ids)
        if parsed is None or (parsed.ids is not None and parsed.ids[0] <= self._last):
            if len(piece) > EXACT_BYTES and (middle := middle_of(piece, self._ids)):
                for part in (piece[:middle], piece[middle:]):
                    yield from self._rows_of(part)
                return
            self._refuse_faults(piece)
            parsed = read_block(piece, self._columns, self._ids, one_by_one=True)
            assert parsed is not None, "a line in which nothing is wrong cannot be read"
        self._last = parsed.ids[1] if parsed.ids is not None else self._last
        self._lines += piece.count(b"\n")
        self._seen.update(parsed.seen)
        if parsed.rows:
            yield Batch({name: parsed.fields[name] for name in self._names}, parsed.rows)

    def _refuse_faults(self, piece: bytes) -> None:
        """Raises at the first line of a piece of text that cannot be read."""
        last = self._last
        for start, stop in pairwise([0, *boundaries(piece, 0, self._ids), len(piece)]):
            last, fault = fault_of(piece[start:stop], self._columns, self._ids, last)
            if fault is not None:
                number = self._lines + piece.count(b"\n", 0, start) + fault[0] + 1
                raise SourceError(f"{self._file}, line {number}: {fault[1]}.\n  {REMEDY}")

    def _check_streams(self) -> None:
        """Raises if a stream was never found."""
        for column in self._columns:
            if column.name not in self._seen:
                with _opened(self._file) as text:
                    met = names_in(text.read(1 << 20))
                raise SourceError(
                    f"stream {column.name!r}: {self._file} has no field {column.field.decode()!r}. Its fields are: "
                    f"{met}. Say what the stream is called there: fields={{{column.name!r}: ...}}."
                )


def _opened(file: DataFile) -> IO[bytes]:
    found: Any = (gzip.open if file.path.lower().endswith(".gz") else open)(file.path, "rb")
    return found  # type: ignore[no-any-return]


def _begin(text: IO[bytes], file: DataFile) -> int:
    """Where the text begins, after the mark that some editors put before UTF-8; it stands there now."""
    head = text.read(3)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SourceError(f"{file} is in UTF-16. Convert it to UTF-8: iconv -f UTF-16 -t UTF-8.")
    start = 3 if head == b"\xef\xbb\xbf" else 0
    text.seek(start)
    return start
