"""`open_ctf`: files in CNTK's text format as tables, read from an Arrow file that is made of them once."""

import gzip
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

from ..data.batch import Batch, Stream
from ..data.source import Table, fingerprint_of
from ..errors import ConfigError, DataError, SourceError, unknown
from .cache import ENDING, converted
from .ctf.blocks import blocks, boundaries, has_ids, middle_of
from .ctf.faults import fault_of, names_in
from .ctf.layout import Layout
from .ctf.parse import Parsed, read_block
from .encode import Request
from .files import FileTable, open_files
from .paths import DataFile, digests
from .select import streams_in

VERSION = 2
BLOCK_BYTES = 1 << 22  # what is made of larger ones does not stay in a processor's cache
EXACT_BYTES = 1 << 16  # so much of a text that cannot be read at once is looked at line by line
SKIP = 'Correct the line, declare the stream as it is there, or drop such sequences with bad_rows="skip".'


def open_ctf(
    path: str | Path,
    streams: Sequence[Stream],
    *,
    fields: Mapping[str, str] | None = None,
    bad_rows: Literal["stop", "skip"] = "stop",
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
        bad_rows: "stop" raises at the first line that cannot be read, "skip" drops such sequences, and says how many.
        cache: the directory of the Arrow file; by default that of the file.
    """
    if "://" in str(path):
        raise ConfigError(f"{path} is not a local file. Copy it here, and open the copy.")
    if bad_rows not in ("stop", "skip"):
        raise ConfigError(unknown("bad_rows", bad_rows, ("stop", "skip")))
    streams, fields = streams_in(streams), dict(fields or {})
    if cache is not None and not Path(cache).is_dir():
        raise ConfigError(f"cache= is to be a directory that exists, got {str(cache)!r}.")
    layout, file = Layout.of(streams, fields), DataFile.local(str(Path(path).expanduser()))
    names = [stream.name for stream in streams]
    key = fingerprint_of(VERSION, *digests([file]), layout.described(), names, bad_rows)
    rows = _TextRows(file, layout, names, bad_rows == "skip")
    folder = (Path(file.path).parent if cache is None else Path(cache)).absolute()
    kept = folder / f".{file.name[:50]}.{key}{ENDING}"
    noted = converted(kept, lambda: (rows.batches, rows.noted), f"the rows of {path}")
    if noted["dropped"]:
        counts = f"{noted['dropped']:,} of {noted['sequences']:,} sequences were dropped"
        warnings.warn(f"{path}: {counts}. The first: {noted['first']}", stacklevel=2)
    again = partial(open_ctf, file.path, streams, fields=fields, bad_rows=bad_rows, cache=cache and folder)
    return TextTable(open_files([DataFile.local(str(kept))], Request()), file, key, again)


class TextTable(FileTable):
    """The rows of a text file, read from the Arrow file that was made of it."""

    def __init__(self, table: FileTable, file: DataFile, key: str, again: Callable[[], Table]) -> None:
        super().__init__(table, [file], Request(), table.encoding, table.block or 1)
        self._fingerprint, self._again = key, again

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._again, self._fingerprint)


def _reopen(again: Callable[[], Table], key: str) -> Table:
    table = again()
    if table.fingerprint() != key:
        raise DataError(f"{again.args[0]} has changed since this table was opened. Open it again.")  # type: ignore[attr-defined]
    return table


class _TextRows:
    """The rows of a text file, a block at a time."""

    def __init__(self, file: DataFile, layout: Layout, names: Sequence[str], skip: bool) -> None:
        self._file, self._layout, self._names, self._skip = file, layout, names, skip

    def batches(self) -> Iterator[Batch]:
        """All rows, in the order of the file."""
        self._sequences = self._dropped = self._lines = 0
        self._last, self._first, self._seen = -1, "", set[str]()  # the last id, what was wrong first, streams met
        try:
            with _opened(self._file) as text:
                start = _begin(text, self._file)
                self._ids = has_ids(iter(text))
                text.seek(start)
                for block in blocks(text, self._ids, BLOCK_BYTES):
                    yield from self._rows_of(block)
        except (EOFError, zlib.error, OSError) as error:
            raise SourceError(f"{self._file} is cut short or damaged ({error}). Make or copy the file again.") from None
        finally:
            if self._file.has_changed:  # that is what is wrong, whatever else is
                raise SourceError(
                    f"{self._file} changed while it was read. Wait until it is complete, and open it again: a file is "
                    "best written under another name and renamed."
                )
        self._check_complete()

    def noted(self) -> dict[str, Any]:
        """What was read, and what was not."""
        return {"sequences": self._sequences, "dropped": self._dropped, "first": self._first}

    def _rows_of(self, piece: bytes) -> Iterator[Batch]:
        """The rows of a piece of text. One that cannot be read at once is read in parts, and these by sequences."""
        parsed = read_block(piece, self._layout, self._ids)
        if parsed is not None and (parsed.ids is None or parsed.ids[0] > self._last):
            self._last = parsed.ids[1] if parsed.ids is not None else -1
            yield from self._counted(piece, parsed)
        elif len(piece) > EXACT_BYTES and (middle := middle_of(piece, self._ids)):
            for part in (piece[:middle], piece[middle:]):
                yield from self._rows_of(part)
        else:
            good = b""
            for start, stop in pairwise([0, *boundaries(piece, 0, self._ids), len(piece)]):
                sequences, last, fault = fault_of(piece[start:stop], self._layout, self._ids, self._last)
                if fault is None:
                    good += piece[start:stop]
                else:
                    yield from self._exactly(good)
                    self._drop(piece[start:stop], sequences, *fault)
                    good = b""
                self._last = last
            yield from self._exactly(good)

    def _exactly(self, piece: bytes) -> Iterator[Batch]:
        """The rows of sequences in which nothing is wrong."""
        parsed = read_block(piece, self._layout, self._ids, one_by_one=True)
        assert parsed is not None, "a line in which nothing is wrong cannot be read"
        yield from self._counted(piece, parsed)

    def _counted(self, piece: bytes, parsed: Parsed) -> Iterator[Batch]:
        self._lines += piece.count(b"\n")
        self._sequences += parsed.rows
        self._seen.update(parsed.seen)
        if parsed.rows:
            yield Batch({name: parsed.fields[name] for name in self._names}, parsed.rows)

    def _drop(self, piece: bytes, sequences: int, line: int, wrong: str) -> None:
        said = f"{self._file}, line {self._lines + line + 1}: {wrong}."
        if not self._skip:
            raise SourceError(f"{said}\n  {SKIP}")
        self._first = self._first or said
        self._lines += piece.count(b"\n")
        self._sequences, self._dropped = self._sequences + sequences, self._dropped + sequences
        self._seen.update(self._names)

    def _check_complete(self) -> None:
        """Raises if nothing was found, of the rows or of a stream."""
        if not self._sequences:
            raise SourceError(f"{self._file} holds no sequences: it is empty, or has no line with a field to be read.")
        if self._dropped == self._sequences:
            raise SourceError(
                f"{self._file}: all of its {self._sequences:,} sequences would be dropped. The first: {self._first}"
            )
        for column in self._layout.columns:
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
