"""Parsed rows in Arrow files: the one that is kept, in large record batches, and parts on their way there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...data.arrow import fields_of, only_ones, record_batch_of, schema_of, streams_of
from ...data.batch import Stream
from ...data.fields import Field, cat, nbytes_of

BATCH_BYTES = 1 << 26
SUMMARY = "headrace.ctf"


class Checkpointer:
    """Writes rows to an Arrow file, many pieces to a record batch.

    Values of a sparse stream are left out as long as all of them are 1; with the first that is not, the file is
    written anew, with values.
    """

    def __init__(self, target: Path, streams: Sequence[Stream]) -> None:
        self._target, self._streams = target, list(streams)
        self._ones = {stream.name for stream in streams if stream.layout == "sparse"}
        self._held: list[Mapping[str, Field]] = []
        self._bytes = 0
        self._schema: Any = None
        self._writer: Any = None
        self._written = 0

    def add(self, fields: Mapping[str, Field], rows: int) -> None:
        if not rows:
            return
        if self._bytes >= BATCH_BYTES:  # not before there are more: what is held last says what was read
            self._write({})
        self._held.append(fields)
        self._bytes += nbytes_of(fields)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The rest, and with it a summary."""
        self._write({SUMMARY: json.dumps(summary)})
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, metadata: Mapping[str, str]) -> None:
        fields = {s.name: cat([part[s.name] for part in self._held]) for s in self._streams}
        self._held, self._bytes = [], 0
        if valued := {name for name in self._ones if not only_ones(fields[name])}:
            self._add_values(valued)
        if self._writer is None:
            self._open()
        self._writer.write_batch(record_batch_of(fields, self._schema), custom_metadata=dict(metadata))
        self._written += 1

    def _open(self) -> None:
        import pyarrow as pa

        self._schema = schema_of(self._streams, ones=self._ones)
        self._writer = pa.ipc.new_file(str(self._target), self._schema)

    def _add_values(self, valued: set[str]) -> None:
        """Writes what has been written once more, with the values of these streams."""
        import pyarrow as pa

        self._ones -= valued
        if not self._written:
            return
        self.close()
        with pa.memory_map(str(self._target)) as source, pa.ipc.open_file(source) as reader:
            self._target.unlink()  # what is mapped stays
            self._open()
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                self._writer.write_batch(record_batch_of(fields_of(batch, self._streams), self._schema))


def summary_of(path: Path) -> dict[str, Any]:
    """What was said when a file was finished."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        found: dict[str, Any] = json.loads(last.custom_metadata[SUMMARY.encode()])
        return found


def write_part(path: Path, streams: Sequence[Stream], fields: Mapping[str, Field]) -> None:
    """The rows of one piece, as they are."""
    import pyarrow as pa

    ones = {stream.name for stream in streams if stream.layout == "sparse" and only_ones(fields[stream.name])}
    schema = schema_of(streams, ones=ones)
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_batch(record_batch_of(fields, schema))


def read_part(path: Path) -> dict[str, Field]:
    """The rows of one piece, in mapped memory; the file is removed."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        batch = reader.get_batch(0)
        fields = fields_of(batch, streams_of(batch.schema))
    path.unlink()
    return fields
