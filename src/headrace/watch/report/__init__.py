"""The report of a run: one page that needs nothing but itself, and pictures for a paper."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...errors import RunError
from ...store import disk
from ...store.named import run_path, url_of
from ..charts import draw, draw_confusion, new_figure, panels, png_of
from .page import page
from .read import RunContents, read
from .scores import scores
from .share import without_places

__all__ = ["write"]

PAGE, PICTURES = "report.html", "report"
DPI = 300


def write(run: str | Path, out: str | Path | None = None, pictures: bool = False, share: bool = False) -> Path:
    """Writes the report of a run, `report.html` in its directory unless `out` names another file; gives its path.

    It is whole or as it was before. What is missing in the run, as after a kill, is said in it. With `pictures` the
    curves go into `report/` in the run as well, as PNG of 300 dpi. `share` leaves out the host, the command, the
    environment and the directories, so that the page can be given to others.
    """
    where = None if out is None else _checked(Path(out))
    found = read(run_path(run))
    where = where or _checked(found.path / PAGE)
    text = page(without_places(found) if share else found).encode(errors="replace")
    if pictures:
        disk.refuse_link(found.path / PICTURES)
    try:
        disk.write_file(where, text)
        if pictures:
            _write_pictures(found, found.path / PICTURES)
    except OSError as error:
        raise disk.failure(error, f"writing the report of {found.path}", where, len(text)) from error
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


def _write_pictures(found: RunContents, folder: Path) -> None:
    """Draws each panel, and the confusion matrix, into a file of its own."""
    best, judged = found.best_row, scores(found.rows)
    step = None if best is None else best["step"]
    parents = [rows for _, rows in found.parents]
    drawings: list[tuple[str, Callable[..., None]]] = [
        (panel.name, partial(draw, rows=found.rows, panel=panel, best=step, parents=parents))
        for panel in panels(found.rows)
    ]
    if judged is not None and judged.matrix:
        names = [one.name for one in judged.classes]
        drawings.append(("confusion", partial(draw_confusion, names=names, matrix=judged.matrix)))
    disk.make_dirs(folder)
    for name, paint in drawings:
        figure = new_figure()
        paint(figure.axes[0])
        file = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name).strip('-')[:80] or 'panel'}.png"
        disk.write_file(folder / file, png_of(figure, dpi=DPI))
