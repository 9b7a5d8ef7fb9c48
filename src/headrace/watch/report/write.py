"""One page for a run: what it was, how it went, how good it is. It needs nothing but itself."""

import time
from html import escape
from pathlib import Path

from ... import __version__
from ...errors import RunError
from ...store import disk
from . import sections
from .answers import residuals, scores
from .read import Found, read

PAGE, PICTURES = "report.html", "report"
COLUMNS = 4  # of values that are drawn
_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write(run: str | Path, out: str | Path | None = None, pictures: bool = False) -> Path:
    """Writes the report of a run, `report.html` in its directory unless `out` names another file; gives its path.

    It is whole or as it was before. What is missing in the run, as after a kill, is said in it. With `pictures` the
    curves go into `report/` in the run as well, as PNG of 300 dpi.
    """
    where = None if out is None else _place(Path(out))
    found = read(Path(run))
    where = where or _place(found.path / PAGE)
    text = page(found).encode(errors="replace")
    if pictures:
        disk.refuse_link(found.path / PICTURES)
    try:
        disk.write_file(where, text)
        if pictures:
            from .pictures import draw

            draw(found, found.path / PICTURES)
    except OSError as error:
        raise disk.failure(error, f"writing the report of {found.path}", where, len(text)) from error
    return where


def _place(path: Path) -> Path:
    """Where the page goes, looked at before the run is read."""
    try:
        good = path.absolute().parent.is_dir() and not path.is_dir()
    except OSError:  # a name that is too long
        good = False
    if not good:
        raise RunError(f"the report cannot be written to {path}: name a file in a directory that is there.")
    return path


def page(found: Found) -> str:
    """The whole page."""
    answers = found.answers
    of, step = ("", None) if answers is None else (answers.of, answers.step)
    body = [
        sections.headline(found),
        sections.curves(found),
        sections.classes(scores(answers, found.rows), step),
        sections.values(residuals(answers, COLUMNS), of, step),
        sections.epochs(found),
        sections.log(found),
        sections.checkpoints(found),
        sections.settings("Recipe", found.recipe),
        sections.settings("Configuration", found.config),
        sections.settings("Environment", found.facts),
    ]
    style, script = (_HERE / "style.css").read_text(), (_HERE / "hover.js").read_text()
    written = time.strftime("%Y-%m-%d %H:%M:%S")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(found.name)} · headrace</title>\n<style>\n{style}</style></head>\n<body>"
        '<label class="toggle"><input type="checkbox" id="theme">light / dark</label>\n'
        + "\n".join(part for part in body if part)
        + f"\n<footer>written {written} by headrace {__version__} from {escape(str(found.path))}</footer>"
        f"\n<script>\n{script}</script></body></html>\n"
    )
