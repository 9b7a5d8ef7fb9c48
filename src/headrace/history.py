"""What a training has reported, row by row."""

from collections.abc import Iterator
from typing import Any


class History:
    """Reports in order: a row holds epoch, step and samples, and whatever was measured there by its key."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stopped = ""
        """Why the training ended."""

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

    def __repr__(self) -> str:
        return f"History({len(self.rows)} rows, stopped: {self.stopped or 'not yet'})"
