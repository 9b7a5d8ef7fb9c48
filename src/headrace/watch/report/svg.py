"""Charts of the report page as SVG within HTML: matplotlib places curves and ticks; lines stretch with the page.

The drawing is a plane of 1000 × 1000 that fills its box; strokes keep their width, and the numbers at the axes are text
placed by percentages. So a panel reads as well on a telephone as on a wide screen, without a script.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..charts import Curve, Panel, colours_of, draw_curves, label_of, new_figure
from ..rows import FAMILIES, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 1000
EDGE = 1e-6  # as much of an axis may be lost in rounding
Point = tuple[float, float]


@dataclass(slots=True)
class Chart:
    """A chart, ready for the page; without paths there was nothing to draw."""

    title: str
    axis: str = ""
    """What stands below."""
    description: str = ""
    """The chart in words, for who cannot see it."""
    ys: list[tuple[str, str]] = field(default_factory=list)
    """The numbers at the left: how far down, in percent, and what is there."""
    xs: list[tuple[str, str]] = field(default_factory=list)
    """Those below: how far to the right."""
    paths: list[tuple[str, str]] = field(default_factory=list)
    """Their CSS classes, and what they draw."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """The CSS class and the label of each curve."""
    view: str = ""
    """The numbers as JSON, for the script that shows those under the pointer."""


def chart(panel: Panel, curves: Sequence[Curve], axis: str, best: float | None, parents: Sequence[Curve] = ()) -> Chart:
    """A panel of a history, over the curves of its parents; `best` is where on the axis the best step is."""
    if not any(math.isfinite(y) for curve in curves for y in curve.y):
        return Chart(panel.title)
    (ax,) = new_figure().axes
    draw_curves(ax, panel, curves, axis, best, parents)
    ax.margins(x=0)
    (left, _), (bottom, _) = ax.get_xlim(), ax.get_ylim()
    xs, ys = ax.get_xticks().tolist(), ax.get_yticks().tolist()
    across = _shown(xs, [x for x, _ in _places(ax, [(x, bottom) for x in xs])])
    up = _shown(ys, [y for _, y in _places(ax, [(left, y) for y in ys])])
    drawn = Chart(panel.title, axis, _in_words(panel, curves, axis))
    drawn.xs = [(f"{100 * x:.2f}", text) for x, text in across]
    drawn.ys = [(f"{100 - 100 * y:.2f}", text) for y, text in up]
    drawn.paths = [("grid", "".join(f"M0 {_number(1 - y)}H{SIDE}" for y, _ in up))]
    if best is not None:
        drawn.paths.append(("rule", f"M{_number(_places(ax, [(best, bottom)])[0][0])} 0V{SIDE}"))
    names, labels = [f"s{colour}" for colour in colours_of(curves)], [label_of(curve, panel) for curve in curves]
    name_of = dict(zip((curve.name for curve in curves), names, strict=True))
    for curve in parents:
        drawn.paths += _line(_points(ax, curve), f"parent {name_of.get(curve.name, 's0')}")
    for curve, name in zip(curves, names, strict=True):
        drawn.paths += _line(_points(ax, curve), name)
    drawn.legend = [pair for pair in zip(names, labels, strict=True) if len(curves) > 1 or pair[1] in FAMILIES]
    values = [
        {"n": label, "c": name, "x": curve.x, "y": [_short(y) for y in curve.y]}
        for label, name, curve in zip(labels, names, curves, strict=True)
    ]
    view = {"axis": axis, "x": ax.get_xlim(), "curves": values}
    drawn.view = json.dumps(view, separators=(",", ":"), allow_nan=False)
    return drawn


def _places(ax: "Axes", points: Sequence[Point]) -> list[Point]:
    """Where these values are, as shares of the width and of the height, from the left and from below."""
    places: list[Point] = (ax.transScale + ax.transLimits).transform(points).tolist() if len(points) else []
    return places


def _points(ax: "Axes", curve: Curve) -> list[Point | None]:
    """The places of a curve's values; `None` where a value is none, or has no place on a logarithmic axis."""
    is_log = ax.get_yscale() == "log"
    values = [
        (x, y) if math.isfinite(y) and (y > 0 or not is_log) else None for x, y in zip(curve.x, curve.y, strict=True)
    ]
    places = iter(_places(ax, [value for value in values if value is not None]))
    return [None if value is None else next(places) for value in values]


def _line(points: Sequence[Point | None], name: str) -> list[tuple[str, str]]:
    """A path that is broken where there is no point; a dot where there is nothing to draw a line to."""
    path, dots = [], []
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if point is not None:
            place = f"{_number(point[0])} {_number(1 - point[1])}"
            path.append(f"{'M' if before is None else 'L'}{place}")
            if before is None and after is None:
                dots.append(f"M{place}h0")
    return [(f"line {name}", "".join(path)), *([(f"dot {name}", "".join(dots))] if dots else [])]


def _shown(ticks: Sequence[float], places: Sequence[float]) -> list[tuple[float, str]]:
    """The numbers of an axis with their places, without those beyond its ends."""
    texts = [f"{tick:,.6g}".replace("-", "−") for tick in ticks]
    return [(place, text) for place, text in zip(places, texts, strict=True) if -EDGE <= place <= 1 + EDGE]


def _in_words(panel: Panel, curves: Sequence[Curve], axis: str) -> str:
    """The panel in words, for who cannot see it."""
    parts = []
    for curve in curves:
        known = [(y, x) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
        if known:
            (least, at_least), (most, at_most) = min(known), max(known)
            parts.append(
                f"{label_of(curve, panel)} ends at {written(known[-1][0])}, least {written(least)} at {axis} "
                f"{written(at_least)}, largest {written(most)} at {axis} {written(at_most)}"
            )
    return f"{panel.title}: {'; '.join(parts)}"


def _short(value: float) -> float | None:
    """For the script that shows values: six digits do."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _number(share: float) -> str:
    """A coordinate of the plane."""
    return f"{SIDE * share:.1f}".removesuffix(".0")
