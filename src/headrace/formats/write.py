"""Writes tables into files, block by block."""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path

from ..data.batch import Batch, concat
from ..data.encoding import Categories
from ..data.fields import nbytes_of
from ..data.source import Table
from ..errors import ConfigError, DataError, HeadraceError
from ..store import disk
from .columns import only_ones, record_batch_of
from .lazy import pa, pq
from .schema import schema_of

ENDINGS = (".arrow", ".parquet")
MOST_ROWS, BLOCK_BYTES = 65536, 2**24
Blocks = Callable[[], Iterator[Batch]]
"""Gives rows block by block, as often as they are needed."""


def write_table(data: Table, path: str | Path, *, rows_per_block: int | None = None) -> None:
    """Writes a table as `.arrow` or `.parquet`, as the name says.

    If writing fails, an old file of this name is unchanged. `rows_per_block` rows, by default about 16 MB, are in
    memory at a time; they are one block for an order by blocks.
    """
    if not isinstance(data, Table):
        raise ConfigError(
            f"expected a Table, got a {type(data).__name__}. hr.ArrayTable and hr.open_table(frame) make tables of "
            "what is in memory; of a Reader, write the table that it reads."
        )
    target = check_target(path)
    if rows_per_block is not None and rows_per_block < 1:
        raise ConfigError(f"rows_per_block= is at least 1, got {rows_per_block}.")
    rows = rows_per_block or max(1, int(min(MOST_ROWS, BLOCK_BYTES / max(1.0, data.row_bytes))))
    starts = range(0, max(1, len(data)), rows)  # an empty table has one block without rows
    write_blocks(lambda: (data.rows(k, min(len(data), k + rows)) for k in starts), target, data.categories)


def write_blocks(make: Blocks, target: Path, categories: Categories | None = None) -> None:
    """Writes rows block by block; the values of sparse streams are left out where all of them are 1."""
    with replacing(target) as beside:
        create = partial(pa.ipc.new_file, str(beside))
        if target.suffix.lower() == ".parquet":
            create = partial(pq.ParquetWriter, str(beside), compression="zstd")
        left = make()
        first = next(left, None)
        if first is None:
            raise DataError(f"there are no rows to write into {target}: nothing says what their streams are.")
        ones = {name for name in first.fields if only_ones(first[name])}
        for _ in range(1 + bool(ones)):
            schema = schema_of(first.streams, ones, categories)
            with create(schema) as writer:
                for block in chain([first], left):
                    if any(not only_ones(block[name]) for name in ones):  # written again, with all values
                        ones, left = set(), make()
                        first = next(left)
                        break
                    writer.write_batch(record_batch_of(block.fields, schema, categories))
                else:
                    return


def joined(make: Blocks, nbytes: int) -> Iterator[Batch]:
    """Rows in blocks of about so many bytes."""
    held, size = list[Batch](), 0
    for batch in make():
        held.append(batch)
        size += nbytes_of(batch.fields)
        if size >= nbytes:
            yield Batch(concat(held))
            held, size = [], 0
    if held:
        yield Batch(concat(held))


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
