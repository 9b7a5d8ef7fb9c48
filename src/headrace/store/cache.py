"""The folders on this machine in which runs of object stores are used, and how much room they take."""

import hashlib
import json
import os
import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import CheckpointError, RunError
from . import disk
from .document import read_document
from .place import STATE
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
    """Where runs of object stores are kept on this machine: HEADRACE_CACHE, or headrace in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADRACE_CACHE") or Path(home, "headrace")) / "runs"


def folder_of(url: str) -> Path:
    """The folder of a run of an object store on this machine."""
    url = url.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.rpartition("/")[2])[:60]
    return cache_folder() / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def make_room(folder: Path) -> None:
    """Removes the folders of runs that were used longest ago, and are in their store, beyond the limit of the cache."""
    limit = float(os.environ.get("HEADRACE_CACHE_GB") or 50) * 1e9
    others = [other for other in cache_folder().glob("*") if other != folder and (other / STATE).is_file()]
    sizes = {other: sum(file.stat().st_size for file in other.rglob("*") if file.is_file()) for other in others}
    total = sum(sizes.values())
    for other in sorted(others, key=lambda other: (other / STATE).stat().st_mtime):
        if total <= limit:
            return
        with suppress(RunError, OSError):
            lock = lock_run(other / LOCK)
            try:
                if State.of(other).uploaded:
                    disk.remove_tree(other)
                    total -= sizes[other]
            finally:
                lock.release()
    if total > limit:
        warnings.warn(
            f"{cache_folder()} holds {disk.size(total)} of runs that are in use or not yet in their store, and its "
            f"limit is {disk.size(limit)} (HEADRACE_CACHE_GB).",
            stacklevel=3,
        )
