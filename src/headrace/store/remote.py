"""The objects of one run in an object store, through fsspec: listed, read, written and removed, with retries."""

import importlib
import random
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError, RunError

Result = TypeVar("Result")
EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
EXTRAS |= dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "azure"))
PATIENCE_S = 600.0  # that a store which does not answer is tried for
SAID_AFTER_S = 5.0
_LONGEST_PAUSE_S = 10.0
READ_BYTES = 64 << 20  # that a small object has at most
_SMALL = {"start": 0, "end": READ_BYTES}  # without them s3fs asks for the size first
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True, slots=True)
class Object:
    """An object in a listing. `version` changes when it is written anew; `modified` is by the store's clock."""

    size: int
    tag: str
    """The store's own name for these bytes, if it has one."""
    modified: float | None

    @property
    def version(self) -> str:
        return self.tag or str(self.modified)


class Remote:
    """The objects below a URL. Their names are relative to it, with slashes."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self.url, self.patience_s = url.rstrip("/"), patience_s
        self._fs, self._root = _file_system(self.url)

    def objects(self, folder: str = "") -> dict[str, Object]:
        """All objects, or those in a folder: a request for each thousand."""
        found = self.insist("listing", lambda: self._fs.find(self._at(folder).rstrip("/"), detail=True))
        start = len(self._root) + 1
        return {path[start:]: object_of(facts) for path, facts in found.items() if facts["type"] == "file"}

    def folders(self) -> list[str]:
        """The names of what lies directly below the URL, as folders do."""
        found = self.insist("listing", lambda: self._fs.ls(self._root, detail=True))
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    def read(self, name: str) -> bytes | None:
        """A small object; `None` if there is none of this name."""
        try:
            return bytes(self.insist(f"reading {name}", lambda: self._fs.cat_file(self._at(name), **_SMALL)))
        except FileNotFoundError:
            return None

    def read_many(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those of these small objects that there are: a request for each."""
        paths = {self._at(name): name for name in names}
        if not paths:
            return {}
        found = self.insist("reading", lambda: self._fs.cat([*paths], on_error="omit", **_SMALL))
        return {paths[path]: bytes(data) for path, data in found.items()}

    def write(self, name: str, data: bytes) -> None:
        self.insist(f"writing {name}", lambda: self._fs.pipe_file(self._at(name), data))

    def create(self, name: str, data: bytes) -> bool:
        """Writes an object if there is none of this name, in one operation; whether it did."""
        try:
            self.insist(f"writing {name}", lambda: self._fs.pipe_file(self._at(name), data, mode="create"))
        except FileExistsError:
            return self.read(name) == data  # it was this call, if an answer got lost
        return True

    def upload(self, file: Path, name: str) -> None:
        """Writes a file as an object, in several parts if it is large."""
        self.insist(f"writing {name}", lambda: self._fs.put_file(str(file), self._at(name)))

    def copy(self, source: str, name: str) -> None:
        """A copy of an object, made by the store itself."""
        self.insist(f"writing {name}", lambda: self._fs.cp_file(self._at(source), self._at(name)))

    def download(self, name: str, file: Path, size: int | None) -> None:
        """Reads an object into a file; an answer of another length is asked for again, if the length is known."""

        def get() -> None:
            self._fs.get_file(self._at(name), str(file))
            if size is not None and file.stat().st_size != size:
                raise OSError(f"{name} has {size:,} bytes, and {file.stat().st_size:,} were received")

        self.insist(f"reading {name}", get)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, of which some may not be there any more."""
        paths = [self._at(name) for name in names]
        for start in range(0, len(paths), 1000):
            call = (
                partial(self._fs.rm, paths[start : start + 1000])
                if len(paths) > 1
                else partial(self._fs.rm_file, *paths)
            )
            with suppress(FileNotFoundError):
                self.insist("removing", call)

    def insist(self, what: str, call: Callable[[], Result]) -> Result:
        """Makes a call again, after longer and longer pauses, until it works or the patience ends."""
        began, pause, said = time.monotonic(), 0.2, False
        while True:
            try:
                return call()
            except Exception as error:
                passed = time.monotonic() - began
                if isinstance(error, FileNotFoundError | FileExistsError):
                    raise
                if passed > self.patience_s or _is_final(error):
                    raise RunError(f"{what} in {self.url} failed: {type(error).__name__}: {error}") from error
                if passed > SAID_AFTER_S and not said:
                    said = True
                    warnings.warn(
                        f"{self.url} does not answer ({type(error).__name__}: {error}). It is tried for "
                        f"{self.patience_s:g} s; meanwhile the training goes on, and only its next save waits.",
                        stacklevel=2,
                    )
            time.sleep(min(pause, self.patience_s) * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of fsspec behind a URL, and the path in it."""
    scheme = url.partition("://")[0]
    package, extra = EXTRAS.get(scheme, ("fsspec", "s3"))
    try:
        importlib.import_module(package)
        import fsspec
    except ImportError:
        raise ConfigError(f'{url} needs {package}, which is not installed: pip install "headrace[{extra}]"') from None
    options: dict[str, Any] = {"use_listings_cache": False}
    if package == "s3fs":
        options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 2}}
    if scheme in ("file", "local"):
        options["auto_mkdir"] = True
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{url} cannot be opened: {error}") from None
    return fs, root.rstrip("/")


def object_of(facts: dict[str, Any]) -> Object:
    """An object, as fsspec describes it."""
    modified = next((facts[name] for name in _TIMES if facts.get(name) is not None), None)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    seconds = modified.timestamp() if isinstance(modified, datetime) else modified
    tag = str(facts.get("ETag") or facts.get("etag") or facts.get("generation") or "")
    return Object(int(facts.get("size") or 0), "" if tag.startswith("W/") else tag, seconds)  # W/: perhaps other bytes


def _is_final(error: Exception) -> bool:
    """Whether a call that failed in this way fails in the same way when it is made again."""
    name = type(error).__name__
    refused = isinstance(error, PermissionError | TypeError | NotImplementedError)
    return refused or "Credential" in name or "NotImplemented" in str(error)
