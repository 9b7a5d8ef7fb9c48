"""The history of a training: its reports row by row, and as a table for notebooks."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, unknown
from ..store.document import COUNTERS, Row
from . import charts
from .monitor import mode_of
from .rows import best_of, best_row, column, keys_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDS = 5  # rows that are shown at the start and at the end of a long history
GAP = "…"

_TABLE = "color:inherit;border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:0.9em"
_CELL = "padding:0.15em 0.7em;text-align:right;border:0;background:none"
_LINE = "border-bottom:1px solid rgba(128,128,128,0.4)"
_BEST = "font-weight:600;background:rgba(0,114,178,0.16)"


class History:
    """The reports of a training, in order. A row has `epoch`, `step`, `samples` and all measured numbers by key."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stopped = ""
        """Why the training ended."""
        self.marked: int | None = None
        """The best step so far, if a callback marks one."""
        self.run: Path | None = None
        """The directory of the run, if there is one."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: str | int) -> Any:
        """A row by number, or a column by key (rows without it are left out)."""
        if isinstance(key, int):
            return self.rows[key]
        return [row[key] for row in self.rows if key in row]

    def at(self, counters: dict[str, Any]) -> dict[str, Any]:
        """The row of this step; a new one if there is none yet."""
        if not self.rows or self.rows[-1]["step"] != counters["step"]:
            self.rows.append(counters)
        return self.rows[-1]

    def keys_at(self, step: int) -> set[str]:
        """What has been reported at this step."""
        return set(self.rows[-1]) if self.rows and self.rows[-1]["step"] == step else set()

    @property
    def last(self) -> dict[str, Any]:
        """The last value of every key."""
        return {key: value for row in self.rows for key, value in row.items()}

    @property
    def best(self) -> dict[str, Any] | Any:
        """The row of the best step: the one a callback has marked, or that with the least loss.

        The loss of the validation, where there is one, else that of the training; NaN is never the best. `None` if
        there is nothing to choose from.
        """
        return best_of(self.rows, self.marked)

    def best_by(self, key: str, mode: str = "auto") -> dict[str, Any] | None:
        """The row with the best number of this key; `mode`: "min", "max", or "auto" where the name tells which."""
        known = keys_of(self.rows)
        if self.rows and key not in known:
            raise ConfigError(unknown("key", key, known))
        return best_row(self.rows, key, mode_of(key, mode))

    def to_pandas(self) -> Any:
        """A DataFrame: a row for each report, a column for each key, NaN where a row has no value."""
        try:
            import pandas
        except ImportError:
            raise ConfigError(
                'to_pandas needs pandas, which is not installed: pip install "headrace[pandas]"'
            ) from None
        return pandas.DataFrame(self.rows)

    def plot(self, keys: str | Sequence[str] | None = None) -> "Figure":
        """A figure with a panel for the loss, each of its terms, each metric and the rate; the best step is marked.

        `keys`: only these, in one panel. As the last line of a cell of a notebook the figure shows itself; keep it with
        `history.plot().savefig("curves.png")`.
        """
        best = self.best
        return charts.figure(self.rows, self._wanted(keys), None if best is None else best["step"])

    def _wanted(self, keys: str | Sequence[str] | None) -> list[str] | None:
        if keys is None:
            return None
        wanted, known = [keys] if isinstance(keys, str) else list(keys), keys_of(self.rows)
        for key in wanted:
            if key not in known:
                raise ConfigError(f"no row has numbers to draw: {unknown('key', key, known)}")
        return wanted

    def _repr_html_(self) -> str:
        """For notebooks: a table of the first and the last rows and of the best."""
        return notebook(self.rows, self.best, self.stopped)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rows, stopped: {self.stopped or 'not yet'})"


def shown(count: int, best: int | None) -> list[int | None]:
    """Which of so many rows a short table shows: those at the ends and the best; `None` stands for a gap."""
    wanted = sorted({*range(min(ENDS, count)), *range(max(0, count - ENDS), count), *([] if best is None else [best])})
    places: list[int | None] = []
    for place in wanted:
        before = places[-1] if places else -1
        assert before is not None
        places += [place] if place == before + 1 else [None, place]
    return places


def heads(rows: Sequence[Row]) -> list[str]:
    """The columns of a table: counters, then what is measured and has a panel; terms of a loss last."""
    keys, drawn = keys_of(rows), {key for panel in charts.panels(rows) for key in panel.keys}
    counters = [key for key in COUNTERS if key in keys and key != "minutes"]
    measured = [key for key in keys if key in drawn]
    return [*counters, *sorted(measured, key=lambda key: key.count("/") > 1)]


def cells(rows: Sequence[Row], places: Sequence[int | None]) -> tuple[list[str], list[list[str]]]:
    """The columns of a table that have something in them, and the lines for these rows; `None` stands for a gap."""
    texts_by_key = {key: column([None if k is None else rows[k].get(key) for k in places]) for key in heads(rows)}
    texts_by_key = {key: texts for key, texts in texts_by_key.items() if any(texts)}
    keys, columns = [*texts_by_key], [*texts_by_key.values()]
    lines = [[GAP if k is None else texts[line] for texts in columns] for line, k in enumerate(places)]
    return keys, lines


def place_of(rows: Sequence[Row], row: Row | None) -> int | None:
    """The index of a row among others."""
    return next((k for k, other in enumerate(rows) if other is row), None) if row is not None else None


def notebook(rows: Sequence[Row], best: Row | None, stopped: str) -> str:
    """A compact table that inherits its colours, and so suits light and dark notebooks."""
    at = place_of(rows, best)
    places = shown(len(rows), at)
    keys, cells_by_line = cells(rows, places)
    lines = ["".join(f'<th style="{_CELL};{_LINE}">{escape(key)}</th>' for key in ["", *keys])]
    for place, texts in zip(places, cells_by_line, strict=True):
        mark = GAP if place is None else "best" if place == at else ""
        style = f"{_CELL};{_BEST}" if mark == "best" else _CELL
        lines.append("".join(f'<td style="{style}">{escape(cell)}</td>' for cell in [mark, *texts]))
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    head = f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}" + (f", stopped: {stopped}" if stopped else "")
    return (
        f'<div style="overflow-x:auto"><div style="margin-bottom:0.4em">History: {escape(head)}</div>'
        f'<table style="{_TABLE}">{body}</table></div>'
    )
