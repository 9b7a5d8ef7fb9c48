"""Charts of a history: sorts its numbers into panels, thins the curves, and draws panels with matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..store.document import COUNTERS, Row
from .rows import FAMILIES, by_step, keys_of, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 320  # across which a curve is thinned: about what a panel has in pixels
HUGE = 1e100  # what is no less has no place on an axis
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, distinct to those who see few colours; the first three are for training, validation and test."""
WIDTH, HEIGHT = 3.6, 2.5  # of a panel, in inches
ACROSS = 3  # panels side by side
EQUAL = 1e-9  # a relative difference that no axis shows
LOG_FROM = 100  # the ratio of the largest loss to the least from which on it is drawn by its logarithm


@dataclass(slots=True)
class Curve:
    """One line of a panel: where it has values, in order. A gap shows as NaN."""

    name: str
    x: list[float]
    y: list[float]


@dataclass(slots=True)
class Panel:
    """Curves that are looked at together, as the losses of training and validation."""

    name: str
    keys: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The heading of the panel."""
        return "learning rate" if self.name == "rate" else self.name.removeprefix("loss/")

    def curves(self, rows: Sequence[Row], axis: str) -> list[Curve]:
        """The curves that have points, against `axis`, a counter of the rows."""
        places = [number(row.get(axis)) for row in rows]
        return [curve for key in self.keys if (curve := curve_of(rows, key, places)).x]


def panels(rows: Sequence[Row]) -> list[Panel]:
    """All panels: the loss and its terms, then metrics, then the rate and whatever else has been reported."""
    by_name: dict[str, Panel] = {}
    keys = keys_of(rows)
    sets = _sets(keys)
    for key in keys:
        if key not in COUNTERS:
            name = panel_of(key, sets)
            by_name.setdefault(name, Panel(name)).keys.append(key)
    for panel in by_name.values():
        panel.keys.sort(key=lambda key: FAMILIES.index(family(key)) if family(key) in FAMILIES else len(FAMILIES))
    terms = [name for name in by_name if name.startswith("loss/")]
    if len(terms) == 1 and _same(rows, by_name[terms[0]], by_name.get("loss")):
        del by_name[terms[0]]
    return sorted(by_name.values(), key=_place)


def _sets(keys: Sequence[str]) -> list[str]:
    """What the keys of each of several validation or test sets begin with, as "val/clean"."""
    names = [key.removesuffix("/loss") for key in keys if key.startswith(("val/", "test/")) and key.endswith("/loss")]
    return [name for name in names if name.count("/") == 1 and not name.endswith("/loss")]


def panel_of(key: str, sets: Sequence[str] = ()) -> str:
    """The panel of a key: `val/loss/l2` belongs to `loss/l2`; the rates of all groups share one.

    So do the numbers of all `sets` of data, known by what their keys begin with.
    """
    if of := [name for name in sets if key.startswith(f"{name}/")]:
        return key.removeprefix(f"{of[0]}/")
    if family(key) in FAMILIES:
        return key.partition("/")[2]
    return "rate" if family(key) == "rate" else key


def family(key: str) -> str:
    """The data that a number was measured on: "val" of `val/loss`."""
    return key.partition("/")[0]


def axis_of(rows: Sequence[Row]) -> str:
    """The counter to draw against: epochs where each has one row, steps elsewhere."""
    epochs = [number(row.get("epoch")) or 0 for row in rows]
    return "epoch" if all(a < b for a, b in pairwise(epochs)) else "step"


def curve_of(rows: Sequence[Row], key: str, places: Sequence[float | None]) -> Curve:
    """The values of a key at these places, thinned; a key that never has a number has no points."""
    pairs = ((x, number(row.get(key))) for x, row in zip(places, rows, strict=True))
    points = [(x, y if abs(y) < HUGE else math.nan) for x, y in pairs if x is not None and y is not None]
    places_kept = thin([y for _, y in points])
    return Curve(key, [points[k][0] for k in places_kept], [points[k][1] for k in places_kept])


def thin(values: Sequence[float], columns: int = COLUMNS) -> list[int]:
    """Which of many values to draw: in each column the first, the last, the least, the largest and one that is NaN."""
    if len(values) <= 4 * columns:
        return list(range(len(values)))
    drawn: set[int] = set()
    for k in range(columns):
        places = range(k * len(values) // columns, (k + 1) * len(values) // columns)
        finite = [place for place in places if math.isfinite(values[place])]
        if len(finite) < len(places):
            drawn.add(next(place for place in places if not math.isfinite(values[place])))
        if finite:
            drawn |= {finite[0], finite[-1], min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    return sorted(drawn)


def _same(rows: Sequence[Row], term: Panel, loss: Panel | None) -> bool:
    """Whether the only term of a loss equals the loss."""
    if loss is None:
        return False
    pairs = [(key, f"{key.removesuffix(f'/{term.name}')}/loss") for key in term.keys]
    return all(row.get(one) == row.get(other) or row.get(one) != row.get(one) for row in rows for one, other in pairs)


def _place(panel: Panel) -> tuple[int, str]:
    """The order of panels: losses, metrics, the rate, and last what else was reported."""
    if panel.name == "loss" or panel.name.startswith("loss/"):
        return (0, panel.name)
    if any(family(key) in FAMILIES for key in panel.keys):
        return (1, "")
    return (2, "") if panel.name == "rate" else (3, "")


def figure(rows: Sequence[Row], keys: Sequence[str] | None, best: int | None) -> "Figure":
    """A figure with the panels of a history, or with one of these keys; `best`: the step to mark."""
    rows = by_step(rows)
    wanted = panels(rows) if keys is None else [Panel(keys[0] if len(keys) == 1 else "", list(keys))]
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
    from matplotlib.figure import Figure

    across = min(count, ACROSS)
    down = math.ceil(count / across)
    made = Figure(figsize=(width * across, height * down), layout="constrained")
    FigureCanvasAgg(made)
    made.subplots(down, across, squeeze=False)
    # A notebook shows figures that are not pyplot's only once pyplot has been imported, unless they show themselves.
    made._repr_png_ = partial(png_of, made)  # type: ignore[attr-defined]
    return made


def png_of(figure: "Figure", **options: Any) -> bytes:
    """The figure as the bytes of a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png", **options)
    return file.getvalue()


def draw(ax: "Axes", rows: Sequence[Row], panel: Panel, best: int | None) -> None:
    """Draws a panel: its curves against the epoch, or the step, and where the best is."""
    axis = axis_of(rows)
    at = next((row[axis] for row in rows if row.get("step") == best), None) if best is not None else None
    curves = panel.curves(rows, axis)
    draw_curves(ax, panel, curves, axis, at)
    if len(curves) > 1:
        ax.legend(fontsize="small", frameon=False)


def draw_curves(
    ax: "Axes", panel: Panel, curves: Sequence[Curve], axis: str, best: float | None, parents: Sequence[Curve] = ()
) -> None:
    """Draws curves over those of the runs that this one continues; `best` is where on the axis the best step is."""
    for curve in parents:
        ax.plot(curve.x, curve.y)
    for curve, colour in zip(curves, colours_of(curves), strict=True):
        marker = "o" if len(curve.x) == 1 else None
        label = label_of(curve, panel)
        ax.plot(curve.x, curve.y, color=COLOURS[colour], linewidth=1.4, marker=marker, markersize=3.5, label=label)
    if best is not None:
        ax.axvline(best, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    values = [y for curve in [*parents, *curves] for y in curve.y if math.isfinite(y)] or [0.0]
    if wants_log(panel, [*parents, *curves]):
        ax.set_yscale("log")
    elif max(values) - min(values) <= EQUAL * max(map(abs, values)):
        room = abs(values[0]) / 2 or 0.5
        ax.set_ylim(values[0] - room, values[0] + room)
    ax.locator_params(axis="x", integer=True)  # it counts
    ax.set_xlabel(axis, fontsize="small")
    ax.set_title(panel.title, fontsize="medium", loc="left")
    _plain(ax)


def _plain(ax: Any) -> None:
    """Leaves out what a chart can do without: frame, large labels, vertical grid."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize="small", length=3)
    ax.grid(axis="y", alpha=0.25, linewidth=0.6)


def label_of(curve: Curve, panel: Panel) -> str:
    """The label of a curve: its data, as "val" or "val/clean", where the panel's name says the rest; else its key."""
    return curve.name.removesuffix(f"/{panel.name}") if family(curve.name) in FAMILIES else curve.name


def wants_log(panel: Panel, curves: Sequence[Curve]) -> bool:
    """Whether losses fall so far that they need a logarithmic axis."""
    values = [y for curve in curves for y in curve.y if math.isfinite(y)]
    return (
        panel.name.startswith("loss")
        and bool(values)
        and min(values) > 1 / HUGE
        and max(values) >= LOG_FROM * min(values)
    )


def colours_of(curves: Sequence[Curve]) -> list[int]:
    """Which of the colours each curve has: that of its family, where this tells it from the others."""
    families = [family(curve.name) for curve in curves]
    if set(families) <= set(FAMILIES) and len(set(families)) == len(families):
        return [FAMILIES.index(one) for one in families]
    return [k % len(COLOURS) for k in range(len(curves))]
