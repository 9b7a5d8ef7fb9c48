"""What a training has reported, row by row."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, unknown
from ..store.rows import best_of, best_row, keys_of
from . import plot, table
from .monitor import mode_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class History:
    """Reports in order: a row holds epoch, step and samples, and whatever was measured there by its key."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stopped = ""
        """Why the training ended."""
        self.marked: int | None = None
        """The step that is the best so far, if anybody looks for it."""

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
    def best(self) -> dict[str, Any] | None:
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
        """A DataFrame: a row for each report, a column for each key, NaN where a row has nothing to say."""
        try:
            import pandas
        except ImportError:
            raise ConfigError(
                'to_pandas needs pandas, which is not installed: pip install "headrace[pandas]"'
            ) from None
        return pandas.DataFrame(self.rows)

    def plot(self, keys: str | Sequence[str] | None = None, ax: "Axes | None" = None) -> "Figure":
        """A figure with a panel for the loss, each of its terms, each metric and the rate; the best step is marked.

        `keys`: only these; `ax`: axes of your own, in which all of them are drawn. As the last line of a cell of a
        notebook the figure shows itself; keep it with `history.plot().savefig("curves.png")`.
        """
        best = self.best
        return plot.figure(self.rows, self._wanted(keys), ax, None if best is None else best["step"])

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
        return table.notebook(self.rows, self.best, self.stopped)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rows, stopped: {self.stopped or 'not yet'})"
