"""Writes tables and batches into files, block by block."""

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ..data.batch import Batch, Stream, concat
from ..data.fields import nbytes_of
from ..data.source import Table
from ..errors import ConfigError, DataError, HeadraceError
from ..store import disk
from .columns import only_ones, record_batch_of
from .lazy import pa, pq
from .schema import schema_of

ENDINGS = (".arrow", ".parquet")
MOST_ROWS, BLOCK_BYTES = 65536, 2**24


def write_table(data: Table | Iterable[Batch], path: str | Path, *, rows_per_block: int | None = None) -> None:
    """Writes a table, or batches one after the other, as `.arrow` or `.parquet`, as the name says.

    If writing fails, an old file of this name is unchanged. `rows_per_block` rows, by default about 16 MB, are in
    memory at a time; they are one block for an order by blocks.
    """
    if isinstance(data, Mapping) or not isinstance(data, Table | Iterable):
        raise ConfigError(_not_rows(data))
    target = check_target(path)
    if rows_per_block is not None and rows_per_block < 1:
        raise ConfigError(f"rows_per_block= is at least 1, got {rows_per_block}.")
    write_batches(data, target, rows_per_block)


def write_batches(data: Any, target: Path, rows: int | None = None, block_bytes: int = BLOCK_BYTES) -> None:
    """Writes a table, or batches, in blocks of so many rows or of about so many bytes.

    If batches can be gone through twice, the values of sparse rows are left out of the file as those of a table are,
    where all of them are 1.
    """
    with replacing(target) as beside:
        create = partial(pa.ipc.new_file, str(beside))
        if target.suffix.lower() == ".parquet":
            create = partial(pq.ParquetWriter, str(beside), compression="zstd")
        _in_batches(partial(_blocks, data, rows, block_bytes), data, create)


def check_target(path: str | Path) -> Path:
    """Returns the path to write to; raises if its directory or its ending does not allow it."""
    if str(path).lower().endswith((".ctf", ".ctf.gz")):
        raise ConfigError(f"cannot write {path}: CNTK's text format is read, and not written. Write .arrow instead.")
    if "://" in str(path) or not str(path).lower().endswith(ENDINGS):
        raise ConfigError(
            f"cannot write {path}. Name a local file that ends in .arrow or .parquet. NumPy writes arrays: "
            "np.savez(path, **table.rows(0, len(table)).fields)."
        )
    check_place(Path(path))
    return Path(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the name of a temporary file that replaces `path` at the end; after an error nothing has changed."""
    check_place(path)
    beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")  # 255 bytes are the most for a name
    try:
        yield beside
        disk.publish(beside, path)
    except HeadraceError:
        raise
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        with suppress(OSError):
            os.unlink(beside)


def check_place(path: Path) -> None:
    """Raises at once if a file cannot be written here."""
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no directory {path.parent}. Make it first.")
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a directory. Name a file in it.")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:  # a name that is too long is one, too
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> ConfigError:
    said = error.strerror or str(error)
    return ConfigError(f"cannot write {path}: {said}. Name a place that can be written, with room for it.")


def _not_rows(data: Any) -> str:
    return (
        f"expected a Table, or Batches one after the other, got a {type(data).__name__}. hr.ArrayTable and "
        "hr.open_table(frame) make tables of what is in memory; of a Reader, write the table that it reads."
    )


def _in_batches(blocks: Callable[[], Iterator[Batch]], data: Any, create: Callable[[Any], Any]) -> None:
    """Writes Arrow record batches; the values of sparse streams are left out where all of them are 1."""
    left = blocks()
    first = next(left, None)
    if first is None:
        raise DataError("there are no batches to write: nothing says what their streams are.")
    categories = data.categories if isinstance(data, Table) else {}
    ones = set() if isinstance(data, Iterator) else {name for name in first.fields if only_ones(first[name])}
    for _ in range(1 + bool(ones)):
        schema = schema_of(first.streams, ones, categories)
        with create(schema) as writer:
            for block in chain([first], left):
                if any(not only_ones(block[name]) for name in ones):  # written again, with all values
                    ones, left = set(), blocks()
                    first = next(left)
                    break
                writer.write_batch(record_batch_of(block.fields, schema, categories))
            else:
                return


def _rows_of(data: Table, size: int) -> int:
    """How many rows make a block of about so many bytes."""
    return max(1, int(min(MOST_ROWS, size / max(1.0, data.row_bytes))))


def _blocks(data: Any, rows: int | None, block_bytes: int) -> Iterator[Batch]:
    """Blocks of at most so many rows, or of about so many bytes; one block without rows for an empty table."""
    if isinstance(data, Table):
        rows = rows or _rows_of(data, block_bytes)
        for start in range(0, max(1, len(data)), rows):
            yield data.rows(start, min(len(data), start + rows))
        return
    held, size = list[Batch](), 0
    for batch in _same_streams(data):
        held.append(batch)
        size += batch.rows if rows else nbytes_of(batch.fields)
        if size >= (rows or block_bytes):
            yield from _joined(held, rows)
            held, size = [], 0
    if held:
        yield from _joined(held, rows)


def _same_streams(batches: Iterable[Any]) -> Iterator[Batch]:
    """Passes batches on; raises if one has other streams than the first."""
    first: list[Stream] | None = None
    for batch in batches:
        if not isinstance(batch, Batch):
            raise DataError(_not_rows(batch))
        streams = batch.streams
        first = first or streams
        if streams != first:
            one, other = (", ".join(map(str, each)) for each in (first, streams))
            raise DataError(f"the first batch has {one}; a later one {other}. A file has the same streams throughout.")
        yield batch


def _joined(batches: Sequence[Batch], rows: int | None) -> list[Batch]:
    joined = Batch(concat(batches))
    return joined.split(rows) if rows else [joined]
