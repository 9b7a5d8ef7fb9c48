"""Parquet: row groups decoded when they are wanted, of the wanted columns only."""

import threading
from collections.abc import Sequence
from typing import Any

from ..data.batch import Stream
from ..data.schema import index_in
from ..errors import DataError
from .ipc import ArrowStore, Wanted
from .paths import File, reading
from .select import inner


class ParquetStore(ArrowStore):
    """A Parquet file, one block for each of its row groups."""

    def __init__(self, file: File, opened: Any, names: Sequence[str], declared: Sequence[Stream]) -> None:
        import pyarrow as pa

        schema = opened.schema_arrow
        super().__init__(file, pa.schema([schema.field(name) for name in names]), declared)
        self._opened, self._lock = opened, threading.Lock()
        self._names = {inner(name): name for name in names}
        groups = [opened.metadata.row_group(k) for k in range(opened.metadata.num_row_groups)]
        self._groups = [k for k, group in enumerate(groups) if group.num_rows]
        self.counts = [groups[k].num_rows for k in self._groups]
        # no further into the metadata: Arrow ends the process where those of a column are damaged
        part = len(names) / max(1, len(schema.names))
        self._sizes: list[float] = [groups[k].total_byte_size * part for k in self._groups]

    def batches(self, block: int, columns: Sequence[str] | None = None) -> list[Any]:
        names = [self._names[name] for name in columns or self._names]
        with self._lock:  # one position in one file
            table = self._opened.read_row_group(self._groups[block], columns=names)
        if table.num_rows != self.counts[block]:
            raise DataError(f"{self.file} is damaged: a row group has {table.num_rows} rows of {self.counts[block]}.")
        table = table.select(names).rename_columns([inner(name) for name in names])
        found: list[Any] = table.combine_chunks().to_batches()
        return found

    def nbytes(self, block: int) -> float:
        return self._sizes[block]


def open_parquet(file: File, wanted: Wanted, declared: Sequence[Stream]) -> ParquetStore:
    """A Parquet file on a local disk or behind fsspec."""
    import pyarrow.parquet as pq

    with reading(file):
        opened = pq.ParquetFile(file.open(), pre_buffer=file.remote is not None)
        schema = opened.schema_arrow
        return ParquetStore(file, opened, wanted(schema.names, index_in(schema)), declared)
