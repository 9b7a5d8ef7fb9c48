"""Data that are too large for memory are converted once, into an Arrow file in a cache folder that is then mapped."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..data.encoding import Encoding
from ..data.source import fingerprint_of
from ..errors import ConfigError
from ..store.cache import cache_folder
from ..store.document import LARGE_BYTES, read_document
from .documents import document_of, encoding_in
from .encode import Columns, Encoder, Request
from .lazy import pa
from .paths import DataFile, digests, hash_of_bytes, hash_of_samples
from .write import Blocks, joined, replacing, write_blocks

VERSION = 2
BLOCK_BYTES = 2**26  # of a record batch: fewer of them are gathered faster
HASHED_BYTES = 2**24  # all bytes of a cached file are compared up to this size, and samples of a larger one
ENDING = ".arrow"


def cached(columns: Sequence[Columns], request: Request) -> tuple[Path, Encoding]:
    """The Arrow file that files have been converted into, which is written if it is not there; and how they were read.

    Its name is made of the contents of the files and of how they are read.
    """
    folder = cache_folder() / "tables" if request.cache is None else request.cache
    path = folder / f"{fingerprint_of(VERSION, *digests([file for file, _ in columns]), *request.settings())}{ENDING}"

    def make() -> tuple[Blocks, Callable[[], dict[str, Any]]]:
        encoder = Encoder(columns, request)
        return encoder.batches, lambda: document_of(encoder.encoding)

    size = sum(file.size for file, _ in columns) / 1e9
    encoding = encoding_in(converted(path, make, f"{columns[0][0]}: {size:.1f} GB, which are too large for memory,"))
    pa.default_memory_pool().release_unused()
    return path, encoding


def converted(path: Path, make: Callable[[], tuple[Blocks, Callable[[], dict[str, Any]]]], what: str) -> dict[str, Any]:
    """Writes batches into an Arrow file unless it is there and undamaged; returns what was noted of them.

    `make` gives the batches, and what is to be noted once they are written. The note lies beside the file, is written
    last, and has a checksum of both.
    """
    note = path.with_name(path.name.removesuffix(ENDING) + ".json")
    with suppress(OSError, ValueError, LookupError, TypeError):
        check, noted = read_document(note, LARGE_BYTES)
        if check == _check(path, noted):
            return dict(noted)
    batches, noted_of = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_blocks(partial(joined, batches, BLOCK_BYTES), path)
        noted = noted_of()
        with replacing(note) as beside:
            beside.write_text(json.dumps([_check(path, noted), noted]), encoding="utf-8")
    except (OSError, ConfigError) as error:
        raise ConfigError(
            f"{what} cannot be converted into {path.parent}: {error} Name a folder with room for it: cache=..."
        ) from error
    return noted


def _check(path: Path, noted: Any) -> str:
    """A hash of a file and of what is noted of it."""
    file = DataFile.local(str(path))
    content = hash_of_bytes(file.path, file.stamp) if file.size <= HASHED_BYTES else hash_of_samples(file)
    return fingerprint_of(content, json.dumps(noted, sort_keys=True))


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
