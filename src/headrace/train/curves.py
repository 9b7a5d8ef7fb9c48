"""Schedules by name: how the learning rate rises and falls over a training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, Literal

from ..errors import ConfigError, unknown
from ..length import Length, interval
from ..step.check import plain_number

Part = float | str | Length
"""A share of the training, from 0 to 1, or a length such as "500 steps"."""
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1 - share,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    "sqrt": lambda share: 1 - math.sqrt(share),
}
"""What is left of the rate after a share of the way down."""


@dataclass(frozen=True)
class RateCurve(ABC):
    """A factor of the initial rate, as a function of the progress: 0 at the first update, 1 at the end."""

    parts: ClassVar[tuple[str, ...]] = ("warmup",)
    """The settings that may be a length."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.parts and isinstance(value, str | Length):
                value = interval(value, field.name)
            elif field.name != "shape":
                if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= 1:
                    lengths = " or a length such as '500 steps'" if field.name in self.parts else ""
                    raise ConfigError(
                        f"{type(self).__name__}: {field.name}= is a share, from 0 to 1,{lengths}; got {value!r}."
                    )
                value = plain_number(value)
            object.__setattr__(self, field.name, value)  # a frozen dataclass

    def __call__(self, progress: float) -> float:
        given = {name: getattr(self, name) for name in self.parts}
        if lengths := [f"{name}='{part}'" for name, part in given.items() if isinstance(part, Length)]:
            raise ConfigError(f"{type(self).__name__}({', '.join(lengths)}) can be called in a training only.")
        return self.factor(min(progress, 1.0), 1.0, given)

    @abstractmethod
    def factor(self, done: float, total: float, parts: Mapping[str, float]) -> float:
        """The factor after `done` of `total`; `parts` are counted as these are."""

    @property
    def has_lengths(self) -> bool:
        """Whether a part is a length, which does not stretch with the training."""
        return any(isinstance(getattr(self, name), Length) for name in self.parts)

    def counted(self, limit: Length, totals: Mapping[str, float]) -> dict[str, float]:
        """The parts in the unit of a limit; `totals`: how many of each unit the training has, where that is known."""
        found = {}
        for name in self.parts:
            part = getattr(self, name)
            if not isinstance(part, Length):
                found[name] = part * limit.count
            elif part.unit == limit.unit:
                found[name] = part.count
            elif part.unit in totals and limit.unit in totals:
                found[name] = part.count * totals[limit.unit] / totals[part.unit]
            else:
                raise ConfigError(
                    f"{type(self).__name__}: {name}='{part}' in a training of {limit} needs to know how many "
                    f"{part.unit} that is. Give it in {limit.unit}, or as a share."
                )
        return found


def _up(done: float, warmup: float) -> float:
    return done / warmup if done < warmup else 1.0


@dataclass(frozen=True)
class _Down(RateCurve):
    """Up in a straight line over `warmup`, then down to `floor` at the end."""

    warmup: Part = 0.05
    floor: float = 0.0
    _shape: ClassVar[str] = "linear"

    def factor(self, done: float, total: float, parts: Mapping[str, float]) -> float:
        warmup = parts["warmup"]
        if done < warmup:
            return _up(done, warmup)
        after = min(1.0, (done - warmup) / max(1e-12, total - warmup))
        return self.floor + (1 - self.floor) * SHAPES[self._shape](after)


class Cosine(_Down):
    """Up in a straight line over `warmup`, then down half a cosine to `floor` at the end."""

    _shape = "cosine"


class Linear(_Down):
    """Up in a straight line over `warmup`, then down in one to `floor` at the end."""


@dataclass(frozen=True)
class WSD(RateCurve):
    """Warm up, stay, decay: the rate stays as it is after `warmup`, until it falls to `floor` over the last `decay`.

    `shape`: how it falls, "linear", "cosine", or "sqrt", 1 − √share. Hägele et al., https://arxiv.org/abs/2405.18392.
    """

    parts = ("warmup", "decay")
    warmup: Part = 0.05
    decay: Part = 0.2
    floor: float = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape not in SHAPES:
            raise ConfigError(f"WSD: {unknown('shape', self.shape, SHAPES)}")

    def factor(self, done: float, total: float, parts: Mapping[str, float]) -> float:
        begins = total - parts["decay"]
        if done < begins or not parts["decay"]:
            return _up(done, parts["warmup"])
        after = min(1.0, (done - begins) / parts["decay"])
        return self.floor + (1 - self.floor) * SHAPES[self.shape](after)

    def counted(self, limit: Length, totals: Mapping[str, float]) -> dict[str, float]:
        found = super().counted(limit, totals)
        if found["warmup"] + found["decay"] > limit.count * (1 + 1e-9):
            raise ConfigError(
                f"WSD: a training of {limit} is shorter than warmup={str(self.warmup)!r} and decay={str(self.decay)!r} "
                "together. Make it longer, or one of them shorter."
            )
        return found


@dataclass(frozen=True)
class InverseSqrt(RateCurve):
    """Up in a straight line over `warmup`, then down as √(warmup / progress), wherever the training ends.

    Vaswani et al., https://arxiv.org/abs/1706.03762.
    """

    warmup: Part = 0.05

    def factor(self, done: float, total: float, parts: Mapping[str, float]) -> float:
        warmup = parts["warmup"]
        if not warmup:
            raise ConfigError("InverseSqrt: warmup= is more than 0, as the rate falls from there on.")
        return _up(done, warmup) if done < warmup else math.sqrt(warmup / done)


@dataclass(frozen=True)
class OneCycle(RateCurve):
    """Rises by a cosine from `start` times the rate to the rate, at `peak`, then falls by one to `end` times the rate.

    Smith and Topin, https://arxiv.org/abs/1708.07120.
    """

    parts = ("peak",)
    peak: Part = 0.3
    start: float = 0.04
    end: float = 4e-6

    def factor(self, done: float, total: float, parts: Mapping[str, float]) -> float:
        peak = parts["peak"]
        if done < peak:
            low, share = self.start, done / peak
        else:
            low, share = self.end, 1 - (min(total, done) - peak) / max(1e-12, total - peak)
        return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * share))


def totals_of(limits: Sequence[Length], batches: int | None, rows: int | None) -> dict[str, float]:
    """How many epochs, steps and samples a training has that ends with the first of its limits, where that is known.

    An epoch has so many `batches` and `rows`.
    """
    per_epoch: dict[str, float] = {"epochs": 1.0, "steps": batches or 0, "samples": rows or 0}
    known = [limit for limit in limits if per_epoch.get(limit.unit)]
    epochs = min((limit.count / per_epoch[limit.unit] for limit in known), default=0.0)
    return {unit: epochs * each for unit, each in per_epoch.items() if epochs and each}
