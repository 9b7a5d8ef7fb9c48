"""Which numbers of a history belong in one panel, and as many points of a curve as a screen can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..store.rows import COUNTERS, FAMILIES, Row, keys_of, number

COLUMNS = 320  # across which a curve is thinned: about what a panel has in pixels
HUGE = 1e300  # what is no less has no place on an axis


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
        """What stands above it."""
        return "learning rate" if self.name == "rate" else self.name.removeprefix("loss/")

    def curves(self, rows: Sequence[Row], axis: str, columns: int = COLUMNS) -> list[Curve]:
        """What there is to draw against `axis`, a counter of the rows."""
        return [curve for key in self.keys if (curve := curve_of(rows, key, axis, columns)).x]


def panels(rows: Sequence[Row]) -> list[Panel]:
    """All panels: the loss and its terms, then metrics, then the rate and whatever else has been reported."""
    found: dict[str, Panel] = {}
    for key in keys_of(rows):
        if key not in COUNTERS:
            name = panel_of(key)
            found.setdefault(name, Panel(name)).keys.append(key)
    for panel in found.values():
        panel.keys.sort(key=lambda key: FAMILIES.index(family(key)) if family(key) in FAMILIES else len(FAMILIES))
    terms = [name for name in found if name.startswith("loss/")]
    if len(terms) == 1 and _same(rows, found[terms[0]], found.get("loss")):
        del found[terms[0]]
    return sorted(found.values(), key=_place)


def panel_of(key: str) -> str:
    """What a number is called whoever's it is: `val/loss/l2` is of the panel `loss/l2`; rates of groups share one."""
    if family(key) in FAMILIES:
        return key.partition("/")[2]
    return "rate" if family(key) == "rate" else key


def family(key: str) -> str:
    """Whose number it is: "val" of `val/loss`."""
    return key.partition("/")[0]


def axis_of(rows: Sequence[Row]) -> str:
    """The counter to draw against: epochs where each has one row, steps elsewhere."""
    epochs = [number(row.get("epoch")) or 0 for row in rows]
    return "epoch" if all(a < b for a, b in pairwise(epochs)) else "step"


def curve_of(rows: Sequence[Row], key: str, axis: str, columns: int = COLUMNS) -> Curve:
    """The values of a key, thinned; one that never has a number has no points."""
    pairs = ((number(row.get(axis)), number(row.get(key))) for row in rows)
    found = [(x, y if abs(y) < HUGE else math.nan) for x, y in pairs if x is not None and y is not None]
    kept = thin([y for _, y in found], columns)
    return Curve(key, [found[k][0] for k in kept], [found[k][1] for k in kept])


def thin(values: Sequence[float], columns: int = COLUMNS) -> list[int]:
    """Which of many values to draw: of each column the first, the last, the least, the largest and one that is none."""
    if len(values) <= 4 * columns:
        return list(range(len(values)))
    kept: set[int] = set()
    for k in range(columns):
        places = range(k * len(values) // columns, (k + 1) * len(values) // columns)
        finite = [place for place in places if math.isfinite(values[place])]
        if len(finite) < len(places):
            kept.add(next(place for place in places if not math.isfinite(values[place])))
        if finite:
            kept |= {finite[0], finite[-1], min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    return sorted(kept)


def _same(rows: Sequence[Row], term: Panel, whole: Panel | None) -> bool:
    """Whether the only term of a loss says what the loss says."""
    if whole is None:
        return False
    pairs = [(key, f"{family(key)}/loss") for key in term.keys]
    return all(row.get(one) == row.get(other) or row.get(one) != row.get(one) for row in rows for one, other in pairs)


def _place(panel: Panel) -> tuple[int, str]:
    """Losses first, then what is measured by name, then the rate, and last what else was reported."""
    if panel.name == "loss" or panel.name.startswith("loss/"):
        return (0, panel.name)
    if any(family(key) in FAMILIES for key in panel.keys):
        return (1, "")
    return (2, "") if panel.name == "rate" else (3, "")
