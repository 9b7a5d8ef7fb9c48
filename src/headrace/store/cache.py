"""What is kept of object stores on this machine: folders of runs, copies of data, and how much room they take."""

import hashlib
import json
import os
import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import CheckpointError, RunError
from . import disk
from .document import read_document
from .place import STATE
from .remote import Object, object_of
from .run import LOCK, lock_run
from .shape import FLAG, TEXT, check, each, maybe

_FIELDS = {"claimed": [TEXT], "holds": maybe(TEXT), "uploaded": FLAG, "versions": each(TEXT)}


@dataclass
class State:
    """What is known of the folder of a run: `.mirror.json` in it."""

    claimed: list[str] = field(default_factory=list)
    """The tokens of the last claims from here, whose trainers have ended when the folder's lock is free."""
    holds: str | None = None
    """The token of the claim whose training is in the folder."""
    uploaded: bool = True
    """Whether the store has all of it."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of the objects that were downloaded."""

    @classmethod
    def of(cls, folder: Path) -> "State":
        try:
            found = check(read_document(folder / STATE), _FIELDS, str(folder / STATE))
            return cls(**{name: found[name] for name in _FIELDS})
        except (OSError, ValueError, KeyError, CheckpointError):
            return cls()

    def write(self, folder: Path) -> None:
        disk.write_file(folder / STATE, json.dumps(asdict(self)).encode())


def cache_folder() -> Path:
    """Where this is: HEADRACE_CACHE, or headrace in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADRACE_CACHE") or Path(home, "headrace"))


def folder_of(url: str) -> Path:
    """The folder of a run of an object store on this machine."""
    url = url.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[:60]
    return cache_folder() / "runs" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def copy_of(remote: Any, path: str, object: Object) -> Path | None:
    """A copy of an object of a file system of fsspec, verified each time that it is asked for.

    There is none if the object takes more than half of the room, or if its store does not tell when it changes.
    """
    folder = cache_folder() / "data"
    if not object.tag or object.size > min(_limit(), disk.free(folder)) / 2:
        return None
    disk.make_dirs(folder)
    named = f"{remote.unstrip_protocol(path)}\n{object.tag}\n{object.size}"
    key = hashlib.sha256(named.encode()).hexdigest()[:32]
    with FileLock(folder / ".lock"):
        for copy in folder.glob(f"{key}-*"):
            if copy.name == f"{key}-{_hash(copy)}":
                os.utime(copy)  # it has been used now
                return copy
            disk.unlink(copy)
        make_room(folder, object.size)
        remote.get_file(path, str(folder / ".new"))
        if (folder / ".new").stat().st_size != object.size or object_of(remote.info(path)).tag != object.tag:
            raise OSError("it has been written to while it was read")
        copy = folder / f"{key}-{_hash(folder / '.new')}"
        disk.publish(folder / ".new", copy)
    return copy


def _hash(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, hashlib.blake2b).hexdigest()[:32]


def _limit() -> float:
    return float(os.environ.get("HEADRACE_CACHE_GB") or 50) * 1e9


def make_room(folder: Path, nbytes: int = 0) -> None:
    """Makes room for a folder, or for so many bytes: removes copies and runs in their store that were used longest ago.

    The limit of all is HEADRACE_CACHE_GB.
    """
    runs = [other for other in cache_folder().glob("runs/*") if other != folder and (other / STATE).is_file()]
    copies = [other for other in cache_folder().glob("data/*-*") if other.is_file()]
    sizes = {other: sum(file.stat().st_size for file in other.rglob("*") if file.is_file()) for other in runs}
    sizes |= {copy: copy.stat().st_size for copy in copies}
    used = {other: (other / STATE if other in runs else other).stat().st_mtime for other in sizes}
    total = nbytes + sum(sizes.values())
    for other in sorted(sizes, key=lambda other: used[other]):
        if total <= _limit():
            return
        with suppress(RunError, OSError):
            total -= sizes[other] * _removed(other)
    if total > _limit():
        warnings.warn(
            f"{cache_folder()} has {disk.size(total)} of runs that are in use or not yet in their store, and its limit "
            f"is {disk.size(_limit())} (HEADRACE_CACHE_GB).",
            stacklevel=3,
        )


def _removed(path: Path) -> bool:
    """Removes a copy, or the folder of a run that is in its store and not in use; whether it did."""
    if path.is_file():
        disk.unlink(path)
        return True
    lock = lock_run(path / LOCK)
    try:
        if is_stored := State.of(path).uploaded:
            disk.remove_tree(path)
        return is_stored
    finally:
        lock.release()
