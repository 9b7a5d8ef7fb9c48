"""The reports of a training as a table in a file that every program reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store import disk
from ..store.rows import COUNTERS
from .callback import Callback
from .tracker import Place, numbers

if TYPE_CHECKING:
    from .info import Info

METRICS = "metrics.csv"


class CSV(Callback):
    """A line for every step that was reported, a column for every number; without a `path`, in the run.

    The file always says what the history does: it is written anew when a column turns up, or when a training goes on.
    """

    everywhere = False

    def __init__(self, path: str | Path | None = None) -> None:
        self._place = Place(self, path, METRICS)
        self._columns: list[str] = []
        self._step = -1
        self._file: disk.File | None = None

    def forget(self) -> None:
        self._close()
        self._columns, self._step = [], -1

    def on_fit_start(self, info: Info) -> None:
        self._path = self._place.find(info)
        with self._place.usable(self._path):
            disk.File(self._path, new=False).close()
            if info.history.rows:
                self._rewrite(info.history.rows)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        cells = _cells(row)
        try:
            if self._file is not None and row["step"] > self._step and cells.keys() <= set(self._columns):
                self._file.write(_text([[cells.get(key, "") for key in self._columns]]))
                self._step = row["step"]
            else:
                self._rewrite(info.history.rows)
        except OSError as error:
            raise disk.failure(error, f"writing step {row['step']} to {self._path}", self._path, 0) from error

    def on_error(self, info: Info, error: BaseException) -> None:
        self._close()

    def on_fit_end(self, info: Info) -> None:
        self._close()

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The table as a whole, in place of what was there."""
        table = [_cells(row) for row in rows]
        self._columns = list(dict.fromkeys([*COUNTERS[:3], *(key for cells in table for key in cells)]))
        self._step = rows[-1]["step"]
        self._close()
        disk.write_file(self._path, _text([self._columns, *([c.get(k, "") for k in self._columns] for c in table)]))
        self._file = disk.File(self._path, new=False)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _cells(row: Mapping[str, Any]) -> dict[str, float]:
    return {**{key: row[key] for key in COUNTERS if key in row}, **numbers(row)}


def _text(lines: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode(errors="backslashreplace")
