"""Histories drawn with matplotlib, on figures of their own: no window is opened and no state of pyplot is touched."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..store.rows import Row, by_step
from .curves import Curve, Panel, axis_of, family, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"train": "#0072b2", "val": "#d55e00", "test": "#009e73"}
OTHERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Okabe and Ito's, which those who see few colours tell apart."""
WIDTH, HEIGHT = 3.6, 2.5  # of a panel, in inches
ACROSS = 3  # panels side by side
LOG_FROM = 100  # the ratio of the largest loss to the least from which on it is drawn by its logarithm


def figure(rows: Sequence[Row], keys: Sequence[str] | None, ax: "Axes | None", best: int | None) -> "Figure":
    """The panels of a history; with `ax` one, there. `best`: the step to mark."""
    rows = by_step(rows)
    if ax is not None or keys is not None:
        title = keys[0] if keys is not None and len(keys) == 1 else ""
        wanted = [Panel(title, list(keys) if keys is not None else [k for p in panels(rows)[:1] for k in p.keys])]
    else:
        wanted = panels(rows)
    if ax is not None:
        draw(ax, rows, wanted[0], best)
        whole = ax.get_figure(root=True)
        assert whole is not None
        return whole
    made = new_figure(max(1, len(wanted)))
    places = made.axes
    for place, panel in zip(places, wanted, strict=False):
        draw(place, rows, panel, best)
    for place in places[len(wanted) :]:
        place.set_axis_off()
    if not wanted:
        places[0].text(0.5, 0.5, "nothing has been reported", ha="center", va="center", color="#777777")
    return made


def new_figure(count: int = 1, width: float = WIDTH, height: float = HEIGHT) -> "Figure":
    """A figure with at least so many axes of this size in inches, which any backend may save."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from .figure import ShownFigure

    across = min(count, ACROSS)
    down = math.ceil(count / across)
    made = ShownFigure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(made)
    made.subplots(down, across, squeeze=False)
    return made


def draw(ax: "Axes", rows: Sequence[Row], panel: Panel, best: int | None) -> None:
    """One panel: its curves against the epoch, or the step; a fine line where the best step is."""
    axis = axis_of(rows)
    curves = panel.curves(rows, axis)
    for k, curve in enumerate(curves):
        colour = COLOURS.get(family(curve.name), OTHERS[k % len(OTHERS)]) if _apart(curves) else OTHERS[k % len(OTHERS)]
        label = label_of(curve, panel)
        marker = "o" if len(curve.x) == 1 else None
        ax.plot(curve.x, curve.y, color=colour, linewidth=1.4, marker=marker, markersize=3.5, label=label)
    at = next((row[axis] for row in rows if row.get("step") == best), None) if best is not None else None
    if at is not None:
        ax.axvline(at, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    if wants_log(panel, curves):
        ax.set_yscale("log")
    ax.set_xlabel(axis, fontsize="small")
    ax.set_title(panel.title, fontsize="medium", loc="left")
    plain(ax)
    if len(curves) > 1:
        ax.legend(fontsize="small", frameon=False)


def plain(ax: Any) -> None:
    """No more ink than it takes."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize="small", length=3)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)


def label_of(curve: Curve, panel: Panel) -> str:
    """What a curve is called in its panel: whose it is, where that is all that tells it from the others."""
    return family(curve.name) if curve.name == f"{family(curve.name)}/{panel.name}" else curve.name


def wants_log(panel: Panel, curves: Sequence[Curve]) -> bool:
    """Whether losses fall so far that only a logarithm shows all of it."""
    values = [y for curve in curves for y in curve.y if math.isfinite(y)]
    return (
        panel.name.startswith("loss")
        and bool(values)
        and min(values) > 1e-100
        and max(values) >= LOG_FROM * min(values)
    )


def _apart(curves: Sequence[Curve]) -> bool:
    """Whether no two curves are of one family: then its colour tells them apart."""
    return len({family(curve.name) for curve in curves}) == len(curves)
