"""Pictures for a paper: each panel by itself, small and clean, at 300 dots per inch."""

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...store import disk
from .. import plot
from ..curves import panels
from .answers import Residuals, Scores, residuals, scores
from .read import Found

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 300


def draw(found: Found, folder: Path) -> list[Path]:
    """Draws the panels, the confusion matrix and the residuals; the files."""
    disk.make_dirs(folder)
    best, files = found.best_row, []
    step = None if best is None else best["step"]
    for panel in panels(found.rows):
        files.append(_save(folder, panel.name, partial(plot.draw, rows=found.rows, panel=panel, best=step)))
    judged = scores(found.answers, found.rows)
    if judged is not None and judged.matrix:
        files.append(_save(folder, "confusion", partial(_confusion, judged=judged)))
    for one in residuals(found.answers, 1):
        files.append(_save(folder, "residuals", partial(_residuals, one=one)))
    return files


def _save(folder: Path, name: str, paint: Callable[..., None]) -> Path:
    figure = plot.new_figure()
    paint(figure.axes[0])
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI)
    path = folder / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name).strip('-')[:80] or 'panel'}.png"
    disk.write_file(path, data.getvalue())
    return path


def _confusion(ax: "Axes", judged: Scores) -> None:
    shares = [[count / max(1, sum(line)) for count in line] for line in judged.matrix]
    names = [one.name for one in judged.classes]
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    size = max(3.5, 7 - 0.2 * len(names))
    for i, line in enumerate(judged.matrix):
        for j, count in enumerate(line):
            if count:
                colour = "white" if shares[i][j] > 0.5 else "black"
                ax.text(j, i, str(count), ha="center", va="center", fontsize=size, color=colour)
    ax.set_xticks(range(len(names)), names, fontsize=size, rotation=90 if max(map(len, names)) > 3 else 0)
    ax.set_yticks(range(len(names)), names, fontsize=size)
    ax.set_xlabel("answer", fontsize="small")
    ax.set_ylabel("class", fontsize="small")
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def _residuals(ax: "Axes", one: Residuals) -> None:
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.plot(one.target, one.answer - one.target, ".", markersize=2.5, alpha=0.5, color=plot.OTHERS[0], rasterized=True)
    ax.set_xlabel("target", fontsize="small")
    ax.set_ylabel("answer − target", fontsize="small")
    plot.plain(ax)
