"""Data that are too large for memory are converted once, into an Arrow file in a cache folder that is then mapped."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from ..data.batch import Batch
from ..data.encoding import Encoding
from ..data.fields import nbytes_of
from ..data.source import fingerprint_of
from ..errors import ConfigError, CorruptError
from ..store import disk
from ..store.document import LARGE_BYTES, read_document
from .documents import document_of, encoding_in
from .encode import Columns, Encoder, Request
from .lazy import pa
from .paths import digests
from .write import write_table

VERSION = 1
BLOCK_BYTES = 2**26  # of a record batch: fewer of them are gathered faster


def cached(columns: Sequence[Columns], request: Request) -> tuple[Path, Encoding]:
    """The Arrow file that files have been converted into, which is written if it is not there; and how they were read.

    Its name is made of the contents of the files and of how they are read. The Arrow file is written last, under
    another name until it is complete.
    """
    folder = cache_folder() if request.cache is None else request.cache
    key = fingerprint_of(VERSION, *digests([file for file, _ in columns]), *request.settings())
    path, note = folder / f"{key}.arrow", folder / f"{key}.json"
    if path.is_file():
        with suppress(OSError, ValueError, CorruptError):
            return path, encoding_in(read_document(note, LARGE_BYTES))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        encoder = Encoder(columns, request)
        disk.write_file(note, json.dumps(document_of(encoder.encoding)).encode())
        rows, batches = _rows_per_block(encoder.batches())
        write_table(batches, path, rows_per_block=rows)
    except (OSError, ConfigError) as error:
        size = sum(file.size for file, _ in columns) / 1e9
        raise ConfigError(
            f"{columns[0][0]}: {size:.1f} GB are too large for memory, and cannot be converted into {folder}: {error} "
            "Name a folder with room for them: open_table(..., cache=...)."
        ) from error
    pa.default_memory_pool().release_unused()
    return path, encoder.encoding


def _rows_per_block(batches: Iterator[Batch]) -> tuple[int, Iterator[Batch]]:
    """How many rows make a record batch, by the first of these batches; and all of them."""
    first = next(batches, None)
    if first is None:
        return 1, batches
    return max(1, int(BLOCK_BYTES * first.rows / max(1, nbytes_of(first.fields)))), chain([first], batches)


def cache_folder() -> Path:
    """The folder in which the data of this user are cached."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "headrace" / "tables"


def free_bytes() -> float:
    """The memory that may be used: what the system and the process's control group leave; a guess where none tells."""
    found = [float(sys.maxsize)]
    lines = _lines("/proc/meminfo")
    found += [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    limits = [_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current", "stat")]
    if all(limits) and limits[0][0].isdigit():
        cached = sum(float(line.split()[1]) for line in limits[2] if line.startswith(("file ", "slab_reclaimable ")))
        found.append(max(0.0, float(limits[0][0]) - float(limits[1][0]) + cached))
    if len(found) == 1 and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2)
    return min(found)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
