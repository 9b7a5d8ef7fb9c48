"""The report of a run: one page that needs nothing but itself."""

from pathlib import Path

from ...errors import RunError
from ...store import disk
from ...store.named import run_path, url_of
from .page import page
from .read import read
from .share import without_places

__all__ = ["write"]

PAGE = "report.html"


def write(run: str | Path, out: str | Path | None = None, share: bool = False) -> Path:
    """Writes the report of a run, `report.html` in its directory unless `out` names another file; gives its path.

    It is whole or as it was before. What is missing in the run, as after a kill, is said in it. `share` leaves out
    the host, the command, the environment and the directories, so that the page can be given to others.
    """
    where = None if out is None else _checked(Path(out))
    contents = read(run_path(run))
    where = where or _checked(contents.path / PAGE)
    text = page(without_places(contents) if share else contents).encode(errors="replace")
    try:
        disk.write_file(where, text)
    except OSError as error:
        raise disk.failure(error, f"writing the report of {contents.path}", where, len(text)) from error
    if (url := url_of(run)) is not None and out is None:
        from ...store.mirror import send

        send(url, where)
    return where


def _checked(path: Path) -> Path:
    """Where the page goes; raises, before the run is read, if no file can be there."""
    try:
        good = path.absolute().parent.is_dir() and not path.is_dir()
    except OSError:  # a name that is too long
        good = False
    if not good:
        raise RunError(f"the report cannot be written to {path}: name a file in a directory that is there.")
    return path
