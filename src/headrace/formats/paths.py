"""Finds the files that a path means, maps or reads them, and notices when they change."""

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError, HeadraceError
from ..store.remote import Object, object_of
from ..store.system import cores
from .lazy import fs, pa

SUFFIXES = {
    ".npy": "npy",
    ".npz": "npz",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".ctf": "ctf",
    ".txt": "ctf",
}
Paths = str | Path | Sequence[str | Path]
HASHED_BYTES = 1 << 30  # all bytes of local files are hashed if they have no more together
HASHED_REMOTE_BYTES = 64 << 20  # the same for files that are read through a network
BLOCK_BYTES, MOST_THREADS = 4 << 20, 8  # of a file that is hashed
_HEAD, _SAMPLE, _SAMPLES = 65536, 4096, 6


@dataclass(frozen=True)
class DataFile:
    """One data file on a local disk or behind fsspec, with its size and time when it was found."""

    path: str
    shown: str
    """The name the user gave, for messages."""
    remote: Any = None
    """The fsspec file system that it is on; none for a local one."""
    size: int = 0
    stamp: tuple[int, ...] = field(default=(), compare=False)
    object: Object | None = None
    """What its store says of a file behind fsspec."""

    @classmethod
    def local(cls, path: str) -> "DataFile":
        where = os.path.abspath(path)
        stamp = _stamp(where, path)
        return cls(where, path, size=stamp[0], stamp=stamp)

    @classmethod
    def behind(cls, remote: Any, facts: dict[str, Any], url: str = "") -> "DataFile":
        """A file that fsspec has described."""
        found, path = object_of(facts), facts["name"]
        return cls(path, url or remote.unstrip_protocol(path), remote, found.size, object=found)

    def __str__(self) -> str:
        return self.shown

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def full_name(self) -> str:
        """The name that finds it from another process."""
        return self.shown if self.remote is not None else self.path

    @property
    def kind(self) -> str:
        return _kind(self.name)

    @property
    def has_changed(self) -> bool:
        """Whether a local file is another one than when it was found."""
        return self.remote is None and _stamp(self.path, self.shown) != self.stamp

    def check(self) -> None:
        """Raises if the mapped file has been written to; replacing or deleting it does no harm."""
        if self.remote is not None:
            return
        try:
            found = os.stat(self.path)
        except OSError:
            return
        now = found.st_size, found.st_mtime_ns, found.st_ino
        if now != self.stamp and now[2] == self.stamp[2]:
            raise DataError(
                f"{self} has changed while it was being read: it had {self.stamp[0]} bytes, now {now[0]}. "
                "Open the table again; write new data under another name."
            )

    @cached_property
    def local_path(self) -> str | None:
        """Where the file is on this machine; of one behind fsspec a copy, if there is room for it."""
        if self.remote is None or self.object is None:
            return self.path
        from ..store.cache import copy_of

        copy = copy_of(self.remote, self.path, self.object)
        return None if copy is None else str(copy)

    def open(self) -> Any:
        """The file as Arrow reads it, by seeking: mapped where it is on this machine."""
        if self.local_path is not None:
            return pa.BufferReader(self.load())
        return fs.PyFileSystem(fs.FSSpecHandler(self.remote)).open_input_file(self.path)

    def load(self) -> Any:
        """All bytes as an Arrow buffer: mapped where the file is on this machine, else read. It is closed again."""
        if self.local_path is None:
            return pa.py_buffer(self.remote.cat_file(self.path))
        if not self.size:
            raise DataError(f"{self} is empty.")
        with pa.memory_map(self.local_path) as mapped:
            return mapped.read_buffer()


def digests(files: Sequence[DataFile]) -> list[str]:
    """A hash of each file, which a change of the file changes and a move does not.

    If the files have up to 1 GB together, or 64 MB behind fsspec, it includes the name and all bytes. Otherwise it
    includes the name, the size and the time of a local file, or the name, the size and samples of the bytes of one
    behind fsspec.
    """
    for file in files:
        if file.has_changed:
            raise DataError(f"{file} has been changed since it was opened. Open it again.")
    size = sum(file.size for file in files)
    found = []
    for file in files:
        if file.remote is None:
            content = hash_of_bytes(file.path, file.stamp) if size <= HASHED_BYTES else str(file.stamp[:2])
        else:
            content = _hash_of_remote(file) if size <= HASHED_REMOTE_BYTES else hash_of_samples(file)
        found.append(hashlib.blake2b(f"{file.name}\n{content}".encode(), digest_size=8).hexdigest())
    return found


@lru_cache(maxsize=1 << 16)
def hash_of_bytes(path: str, stamp: tuple[int, ...]) -> str:
    """A hash of a local file, which is read once in a process, as long as its stamp stays the same."""

    def block(start: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(min(BLOCK_BYTES, stamp[0] - start))

    with reading(path):
        return _hash_of_blocks(block, stamp[0])


def _hash_of_remote(file: DataFile) -> str:
    with reading(file):
        data = memoryview(file.load())
        return _hash_of_blocks(lambda start: data[start : start + BLOCK_BYTES], len(data))


def _hash_of_blocks(block: Callable[[int], bytes | memoryview], size: int) -> str:
    """A hash of bytes; of more than one block, a hash of the hashes of blocks, which several threads read and hash."""
    if size <= BLOCK_BYTES:
        return hashlib.sha256(block(0)).hexdigest()
    with ThreadPoolExecutor(min(cores(), MOST_THREADS)) as threads:
        each = threads.map(lambda start: hashlib.sha256(block(start)).digest(), range(0, size, BLOCK_BYTES))
        return hashlib.sha256(b"".join(each)).hexdigest()


def hash_of_samples(file: DataFile) -> str:
    """A hash of the size of a file and of its head, its tail and a few places between them."""
    text = hashlib.blake2b(f"{file.size}\n".encode())
    steps = range(1, _SAMPLES + 1)
    places = {0, max(0, file.size - _HEAD), *(file.size * k // (_SAMPLES + 1) for k in steps)}
    with reading(file), file.open() as opened:
        for place in sorted(places):
            opened.seek(place)
            text.update(opened.read(_SAMPLE if 0 < place < file.size - _HEAD else _HEAD))
    return text.hexdigest()


@contextmanager
def reading(file: DataFile | str) -> Iterator[None]:
    """Turns whatever a library raises about a file into a DataError that names the file."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:  # a parser of someone else's, given bytes of someone else's: it may raise anything
        said = (str(error) or type(error).__name__).strip().splitlines()[0][:300].rstrip(".")
        raise DataError(
            f"{file} cannot be read: {said}. Write it again, or check that its name tells what is in it."
        ) from error


def find(path: Paths) -> list[DataFile]:
    """Finds the files that a path, a list, a pattern, a directory or an fsspec URL means.

    Those of a list are in its order, all others sorted by name.
    """
    if not isinstance(path, str | Path):
        if not isinstance(path, Sequence | Set | Iterator):
            raise DataError(
                f"expected a path, a list of paths or a frame, got a {type(path).__name__}. What is in memory is given "
                "to the trainer as it is; hr.concat(data) makes a table of it."
            )
        files = [file for each in (sorted(path, key=str) if isinstance(path, Set) else path) for file in find(each)]
        if not files:
            raise ConfigError("an empty list of files: there is nothing to read.")
        return _of_one_kind(files, "this list")
    text = os.path.expanduser(path)
    if "://" in text:
        return _remote(text)
    if os.path.isdir(text):
        inside = (os.path.join(text, name) for name in sorted(os.listdir(text)))
        return _of_directory([DataFile.local(name) for name in inside if _is_data(name) and os.path.isfile(name)], text)
    if os.path.exists(text) or not glob.has_magic(text):
        return [DataFile.local(text)]
    found = sorted(name for name in glob.glob(text, recursive=True) if os.path.isfile(name))
    if not found:
        raise DataError(f"no file matches {text!r}. {_nearby(text)}")
    return _of_one_kind([DataFile.local(name) for name in found], repr(text))


def _remote(url: str) -> list[DataFile]:
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        remote, path = fsspec.core.url_to_fs(url, use_listings_cache=False)  # which may be old
    except (ImportError, ValueError) as error:
        raise ConfigError(f"cannot read {url}: {str(error).rstrip('.')}.") from None
    if isinstance(remote, LocalFileSystem):
        return find(path)
    with reading(url):
        with suppress(FileNotFoundError):
            if _kind(path) and (facts := remote.info(path))["type"] == "file":  # in one request
                return [DataFile.behind(remote, facts, url)]
        if remote.isdir(path):
            inside = sorted(remote.ls(path, detail=True), key=lambda facts: str(facts["name"]))
            return _of_directory([DataFile.behind(remote, facts) for facts in inside if _is_data(facts["name"])], url)
        if remote.exists(path):
            return [DataFile.behind(remote, remote.info(path), url)]
        found = remote.glob(path, detail=True) if glob.has_magic(path) else {}
        if not found:
            raise DataError(f"there is no file {url}.")
        return _of_one_kind([DataFile.behind(remote, facts) for _, facts in sorted(found.items())], url)


def _is_data(path: str) -> bool:
    name = path.rstrip("/").rpartition("/")[2]
    text = name.lower().removesuffix(".gz").endswith(".txt")  # it may be anything, and is read where it is named
    return not name.startswith((".", "_")) and not text and bool(_kind(name))


def _kind(name: str) -> str:
    """The kind of a file by its suffix; text may be packed."""
    kind = SUFFIXES.get(Path(name.lower().removesuffix(".gz")).suffix, "")
    return kind if kind in ("csv", "jsonl", "ctf") or not name.lower().endswith(".gz") else ""


def _partition(path: str) -> list[str]:
    """The directories of a path that say what a column is, `year=2024`, as Hive and Spark write them."""
    return [part for part in os.path.dirname(path).split("/") if "=" in part.strip("=")]


def _of_directory(files: list[DataFile], directory: str) -> list[DataFile]:
    if not files:
        raise DataError(f"the directory {directory} has no data files. {_below(directory)}")
    return _of_one_kind(files, f"the directory {directory}")


def _below(directory: str) -> str:
    """A remedy for a directory without data files."""
    inside = glob.glob("*/", root_dir=directory) if os.path.isdir(directory) else []
    if inside:
        return (
            f"There are directories in it, {sorted(inside)[0]} for example: name one, or a pattern like '*/*.parquet'."
        )
    return f"Known are: {', '.join(SUFFIXES)}."


def _of_one_kind(files: list[DataFile], what: str) -> list[DataFile]:
    if len(parts := {tuple(_partition(file.path)): file for file in files}) > 1:
        columns, file = max(parts.items(), key=lambda part: len(part[0]))
        raise ConfigError(
            f"{file} is part of a data set that is parted by {', '.join(columns)}: these columns are in the names of "
            "directories alone, and would be lost. Write it as files that have them, or open each part by itself."
        )
    kinds = {file.kind: file for file in reversed(files)}
    if len(kinds) > 1:
        listed = " and ".join(file.name for file in list(kinds.values())[:2])
        raise DataError(
            f"{what} has files of several kinds, {listed} for example. Name one: a pattern like '*.parquet'."
        )
    return files


def _stamp(path: str, shown: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise DataError(f"there is no file {shown}. {_nearby(shown)}") from None
    except OSError as error:
        raise DataError(f"{shown} cannot be read: {error.strerror}.") from None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _nearby(path: str) -> str:
    """What there is instead."""
    folder = os.path.dirname(path) or "."
    try:
        names = sorted(name for name in os.listdir(folder) if _is_data(name))
    except OSError:
        return f"There is no directory {folder} either."
    return f"In {folder} there are: {', '.join(names[:8])}." if names else f"In {folder} there are no data files."
