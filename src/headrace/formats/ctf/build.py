"""A text file as an Arrow file: block by block, in one thread or in several, with the same result."""

import json
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...data.batch import Stream
from ...data.fields import Field, cat, nbytes_of
from ...errors import SourceError
from ..columns import fields_of, only_ones, record_batch_of
from ..lazy import pa
from ..schema import schema_of
from .exact import fields_met, read_exactly
from .fast import Parsed, read_block
from .layout import Layout
from .text import BlockText, Stamp, begin, blocks, has_ids, open_text

BLOCK_BYTES = 1 << 22
"""Larger ones are slower: what is made of them does not stay in a processor's cache."""
EXACT_BYTES = 1 << 16
"""Of a block that cannot be read at once, so much is read line by line where something is wrong."""
BATCH_BYTES = 1 << 26
SUMMARY = "headrace.ctf"


@dataclass
class Summary:
    """What was read of a file, and what was not."""

    sequences: int = 0
    dropped: int = 0
    first: str = ""

    def warn(self, path: str, level: int) -> None:
        if self.dropped:
            warnings.warn(
                f"{path}: {self.dropped:,} of {self.sequences:,} sequences were dropped. The first: {self.first}",
                stacklevel=level + 1,
            )


def build(
    path: Path, stamp: Stamp, layout: Layout, streams: Sequence[Stream], target: Path, *, skip: bool, workers: int
) -> Summary:
    """Parses a file, as it was when the stamp was taken, into an Arrow file."""
    summary, seen = Summary(), set[str]()
    with open_text(path, stamp) as text, closing(ArrowWriter(target, streams)) as writer:
        try:
            start = begin(text)
            ids = has_ids(text, start)
            read = _read_ahead(
                blocks(text, start, ids, BLOCK_BYTES), lambda block: read_block(block, layout, ids), workers
            )
            with closing(read):
                for parsed in _all_parsed(path, read, layout, ids, skip, summary):
                    seen.update(parsed.seen)
                    writer.add(parsed.fields, parsed.rows)
        finally:
            text.check_unchanged()  # if it has changed, that is what is wrong, whatever else is
        _check_complete(path, layout, summary, seen)
        writer.finish(asdict(summary))
    return summary


def summary_of(path: Path) -> Summary:
    """The summary that was written at the end of a file."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        return Summary(**json.loads(last.custom_metadata[SUMMARY.encode()]))


def _read_ahead(
    found: Iterator[tuple[int, bytes]], read: Callable[[bytes], Parsed | None], threads: int
) -> Generator[tuple[int, bytes, Parsed | None]]:
    """Blocks, where they begin, and what they are read as, in the order of the file."""
    if threads == 1:
        yield from ((start, block, read(block)) for start, block in found)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            waiting: deque[Any] = deque()
            for start, block in found:
                waiting.append((start, block, pool.submit(read, block)))
                if len(waiting) > 2 * threads:
                    start, block, parsed = waiting.popleft()
                    yield start, block, parsed.result()
            yield from ((start, block, parsed.result()) for start, block, parsed in waiting)
        finally:
            pool.shutdown(cancel_futures=True)


def _all_parsed(
    path: Path,
    read: Iterable[tuple[int, bytes, Parsed | None]],
    layout: Layout,
    ids: bool,
    skip: bool,
    summary: Summary,
) -> Iterator[Parsed]:
    """The blocks in order. One with something wrong, or beside the one before, is read in parts, some line by line."""
    lines, last = 0, -1
    for begins, block, whole in read:
        if whole is not None and _follows(whole, last):
            parts = iter([(0, block)])
        else:
            whole, parts = None, blocks(BlockText(block), 0, ids, EXACT_BYTES)
        for start, part in parts:
            parsed = whole or read_block(part, layout, ids)
            if parsed is None or not _follows(parsed, last):
                parsed, problem = read_exactly(part, layout, ids, last)
                if problem is not None:
                    problem = problem.moved(lines, begins + start)
                    if not skip:
                        raise problem.error(str(path))
                    summary.first = summary.first or f"{problem.said(str(path))}\n  {problem.advice}"
            summary.sequences += parsed.sequences
            summary.dropped += parsed.dropped
            lines += parsed.lines
            last = parsed.ids[1] if parsed.ids is not None else last
            yield parsed


def _follows(parsed: Parsed, last: int) -> bool:
    """Whether the ids of a block are larger than the last one before it."""
    return parsed.ids is None or parsed.ids[0] > last


def _check_complete(path: Path, layout: Layout, summary: Summary, seen: set[str]) -> None:
    """Raises if nothing was found, of the rows or of a stream."""
    if not summary.sequences:
        raise SourceError(f"{path} holds no sequences: it is empty, or has no line with a field that can be read.")
    if summary.dropped == summary.sequences:
        raise SourceError(
            f"{path}: all of its {summary.sequences:,} sequences would be dropped. The first: {summary.first}"
        )
    for column in layout.columns:
        if column.name not in seen:
            with open_text(path) as again:
                met = ", ".join(fields_met(again.peek(0, 1 << 20))) or "none"
            raise SourceError(
                f"stream {column.name!r}: {path} has no field {column.field.decode()!r}. Its fields are: {met}. "
                f"Say what the stream is called there: fields={{{column.name!r}: ...}}."
            )


class ArrowWriter:
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
        self._schema = schema_of(self._streams, ones=self._ones)
        self._writer = pa.ipc.new_file(str(self._target), self._schema)

    def _add_values(self, valued: set[str]) -> None:
        """Writes what has been written once more, with the values of these streams."""
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
