"""Which rows the updates of a run have used, by the order of the rows alone."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from math import inf
from typing import Any

from ..data.order import Order
from ..data.reader import Reader
from ..data.staging import Sizes
from ..errors import RunError
from ..length import Counters


class Places:
    """The places of updates in the order of the rows.

    In epoch e of the order, position p of n rows has the place e·n + p. A training begins where its reader stood.
    A reader with an end goes back there; only the reader tells where it ends.
    """

    def __init__(self, common: Mapping[str, Any], workers: int, reader: Reader | None) -> None:
        cursor, config = common["source"]["cursor"], common["config"]
        if not isinstance(cursor, Mapping) or "position" not in cursor or "order" not in cursor:
            raise RunError("the data of this run were no table, so nothing is known of the rows of an update.")
        if str(cursor["order"]).startswith("mix") and reader is None:
            raise RunError("the data of this run are a mix of tables. Give them: record.rows(step, train).")
        if "leases" in cursor:
            raise RunError("the workers of this run took rows from a center as they came: no update's are known.")
        if cursor["count"] != "rows":
            raise RunError(f"the batches of this run count {cursor['count']}, not rows: their places are not known.")
        known = {"seed": cursor["seed"], "block": cursor["block"], "mix": cursor["mix"]}
        self._order: Order
        self._order = reader.order if reader is not None else Order(cursor["rows"], cursor["order"], **known)
        if self._order.n != cursor["rows"]:
            raise RunError(f"the run has read {cursor['rows']} rows, and these data have {self._order.n}.")
        self._crosses, self.rows = bool(cursor["cross_epochs"]), int(cursor["rows"])
        strategy = common["strategy"]
        joint = strategy is None or strategy["kind"] == "Synchronous"
        sizes = config["batch_size"] or 128
        given: Any = sizes
        if isinstance(sizes, Mapping):
            given = {int(point) if point.isdigit() else point: size for point, size in sizes.items()}
        self._sizes = Sizes(given).times(1 if joint else workers)
        self._counters = Counters(**common["counters"])
        self._begun, self._at = self._place(common["source"]["initial"]), self._place(cursor)
        self._end = None if reader is None else reader.end
        if self._end is None and self._at - self._begun < self._counters.samples:
            raise RunError(
                "the Reader of this run has an end, where it began again. Give it: record.rows(step, train)."
            )
        self._batches = -(-self.rows // self._sizes.first)
        """In a whole epoch, of one size."""
        self._first = -(-(self.rows - self._begun % self.rows) // self._sizes.first)
        """In the epoch in which the training began."""

    def end(self, limits: Mapping[str, float]) -> float:
        """The place where a training with these limits ends, if it is known."""
        if self._end is not None:
            return 0
        epochs = self._begun // self.rows + limits.get("epochs", inf)
        return min(self._begun + limits.get("samples", inf), epochs * self.rows)

    def span(self, step: int) -> tuple[int, int]:
        """The places of an update's rows: from the first, to behind the last."""
        size, ahead = self._sizes.first, step - 1 - self._counters.steps
        if not self._sizes.constant or self._end is not None:
            return next(span for number, *span in self._walk() if number == step)  # type: ignore[return-value]
        if self._crosses:
            return self._at + ahead * size, self._at + (ahead + 1) * size
        start = self._begun + (number := self._number(self._at) + ahead) * size
        if number >= self._first:
            epoch, batch = divmod(number - self._first, self._batches)
            start = (self._begun // self.rows + 1 + epoch) * self.rows + batch * size
        return start, min(start + size, (start // self.rows + 1) * self.rows)

    def rows_of(self, step: int) -> list[int]:
        """The rows of an update, in their order."""
        return rows_between(self._order, *self.span(step))

    def steps_of(self, row: int, last: int) -> list[int]:
        """The updates up to the last one that have used a row."""
        if not 0 <= row < self.rows:
            raise RunError(f"there is no row {row}: the run has read {self.rows} rows.")
        if not last:
            return []
        end = self._end or self.span(last)[1]
        epochs = range(self._begun // self.rows, -(-end // self.rows))
        places = [epoch * self.rows + position for epoch in epochs for position in self._order.positions(epoch, row)]
        if self._end is not None:
            spans = takewhile(lambda span: span[0] <= last, self._walk())
            return [step for step, start, stop in spans if any(start <= place < stop for place in places)]
        return [self._step_at(place) for place in places if self._begun <= place < end]

    def _place(self, cursor: Mapping[str, Any]) -> int:
        return int(cursor["epoch"]) * self.rows + int(cursor["position"])

    def _number(self, place: int) -> int:
        """The batch that has a place, counted from the beginning of the training, of batches of one size."""
        epoch, position = place // self.rows - self._begun // self.rows, place % self.rows
        if not epoch:
            return (place - self._begun) // self._sizes.first
        return self._first + (epoch - 1) * self._batches + position // self._sizes.first

    def _step_at(self, place: int) -> int:
        if not self._sizes.constant:
            return next(step for step, _, stop in self._walk() if place < stop)
        if self._crosses:
            return 1 + self._counters.steps + (place - self._at) // self._sizes.first
        return 1 + self._counters.steps + self._number(place) - self._number(self._at)

    def _walk(self) -> Iterator[tuple[int, int, int]]:
        """Every update from the first one on, with its places; for what changes on the way."""
        place, counters = self._begun, Counters()
        while True:
            reach = (place // self.rows + 1) * self.rows + (self.rows - 1 if self._crosses else 0)
            stop = min(place + self._sizes.at(counters), reach, self._end or reach)
            counters.steps += 1
            yield counters.steps, place, stop
            counters.samples += stop - place
            counters.epochs += max(stop // self.rows - place // self.rows, int(stop == self._end))
            place = self._begun if stop == self._end else stop


def rows_between(order: Order, place: int, stop: int) -> list[int]:
    """The rows at places of an order, over ends of epochs."""
    found: list[int] = []
    while place < stop:
        epoch, position = divmod(place, order.n)
        end = min(order.n, position + stop - place)
        found += order.indices(epoch, position, end).tolist()
        place += end - position
    return found
