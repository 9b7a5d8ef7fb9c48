"""A text file into an Arrow file: piece by piece, in this process or in several, with the same result."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from ...data.batch import Stream
from ...data.fields import Field, take
from ...errors import SourceError
from .block import Parsed, parse_block
from .explain import Problem, fields_met, order_problem
from .keep import Checkpointer, read_part
from .layout import Layout
from .pieces import Stamp, Text, begin, has_ids, open_text, pieces

PIECE_BYTES = 1 << 22
"""Larger ones are slower: what is made of them does not stay in a processor's cache."""


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
    with open_text(path, stamp) as text, closing(Checkpointer(target, streams)) as keeper:
        start = begin(text)
        ids = has_ids(text, start)
        with _parser(text, layout, ids, skip, workers) as parse:
            try:
                for parsed in _merged(path, parse(pieces(text, start, ids, PIECE_BYTES)), skip, summary):
                    seen.update(parsed.seen)
                    keeper.add(parsed.fields, parsed.rows)
            finally:
                text.check_unchanged()  # if it has changed, that is what is wrong, whatever else is
        _check_complete(path, text, layout, summary, seen)
        keeper.finish(asdict(summary))
    return summary


def _merged(path: Path, results: Iterator[tuple[int, Parsed]], skip: bool, summary: Summary) -> Iterator[Parsed]:
    """The pieces in order, with what can only be said of one beside the other."""
    lines, last = 0, None
    for start, parsed in results:
        if parsed.ids is not None and last is not None and parsed.ids[0] <= last:
            parsed = _falling(parsed, last)
        if parsed.problem is not None:
            problem = parsed.problem.moved(lines, start)
            if not skip:
                raise problem.error(str(path))
            summary.first = summary.first or f"{problem.said(str(path))}\n  {problem.advice}"
        summary.sequences += parsed.sequences
        summary.dropped += parsed.dropped
        lines += parsed.lines
        last = parsed.ids[1] if parsed.ids is not None else last
        yield parsed


def _falling(parsed: Parsed, last: int) -> Parsed:
    """A piece whose first sequence has an id that is not larger than the last one of the piece before."""
    assert parsed.ids is not None
    parsed.problem = order_problem(parsed.ids[0], last).moved(0, parsed.id_at)
    if parsed.keeps_first and parsed.fields:
        others = torch.arange(1, parsed.rows)
        parsed.fields = {name: take(rows, others) for name, rows in parsed.fields.items()}
    if parsed.keeps_first:
        parsed.dropped += 1
    return parsed


def _check_complete(path: Path, text: Text, layout: Layout, summary: Summary, seen: set[str]) -> None:
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


# --- in this process, or in others -----------------------------------------------------------------------


@contextmanager
def _parser(text: Text, layout: Layout, ids: bool, skip: bool, workers: int) -> Iterator[Any]:
    """A function from pieces to what they came to, in the same order."""
    if workers == 1 or text.packed:
        yield lambda cuts: ((a, parse_block(text.peek(a, b - a), layout, ids, skip=skip)) for a, b in cuts)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as parts:
        task = {
            "path": str(text.path.resolve()),
            "layout": layout.described(),
            "ids": ids,
            "skip": skip,
            "parts": parts,
        }
        crew = _Crew(workers, task, text.path)
        try:
            yield crew.parse
        finally:
            crew.close()


class _Crew:
    """Processes that parse pieces. Each reads the file itself, and leaves what it found in an Arrow file."""

    def __init__(self, workers: int, task: dict[str, Any], path: Path) -> None:
        self._path = path
        self._count = workers
        self._children = [_start(task) for _ in range(workers)]
        self._free: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for child in self._children:
            self._free.put(child)
        self._threads = ThreadPoolExecutor(workers)

    def parse(self, cuts: Iterator[tuple[int, int]]) -> Iterator[tuple[int, Parsed]]:
        waiting: deque[tuple[int, Future[Parsed]]] = deque()
        for start, stop in cuts:
            waiting.append((start, self._threads.submit(self._ask, start, stop)))
            if len(waiting) > 2 * self._count:
                first, parsed = waiting.popleft()
                yield first, parsed.result()
        while waiting:
            first, parsed = waiting.popleft()
            yield first, parsed.result()

    def close(self) -> None:
        for child in self._children:
            child.kill()  # they keep nothing, and one may be in the middle of a piece that nobody wants any more
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.communicate()

    def _ask(self, start: int, stop: int) -> Parsed:
        child = self._free.get()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps([start, stop]) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            self._free.put(child)
        if not answer:
            raise SourceError(
                f"{self._path}: a process that was to read bytes {start} to {stop} of it ended with code "
                f"{child.wait()}. Is there enough memory? With workers=1 no other process is started."
            )
        return _parsed(json.loads(answer))


def _parsed(said: dict[str, Any]) -> Parsed:
    """What a process has said, and left in a file."""
    part, problem, ids = said.pop("part"), said.pop("problem"), said.pop("ids")
    fields: dict[str, Field] = read_part(Path(part)) if part else {}
    return Parsed(fields, problem=Problem(**problem) if problem else None, ids=tuple(ids) if ids else None, **said)


def _start(task: dict[str, Any]) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.formats.ctf.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(task) + "\n")
    child.stdin.flush()
    return child
