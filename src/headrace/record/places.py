"""Which rows the updates of a run have used, by the order of the rows alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..data.order import Order
from ..data.reader import Reader
from ..data.staging import Sizes
from ..errors import RunError
from ..length import Counters


class Places:
    """The places of updates in the order of the rows.

    A place is counted from the beginning of the training: in epoch e, position p of n rows has the place e·n + p.
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
        self._at = int(cursor["epoch"]) * self.rows + int(cursor["position"])

    def span(self, step: int) -> tuple[int, int]:
        """The places of an update's rows: from the first, to behind the last."""
        size, ahead = self._sizes.first, step - 1 - self._counters.steps
        if self._sizes.constant and self._crosses:
            return self._at + ahead * size, self._at + (ahead + 1) * size
        if self._sizes.constant:
            epoch, position = divmod(self._at, self.rows)
            per_epoch = -(-self.rows // size)
            epoch, batch = divmod(epoch * per_epoch + position // size + ahead, per_epoch)
            start = epoch * self.rows + batch * size
            return start, min(start + size, (epoch + 1) * self.rows)
        return next(span for number, *span in self._walk() if number == step)  # type: ignore[return-value]

    def rows_of(self, step: int) -> list[int]:
        """The rows of an update, in their order."""
        return rows_between(self._order, *self.span(step))

    def steps_of(self, row: int, last: int) -> list[int]:
        """The updates up to the last one that have used a row."""
        if not 0 <= row < self.rows:
            raise RunError(f"there is no row {row}: the run has read {self.rows} rows.")
        end = self.span(last)[1] if last else 0
        epochs = range(-(-end // self.rows))
        places = [epoch * self.rows + position for epoch in epochs for position in self._order.positions(epoch, row)]
        return [self._step_at(place) for place in places if place < end]

    def _step_at(self, place: int) -> int:
        size = self._sizes.first
        if not self._sizes.constant:
            return next(step for step, _, stop in self._walk() if place < stop)
        if self._crosses:
            return 1 + self._counters.steps + (place - self._at) // size
        epoch, position = divmod(place, self.rows)
        now, at = divmod(self._at, self.rows)
        per_epoch = -(-self.rows // size)
        return 1 + self._counters.steps + (epoch - now) * per_epoch + position // size - at // size

    def _walk(self) -> Iterator[tuple[int, int, int]]:
        """Every update from the first one on, with its places; for sizes that change on the way."""
        place, counters = 0, Counters()
        while True:
            reach = (place // self.rows + 1) * self.rows + (self.rows - 1 if self._crosses else 0)
            stop = min(place + self._sizes.at(counters), reach)
            counters.steps += 1
            yield counters.steps, place, stop
            counters.samples += stop - place
            counters.epochs += stop // self.rows - place // self.rows
            place = stop


def rows_between(order: Order, place: int, stop: int) -> list[int]:
    """The rows at places of an order, over ends of epochs."""
    found: list[int] = []
    while place < stop:
        epoch, position = divmod(place, order.n)
        end = min(order.n, position + stop - place)
        found += order.indices(epoch, position, end).tolist()
        place += end - position
    return found
