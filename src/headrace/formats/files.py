"""Files of one kind as one table, and frames."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..data.arrays import ArrayTable
from ..data.encoding import Encoding
from ..data.source import Table, fingerprint_of
from ..data.views import Wrapper
from ..errors import ConfigError, DataError
from .cache import cached, free_bytes
from .encode import Columns as ColumnsOf
from .encode import Encoder, Request
from .frames import is_frame, read_frame, where_of
from .lazy import pa
from .npy import read_npy, read_npz
from .paths import SUFFIXES, DataFile, digests, find, reading
from .read import Batches, Select, Types, read_csv, read_ipc, read_json_lines, read_parquet
from .schema import index_in

BLOCK_BYTES = 2**24
MEMORY_SHARE = 0.25  # of the free memory, which data may take


READERS: dict[str, Callable[[DataFile, Select, Types], Any]] = {
    "npy": read_npy,
    "npz": read_npz,
    "parquet": read_parquet,
    "ipc": read_ipc,
    "csv": read_csv,
    "jsonl": read_json_lines,
}
"""By the kind of a file; each gives `Batches`, or the arrays of a file by name."""


def add_format(suffix: str, read: Callable[[Any], Any]) -> None:
    """Lets `open_table`, and whatever takes a path, read files with another suffix, as ".events".

    `read` gets the file, opened for bytes, and returns a table of Arrow's, or what `pyarrow.table` makes one of.
    Categories, nulls, several files, URLs and messages are as with all other formats.
    """

    def read_columns(file: DataFile, select: Select, types: Types) -> Batches:
        with file.open() as opened:
            table = pa.table(read(opened))
        table = table.select(select(table.column_names, index_in(table.schema)))
        return Batches(table.to_batches, table.nbytes, schema=table.schema)

    if not suffix.startswith(".") or suffix.count(".") > 1 or not callable(read):
        raise ConfigError(f"add_format() takes a suffix, as '.events', and a function; got {suffix!r} and {read!r}.")
    if SUFFIXES.setdefault(suffix.lower(), suffix) != suffix:
        raise ConfigError(f"add_format(): {suffix} is read already, as {SUFFIXES[suffix.lower()]}.")
    READERS[suffix] = read_columns


def open_by(data: Any, request: Request) -> Table:
    """Opens files or a frame as a request says."""
    if is_frame(data):
        return open_frame(data, request)
    return open_files(find(data), request)


def column_names(data: Any) -> list[str]:
    """Returns the names of the columns of a file or a frame, whatever they hold; of several files, the first one's."""
    names: list[str] = []

    def none_of(held: Sequence[str], aside: Collection[str] = ()) -> list[str]:
        names[:] = [name for name in held if name not in aside]
        return []

    if is_frame(data):
        read_frame(data, none_of)
    else:
        _read(find(data)[0], Request(), none_of)
    return names


class FileTable(Wrapper):
    """Files of one kind as one table. `again`, a function and its arguments, opens them when it is unpickled."""

    encoding: Encoding = Encoding()

    def __init__(
        self,
        rows: Table,
        files: Sequence[DataFile],
        encoding: Encoding,
        block: int,
        again: tuple[Any, ...],
        fingerprint: str = "",
    ) -> None:
        super().__init__(rows)
        self.files, self.block, self.encoding = list(files), block, encoding
        self._again, self._fingerprint = again, fingerprint

    def fingerprint(self) -> str:
        """A hash of rows, streams and files, and of how they are read."""
        if not self._fingerprint:
            self._fingerprint = fingerprint_of(
                len(self),
                *self.streams,
                self.encoding.columns,
                sorted(self.categories.items()),
                *sorted(self.nulls.items()),
                *digests(self.files),
            )
        return self._fingerprint

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again


def open_files(files: Sequence[DataFile], request: Request) -> FileTable:
    """Opens files and makes one table of their rows."""
    columns = [(file, _read(file, request)) for file in files]
    decoded = [data for _, data in columns if isinstance(data, Batches) and not data.mapped]
    block = max((data.block for _, data in columns if isinstance(data, Batches)), default=0)
    budget = MEMORY_SHARE * free_bytes() if request.memory_bytes is None else request.memory_bytes
    if sum(data.nbytes for data in decoded) > budget:
        path, encoding = cached(columns, request)
        rows = open_files([DataFile.local(str(path))], Request()).table
    else:
        encoder = Encoder([(file, _in_memory(file, data)) for file, data in columns], request)
        rows, encoding = encoder.table(), encoder.encoding
    block = block or min(len(rows), max(1, BLOCK_BYTES * len(rows) // max(1, sum(file.size for file in files))))
    names, sizes = [file.full_name for file in files], [file.size for file in files]
    again = (_reopen, (names, sizes, replace(request, categories=dict(encoding.categories))))
    return FileTable(rows, files, encoding, block, again)


def _in_memory(file: DataFile, data: Any) -> Any:
    with reading(file):
        return data.loaded() if isinstance(data, Batches) and not data.mapped else data


def _read(file: DataFile, request: Request, select: Any = None) -> Any:
    """The columns of a file by its kind; `select` chooses among their names, as the request does."""
    select = select or partial(request.selection.wanted, file)
    if file.kind == "ctf":
        raise ConfigError(f"{file} is in CNTK's text format. Open it with hr.open_ctf(path, streams).")
    if file.kind not in READERS:
        raise DataError(f"{file} is of no known kind. Known are: {', '.join(SUFFIXES)}.")
    with reading(file):
        found = READERS[file.kind](file, select, request.text_types())
    if (request.streams or request.nulls) and not isinstance(found, Batches):
        raise ConfigError(
            f"{file} holds arrays, which have no nulls and say what their streams are: leave nulls= and streams= out."
        )
    return found


def _reopen(names: list[str], sizes: list[int], request: Request) -> Table:
    files = find(names)
    for file, size in zip(files, sizes, strict=True):
        if file.size != size:
            raise DataError(f"{file} has changed: it had {size} bytes, now {file.size}. Open the table again.")
    return open_files(files, request)


def open_frame(frame: Any, request: Request, where: str = "") -> ArrayTable:
    """Reads a frame into a table in memory; numbers are used in place. `where` is what messages call it."""
    if request.streams or request.cache is not None:
        name = "streams=" if request.streams else "cache="
        raise ConfigError(f"a frame is read without {name}, which is for files. Leave it out.")
    where = where or where_of(frame)
    columns: list[ColumnsOf] = [(where, read_frame(frame, partial(request.selection.wanted, where)))]
    encoder = Encoder(columns, request)
    return ArrayTable(encoder.in_memory(), encoding=encoder.encoding)
