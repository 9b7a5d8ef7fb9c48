"""How large a batch is: one number, or one from each point of a training on."""

import copy
from collections.abc import Mapping

from ..errors import ConfigError
from ..length import Counters, Length, interval, whole

BatchSize = int | Mapping[str | int, int]


class Sizes:
    """The size of each batch, as a function of how far the training has come: `{0: 32, "5 epochs": 64}`.

    Points count epochs or samples; of those that are reached, the last one given counts. A size holds from the first
    batch that begins at its point or behind it.
    """

    def __init__(self, given: BatchSize, what: str = "batch_size") -> None:
        points: dict[str | int, int] = dict(given) if isinstance(given, Mapping) else {0: given}
        if 0 not in points:
            raise ConfigError(f"{what}= begins with a size for 0, as in {{0: 32, '5 epochs': 64}}; got {given!r}.")
        for key, size in points.items():
            points[key] = whole(size) or 0
            if not points[key]:
                raise ConfigError(f"{what}= is a whole number greater than 0, got {size!r}.")
        self.first = points.pop(0)
        self._points = [(self._point(key, what), size) for key, size in points.items()]

    @property
    def constant(self) -> bool:
        """Whether all batches have the first size."""
        return not self._points

    def times(self, workers: int) -> "Sizes":
        """The sizes of batches that hold one of these for each worker."""
        found = copy.copy(self)
        found.first, found._points = workers * self.first, [(point, workers * size) for point, size in self._points]
        return found

    def at(self, counters: Counters) -> int:
        """The size of a batch that begins here."""
        return next((size for point, size in reversed(self._points) if point.reached(counters)), self.first)

    def left(self, counters: Counters) -> int | None:
        """How many more samples it can hold for, if it depends on them."""
        ahead = [int(p.count) - counters.samples for p, _ in self._points if p.unit == "samples"]
        return min((rows for rows in ahead if rows > 0), default=None)

    @staticmethod
    def _point(key: str | int, what: str) -> Length:
        point = interval(key, what)  # type: ignore[arg-type]
        if point.unit == "steps":
            raise ConfigError(f"{what}= changes after epochs or samples, got {key!r}: steps depend on the size itself.")
        return point
