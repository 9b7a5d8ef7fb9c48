"""Rows of a history as a table in HTML: the best marked, and of many only those at the ends."""

from collections.abc import Sequence
from html import escape

from ..store.rows import COUNTERS, Row, column, keys_of
from .curves import panels

ENDS = 5  # rows that are shown at the start and at the end of a long history
GAP = "…"

_TABLE = "color:inherit;border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:0.9em"
_CELL = "padding:0.15em 0.7em;text-align:right;border:0;background:none"
_LINE = "border-bottom:1px solid rgba(128,128,128,0.4)"
_BEST = "font-weight:600;background:rgba(0,114,178,0.16)"


def shown(count: int, best: int | None, first: int = ENDS, last: int = ENDS) -> list[int | None]:
    """Which of so many rows to show: those at the ends and the best; `None` stands for those left out."""
    kept = sorted({*range(min(first, count)), *range(max(0, count - last), count), *([] if best is None else [best])})
    places: list[int | None] = []
    for place in kept:
        before = places[-1] if places else -1
        assert before is not None
        places += [place] if place == before + 1 else [None, place]
    return places


def heads(rows: Sequence[Row]) -> list[str]:
    """The columns: how far it had come, then what was measured, as far as it has a panel; terms of a loss last."""
    keys, drawn = keys_of(rows), {key for panel in panels(rows) for key in panel.keys}
    counters = [key for key in COUNTERS if key in keys and key != "minutes"]
    measured = [key for key in keys if key in drawn]
    return [*counters, *sorted(measured, key=lambda key: key.count("/") > 1)]


def place_of(rows: Sequence[Row], row: Row | None) -> int | None:
    """Where a row stands among others."""
    return next((k for k, other in enumerate(rows) if other is row), None) if row is not None else None


def notebook(rows: Sequence[Row], best: Row | None, stopped: str) -> str:
    """A compact table that inherits its colours, and so suits light and dark notebooks."""
    at = place_of(rows, best)
    places = shown(len(rows), at)
    keys = heads(rows)
    columns = [column(["" if k is None else rows[k].get(key) for k in places]) for key in keys]
    lines = ["".join(f'<th style="{_CELL};{_LINE}">{escape(key)}</th>' for key in ["", *keys])]
    for line, place in enumerate(places):
        if place is None:
            lines.append(f'<td style="{_CELL}">{GAP}</td>' * (len(keys) + 1))
            continue
        style = f"{_CELL};{_BEST}" if place == at else _CELL
        cells = ["best" if place == at else "", *(texts[line] for texts in columns)]
        lines.append("".join(f'<td style="{style}">{escape(cell)}</td>' for cell in cells))
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    said = f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}" + (f", stopped: {stopped}" if stopped else "")
    return (
        f'<div style="overflow-x:auto"><div style="margin-bottom:0.4em">History: {escape(said)}</div>'
        f'<table style="{_TABLE}">{body}</table></div>'
    )
