"""Charts of the report page as SVG within HTML: lines stretch with the page, text does not.

The drawing is a plane of 1000 × 1000 that fills its box; strokes keep their width, and the numbers at the axes are text
placed by percentages. So a panel reads as well on a telephone as on a wide screen, without a script.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ..charts import Curve, Panel, colours_of, label_of, wants_log
from ..rows import FAMILIES, written

if TYPE_CHECKING:
    pass

SIDE = 1000
TICKS = 5  # about so many at an axis
UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e4))
EQUAL, TINY = 1e-9, 1e-200  # a difference, relative and absolute, that no axis shows
MARGIN = 0.06  # of the height, above and below the curves


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


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: maps values to places between 0 and 1."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whether it counts something."""

    def at(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round numbers within the scale."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            step = max(1, len(powers) // TICKS)
            found = [10.0**power for power in powers[::step]]
            if len([tick for tick in found if self.low <= tick <= self.high]) < 3:
                found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        else:
            counts = self.whole and self.high - self.low >= 2
            step_size = max(_round_step((self.high - self.low) / TICKS), 1.0 if counts else 0.0)
            first = math.ceil(self.low / step_size)
            found = [k * step_size for k in range(first, math.floor(self.high / step_size) + 1)]
        return [tick for tick in found if self.low <= tick <= self.high]


def chart(panel: Panel, curves: Sequence[Curve], axis: str, best: float | None, parents: Sequence[Curve] = ()) -> Chart:
    """A panel of a history, over the curves of its parents; `best` is where on the axis the best step is."""
    drawn_curves = [*parents, *curves]
    values = [y for curve in drawn_curves for y in curve.y if math.isfinite(y)]
    if not any(math.isfinite(y) for curve in curves for y in curve.y):
        return Chart(panel.title)
    across = _scale([x for curve in drawn_curves for x in curve.x], whole=True)
    up = _scale(values, log=wants_log(panel, drawn_curves))
    paths = [_rule(across.at(best))] if best is not None and across.low <= best <= across.high else []
    drawn = _axes(panel.title, axis, _in_words(panel, curves, axis), across, up, paths)
    points = []
    colours = dict(zip((curve.name for curve in curves), colours_of(curves), strict=True))
    for curve in parents:
        drawn.paths += _line(curve, across, up, f"parent s{colours.get(curve.name, 0)}")
    for curve, colour in zip(curves, colours_of(curves), strict=True):
        name, label = f"s{colour}", label_of(curve, panel)
        drawn.paths += _line(curve, across, up, name)
        points.append({"n": label, "c": name, "x": curve.x, "y": [_short(y) for y in curve.y]})
        if len(curves) > 1 or label in FAMILIES:
            drawn.legend.append((name, label))
    view = {"axis": axis, "x": [across.low, across.high], "y": [up.low, up.high], "log": up.log, "curves": points}
    drawn.view = json.dumps(view, separators=(",", ":"), allow_nan=False)
    return drawn


def _axes(title: str, axis: str, description: str, across: Scale, up: Scale, paths: list[tuple[str, str]]) -> Chart:
    """A chart with lines at the numbers of its left axis, and these paths above them."""
    ys, xs = up.ticks(), across.ticks()
    grid = "".join(f"M0 {_y(up.at(tick))}H{SIDE}" for tick in ys)
    left = [(f"{100 - 100 * up.at(tick):.2f}", _tick(tick, ys, up.log)) for tick in ys]
    below = [(f"{100 * across.at(tick):.2f}", _tick(tick, xs)) for tick in xs]
    return Chart(title, axis, description, left, below, [("grid", grid), *paths])


def _line(curve: Curve, across: Scale, up: Scale, name: str) -> list[tuple[str, str]]:
    """A path that is broken where a value is none; a dot where there is nothing to draw a line to."""
    path, lone, before = [], [], False
    for k, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
        known = math.isfinite(y) and (y > 0 or not up.log)
        if known:
            place = f"{_x(across.at(x))} {_y(up.at(y))}"
            path.append(f"{'L' if before else 'M'}{place}")
            after = k + 1 < len(curve.y) and math.isfinite(curve.y[k + 1])
            if not before and not after:
                lone.append(f"M{place}h0")
        before = known
    return [(f"line {name}", "".join(path)), *([(f"dot {name}", "".join(lone))] if lone else [])]


def _rule(at: float) -> tuple[str, str]:
    return "rule", f"M{_x(at)} 0V{SIDE}"


def _scale(values: Sequence[float], log: bool = False, whole: bool = False) -> Scale:
    """From the least to the largest with some room; `whole`: without, as at an axis of counts."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    if log:
        least, most = math.log10(low), math.log10(high)
        room = MARGIN * (most - least)
        return Scale(min(low, 10.0 ** max(least - room, -323.0)), 10.0 ** min(most + room, 307.0), True)
    if high - low <= max(EQUAL * max(abs(low), abs(high)), TINY):
        room = abs(low) / 2 if abs(low) > TINY else 0.5
        return Scale(low - room, high + room)
    room = 0.0 if whole else MARGIN * (high - low)
    return Scale(low - room, high + room, whole=whole)


def _round_step(rough: float) -> float:
    """The next larger of 1, 2, 5, 10, 20 and so on."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _tick(value: float, ticks: Sequence[float], log: bool = False) -> str:
    """A number at an axis, no longer than it takes to tell it from its neighbours."""
    largest = max(abs(tick) for tick in ticks)
    unit, by = next(((unit, by) for unit, by in UNITS if largest >= by), ("", 1.0))
    if largest >= 1e13 or largest < 1e-3 or (log and value < 1e-3):
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(power)}".replace("-", "−") if value else "0"
    if log or unit:
        return f"{value / (1e3 if unit == 'k' else by):.4g}{unit if value else ''}".replace("-", "−")
    apart = min((abs(a - b) for a, b in pairwise(ticks)), default=abs(value) or 1.0)
    decimals = max(0, -math.floor(math.log10(apart) + 1e-9))
    return f"{value:,.{min(decimals, 6)}f}".replace("-", "−")


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


def _x(share: float) -> str:
    return f"{SIDE * share:.1f}".removesuffix(".0")


def _y(share: float) -> str:
    return f"{SIDE * (1 - share):.1f}".removesuffix(".0")
