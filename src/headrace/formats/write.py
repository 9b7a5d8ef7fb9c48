"""Tables into files, block by block: there is a whole file under its name, or what was there before."""

import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..data.arrow import only_ones, record_batch_of, schema_of
from ..data.batch import Batch, Stream, concat
from ..data.source import Table
from ..errors import ConfigError, DataError
from .whole import check_place, whole

ENDINGS = (".arrow", ".parquet", ".npz", ".ctf", ".ctf.gz")
MOST_ROWS, BLOCK_BYTES = 65536, 2**24


def write_table(data: Table | Iterable[Batch], path: str | Path, *, rows_per_block: int | None = None) -> None:
    """Writes a table, or batches one after the other, as `.arrow`, `.parquet`, `.npz` or `.ctf`, as the name says.

    There is a whole file under the name at the end, or what was there before. Only so many rows are held at a time, of
    a table about as many as make 16 MB if nothing is said. They lie together in the file: what an order by blocks goes
    by, and for Parquet what is decoded at once.
    """
    check_rows(data)
    target = check_target(path)
    if target.name.lower().endswith((".ctf", ".ctf.gz")):
        from .ctf.write import write_ctf

        return write_ctf(target, data)
    write = {".arrow": _arrow, ".parquet": _parquet, ".npz": _npz}[target.suffix.lower()]
    if rows_per_block is None:
        bound = BLOCK_BYTES / max(1.0, data.row_bytes) if isinstance(data, Table) else MOST_ROWS
        rows_per_block = max(1, min(MOST_ROWS, int(bound)))
    elif rows_per_block < 1:
        raise ConfigError(f"rows_per_block= is at least 1, got {rows_per_block}.")
    with whole(target) as beside:
        write(data, beside, rows_per_block)
    if write is _npz:
        say_what_is_lost(data, target)


def check_target(path: str | Path) -> Path:
    """The file that is to be written; raises on a place or an ending that cannot be."""
    if "://" in str(path) or not str(path).lower().endswith(ENDINGS):
        raise ConfigError(f"cannot write {path}. Name a local file that ends in .arrow, .parquet, .npz or .ctf.")
    check_place(Path(path))
    return Path(path)


def check_rows(data: Any) -> None:
    """Raises unless this is a table, or may be batches one after the other."""
    if isinstance(data, Mapping) or not isinstance(data, Table | Iterable):
        raise ConfigError(_not_rows(data))


def say_what_is_lost(data: Any, path: Path) -> None:
    """Warns where codes were written without the strings that they stand for."""
    if isinstance(data, Table) and (lost := sorted(data.categories)):
        warnings.warn(
            f"{path} holds the codes of {', '.join(lost)}, and not the strings that they stand for. Write .arrow or "
            ".parquet to keep them.",
            stacklevel=3,
        )


def _not_rows(data: Any) -> str:
    return (
        f"expected a Table, or Batches one after the other, got a {type(data).__name__}. ArrayTable, from_pandas and "
        "from_arrow make a table of what is in memory; of a Reader, write the table that it reads."
    )


def _arrow(data: Any, path: Path, rows: int) -> None:
    import pyarrow as pa

    _in_batches(data, rows, lambda schema: pa.ipc.new_file(str(path), schema))


def _parquet(data: Any, path: Path, rows: int) -> None:
    import pyarrow.parquet as pq

    _in_batches(data, rows, lambda schema: pq.ParquetWriter(str(path), schema, compression="zstd"))


def _in_batches(data: Any, rows: int, create: Callable[[Any], Any]) -> None:
    """As Arrow record batches; the values of sparse streams are left out where a table has none."""
    blocks = _blocks(data, rows)
    first = next(blocks, None)
    if first is None:
        raise DataError("there are no batches to write: nothing says what their streams are.")
    categories = data.categories if isinstance(data, Table) else {}
    ones = {name for name in first if only_ones(first[name])} if isinstance(data, Table) else set()
    for _ in range(1 + bool(ones)):
        schema = schema_of(first.streams, ones, categories)
        with create(schema) as writer:
            for block in chain([first], blocks):
                if any(not only_ones(block[name]) for name in ones):  # written again, with all values
                    ones, blocks = set(), _blocks(data, rows)
                    first = next(blocks)
                    break
                writer.write_batch(record_batch_of(block.fields, schema, categories))
            else:
                return


def _npz(data: Any, path: Path, rows: int) -> None:
    """Array after array, each from its own pass over the table."""
    if not isinstance(data, Table):
        raise ConfigError("batches have no length that is known beforehand, which .npz needs. Write them as .arrow.")
    for stream in data.streams:
        if stream.sequence or stream.layout == "sparse" or stream.dtype == "bfloat16":
            raise DataError(f"NumPy has no array for stream {stream}. Write .arrow or .parquet.")
    with zipfile.ZipFile(path, "w") as archive:
        for stream in data.streams:
            said = {"descr": np.dtype(stream.dtype).str, "fortran_order": False, "shape": (len(data), *stream.shape)}
            with archive.open(f"{stream.name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, said)
                for block in _blocks(data, rows):
                    rows_of: Tensor = block[stream.name]
                    member.write(rows_of.cpu().contiguous().numpy().data.cast("B") if rows_of.numel() else b"")


def _blocks(data: Any, rows: int) -> Iterator[Batch]:
    """At most so many rows at a time; something, if it has none."""
    if isinstance(data, Table):
        for start in range(0, max(1, len(data)), rows):
            yield data.rows(start, min(len(data), start + rows))
        return
    held: list[Batch] = []
    for batch in same_streams(data):
        held.append(batch)
        if sum(each.rows for each in held) >= rows:
            yield from _joined(held, rows)
            held = []
    if held:
        yield from _joined(held, rows)


def same_streams(batches: Iterable[Any]) -> Iterator[Batch]:
    """Batches as they come, all of the streams that the first one has."""
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


def _joined(batches: Sequence[Batch], rows: int) -> list[Batch]:
    return Batch(concat(batches)).split(rows)
