"""Turns the name of a run, a path or a URL, into a folder on this machine, and keeps a store up to date with it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from .place import STATE

if TYPE_CHECKING:
    from .mirror import Mirror

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # pathlib makes one slash of two


def url_of(run: str | os.PathLike[str]) -> str | None:
    """The URL that a run's name is; `None` for a path. pathlib makes one slash of two."""
    address = _SCHEME.match(text := str(run))
    if address is None or "://" in text:
        return text if address else None
    return f"{address[1]}://{'/' * (address[1] == 'file')}{text[address.end() :]}"


def run_path(run: str | os.PathLike[str]) -> Path:
    """The directory of a run. That of a run in an object store is a copy on this machine, made equal to it now."""
    if (url := url_of(run)) is None:
        return Path(run)
    from .mirror import fetched  # which needs fsspec

    return fetched(url)


class NoMirror:
    """That of a run which is on this machine only: see `Mirror`."""

    first_serial = 1

    def reported(self) -> None:
        pass

    def upload(self) -> None:
        pass

    def close(self, error: BaseException | None) -> None:
        pass

    def abandon(self) -> None:
        pass


def mirror_of(url: str | None, path: Path, overview: Callable[[Path], dict[str, Any]]) -> "Mirror | NoMirror":
    """What keeps an object store up to date with a training in a folder."""
    if url is None:
        if (path / STATE).is_file():
            raise RunError(f"{path} is this machine's copy of a run in an object store. Name the run by its URL.")
        return NoMirror()
    from .mirror import Mirror

    return Mirror(url, overview)
