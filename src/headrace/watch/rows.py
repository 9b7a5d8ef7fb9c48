"""The rows of a history: their numbers by key, which row is the best, and how numbers are shown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from ..store.document import COUNTERS, Row

FAMILIES = ("train", "val", "test")


def was_interrupted(why: str) -> bool:
    """Whether a training that ended for this reason was asked to end, and would have gone on."""
    return why in ("left", "preempted") or why.endswith(" received")


def number(value: Any) -> float | None:
    """A plain number; `None` for what is missing, a matrix, or text."""
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else value
    return float(value) if isinstance(value, Real) else None  # NumPy's, of a metric of somebody's own


def flattened(tree: Mapping[str, Any], mark: str = ".", within: str = "") -> dict[str, Any]:
    """Values within others by names with marks, as in "optimizer.groups.lr"; of a list of such by their places."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            value = dict(enumerate(value)) if len(value) > 1 else value[0]
        name = f"{within}{key}"
        flat |= flattened(value, mark, f"{name}{mark}") if isinstance(value, Mapping) else {name: value}
    return flat


def numbers(row: Row) -> dict[str, float]:
    """The single numbers of a report by key, without counters, words and matrices."""
    flat = flattened({key: value for key, value in row.items() if key not in COUNTERS}, "/")
    return {key: float(plain) for key, value in flat.items() if (plain := number(value)) is not None}


def keys_of(rows: Iterable[Row]) -> list[str]:
    """Every key that holds a number somewhere, in the order of their first appearance."""
    keys: dict[str, None] = {}
    for row in rows:
        for key, value in row.items():
            if key not in keys and number(value) is not None:
                keys[key] = None
    return list(keys)


def by_step(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One row for each step: what was reported of it later, as the scores of a test, joins what was there.

    Samples tell reports of one step apart where workers hear later of what others do.
    """
    joined: list[dict[str, Any]] = []
    for row in rows:
        if joined and all(joined[-1].get(counter) == row.get(counter) for counter in ("step", "samples")):
            joined[-1] |= {key: value for key, value in row.items() if key not in joined[-1]}
        else:
            joined.append(dict(row))
    return joined


def best_row(rows: Sequence[dict[str, Any]], key: str, mode: str) -> dict[str, Any] | None:
    """The row with the least ("min") or largest ("max") number of this key; the first of several, NaN never."""
    sign = 1.0 if mode == "min" else -1.0
    values = [(sign * value, row) for row in rows if (value := number(row.get(key))) is not None]
    known = [pair for pair in values if not math.isnan(pair[0])]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def best_of(rows: Sequence[dict[str, Any]], marked: int | None) -> dict[str, Any] | None:
    """The row of the step that is marked; without one that with the least loss, of the validation if there is one."""
    if marked is not None and (marked_rows := [row for row in rows if row.get("step") == marked]):
        return marked_rows[-1]
    named = [key for key in keys_of(rows) if key.startswith("val/") and key.endswith("/loss") and key.count("/") == 2]
    by_loss = (best_row(rows, key, "min") for key in ("val/loss", *named, "train/loss"))  # of several sets the first
    return next((row for row in by_loss if row is not None), None)


def written(value: Any) -> str:
    """A value to be read: counts with separators, other numbers with four digits."""
    plain = number(value)
    if plain is None:
        return "" if value is None else "…" if isinstance(value, list | tuple | dict) else str(value)
    if isinstance(plain, int) or (math.isfinite(plain) and plain == int(plain) and abs(plain) >= 1000):
        return f"{int(plain):,}"
    return f"{plain:.4g}".replace("nan", "NaN").replace("inf", "∞").replace("-", "−")


def column(values: Sequence[Any]) -> list[str]:
    """The values of one column, with as many decimals as its largest number leaves room for."""
    numbers = [abs(value) for value in map(number, values) if value is not None and math.isfinite(value)]
    if not numbers or all(isinstance(value, int) for value in numbers) or not 0.01 <= max(numbers) < 1e5:
        return [written(value) for value in values]
    decimals = max(0, 4 - max(0, math.floor(math.log10(max(numbers)))))

    def fixed(value: Any) -> str:
        plain = number(value)
        if plain is None or not math.isfinite(plain) or 0 < abs(plain) < 0.5 * 10**-decimals:
            return written(value)
        return f"{plain:,.{decimals}f}".replace("-", "−")

    return [fixed(value) for value in values]
