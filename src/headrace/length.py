"""How long and how often: "10 epochs", "500 steps", "100000 samples", "30 min"."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from .errors import ConfigError, unknown

Value = TypeVar("Value")

_UNITS = {
    "epoch": "epochs",
    "epochs": "epochs",
    "step": "steps",
    "steps": "steps",
    "sample": "samples",
    "samples": "samples",
    "min": "minutes",
    "minute": "minutes",
    "minutes": "minutes",
}


def as_count(value: Any, least: int = 1) -> int | None:
    """A whole number that is no less than this, be it Python's or NumPy's; `None` of anything else."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        return None
    return int(value)


@dataclass(slots=True)
class Counters:
    """How far a training has come: updates of one replica, rows over all workers, joint passes over the data."""

    steps: int = 0
    samples: int = 0
    epochs: int = 0
    minutes: float = 0.0
    batch: int = 0
    """The batch of this epoch just used, counted from 1."""
    rows: int = 0
    """Of the last update, over all workers."""
    ends_epoch: bool = False
    """Whether the last update ended an epoch."""

    @property
    def totals(self) -> dict[str, Any]:
        """What has been done so far."""
        return {name: getattr(self, name) for name in ("steps", "samples", "epochs", "minutes")}

    @property
    def place(self) -> dict[str, Any]:
        """What the last update was."""
        return {name: getattr(self, name) for name in ("batch", "rows", "ends_epoch")}


@dataclass(frozen=True)
class Length:
    """A number of epochs, steps, samples or minutes."""

    count: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in _UNITS.values():
            raise ConfigError(unknown("unit", self.unit, set(_UNITS.values())))
        number = isinstance(self.count, Real) and not isinstance(self.count, bool)
        if not number or not 0 < self.count < float("inf"):
            raise ConfigError(f"{self.unit}= is greater than 0, got {self.count!r}.", argument=self.unit)
        if self.unit != "minutes" and self.count != int(self.count):
            raise ConfigError(f"{self.unit}= counts whole {self.unit}, got {self.count!r}.", argument=self.unit)

    @classmethod
    def parse(cls, text: "str | Length", what: str) -> "Length":
        """Reads "500 steps"; `what` is the argument it came from."""
        if isinstance(text, Length):
            return text
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f'{what}= is a number and a unit, as in "1 epoch" or "500 steps", got {text!r}.', argument=what
            )
        number, unit = float(match[1]), match[2].lower()
        if unit not in _UNITS:
            raise ConfigError(f"{what}={text!r}: {unknown('unit', unit, _UNITS)}", argument=what)
        return cls.of(number, _UNITS[unit], what)

    @classmethod
    def of(cls, count: float, unit: str, what: str) -> "Length":
        """A length for the argument `what`, which an error then names."""
        try:
            return cls(count, unit)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{unit}=", f"{what}=", 1), argument=what) from None

    def reached(self, counters: Counters) -> bool:
        """Whether a run that has come this far has this length."""
        return bool(getattr(counters, self.unit) >= self.count)

    def fires(self, counters: Counters) -> bool:
        """Whether the update just counted ended an interval of this length."""
        advance = {"steps": 1, "samples": counters.rows, "epochs": int(counters.ends_epoch)}[self.unit]
        now = getattr(counters, self.unit)
        return bool(now // self.count > (now - advance) // self.count)

    def ahead(self, counters: Counters) -> float:
        """After how many more updates like the last one this is reached, or fires again.

        Infinite for epochs and minutes, which cannot be foreseen.
        """
        if self.unit not in ("steps", "samples"):
            return math.inf
        left: float = self.count - getattr(counters, self.unit) % self.count
        return left if self.unit == "steps" else math.ceil(left / max(1, counters.rows))

    def __str__(self) -> str:
        number = int(self.count) if self.count == int(self.count) else self.count
        return f"{number} {self.unit[:-1] if number == 1 else self.unit}"


def interval(text: "str | Length", what: str) -> Length:
    """How often something is done in a loop; wall-clock time would make it differ from run to run."""
    found = Length.parse(text, what)
    if found.unit == "minutes":
        raise ConfigError(
            f"{what}={str(text)!r}: minutes differ from run to run. Count epochs, steps or samples.", argument=what
        )
    return found


class Points(Generic[Value]):
    """A value from each point of a training on, as in `{0: 32, "5 epochs": 64}`.

    Points of one unit are given in order. Of the points that are reached, the last one given counts. A value holds from
    the first batch that begins at its point or behind it.
    """

    def __init__(self, given: Mapping[Any, Value], what: str, example: str) -> None:
        values = dict(given)
        if 0 not in values:
            raise ConfigError(f"{what}= begins with a value for 0, as in {example}; got {given!r}.", argument=what)
        self.first: Value = values.pop(0)
        self.later: list[tuple[Length, Value]] = [(interval(key, what), v) for key, v in values.items()]
        reached: dict[str, float] = {}
        for point, _ in self.later:
            if reached.get(point.unit, 0) >= point.count:
                raise ConfigError(
                    f"{what}= has '{point}' after a later point, or twice. Give points in order, as in {example}.",
                    argument=what,
                )
            reached[point.unit] = point.count

    def at(self, counters: Counters) -> Value:
        """The value of a batch that begins here."""
        return next((value for point, value in reversed(self.later) if point.reached(counters)), self.first)


def limits(
    epochs: int | None, steps: int | None, samples: int | None, minutes: float | None, default: int = 10
) -> list[Length]:
    """What ends a training: whichever is reached first. Without any limit, `default` epochs."""
    given = {"epochs": epochs, "steps": steps, "samples": samples, "minutes": minutes}
    found = [Length(count, unit) for unit, count in given.items() if count is not None]
    return found or [Length(default, "epochs")]
