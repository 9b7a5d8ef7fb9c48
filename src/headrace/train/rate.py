"""The learning rate: a short training in which it rises shows where the loss falls fastest.

Smith, https://arxiv.org/abs/1506.01186.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, NonFiniteError
from ..step.given import groups_of, put_rate, shares_of
from ..watch.charts import new_figure
from .untouched import Steps, untouched, updates

if TYPE_CHECKING:
    from .trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 10  # steps that can show anything
AT_ONCE = 10  # losses that are read from the device together
MEMORY = 0.9  # of the running mean that watches for a loss that grows
GROWN = 3.0  # times the best loss above it: the training has come apart


@dataclass(frozen=True, slots=True)
class LrFinding:
    """Losses by rate, and what they suggest."""

    rates: list[float]
    """Of the first group of the first optimizer, one for each update."""
    losses: list[float]
    smoothed: list[float]
    """A moving mean of the losses."""
    suggestion: float | None
    """Where the smoothed loss falls fastest; `None` where it does not fall."""
    how: str = field(default="")
    """How the suggestion was found, and why there is no more to see."""

    def __repr__(self) -> str:
        found = "nothing" if self.suggestion is None else f"{self.suggestion:.2g}"
        return f"LrFinding(suggestion={found}: {self.how})"

    def plot(self) -> Figure:
        """Loss against rate, with the suggestion."""
        figure = new_figure(width=6.0, height=3.5)
        axes = figure.axes[0]
        axes.plot(self.rates, self.losses, color="#c8ccd2", label="loss")
        axes.plot(self.rates, self.smoothed, color="#3b7dd8", label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color="#d64545", linestyle="--", label=f"suggestion: {self.suggestion:.2g}")
        lowest = min(self.smoothed)
        before = max(self.smoothed[: self.smoothed.index(lowest) + 1])
        height = (before - lowest) or 1.0
        axes.set_ylim(lowest - 0.2 * height, before + height)  # what has come apart would leave no room for the rest
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()
        return figure

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{_svg(self.plot())}"


def find_lr(
    trainer: Trainer, steps_of: Steps, train: Any, *, lowest: float = 1e-7, highest: float = 10.0, steps: int = 100
) -> LrFinding:
    """Trains for up to `steps` updates, the rate of which rises from `lowest` to `highest` by equal factors.

    It ends as soon as the loss has come apart. Groups of parameters keep their ratios; there is no schedule. Model,
    optimizers, data, random numbers and history are as they were afterwards.
    """
    _check(lowest, highest, steps)
    rates = [float(rate) for rate in np.geomspace(lowest, highest, steps)]
    with untouched(trainer, train) as source:
        losses, why = _climb(trainer, steps_of, source, rates)
    return _finding(rates[: len(losses)], losses, why)


def _check(lowest: float, highest: float, steps: int) -> None:
    if not (0 < lowest < highest < math.inf):
        raise ConfigError(f"lowest= is above 0 and below highest=, got {lowest!r} and {highest!r}.")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < FEWEST:
        raise ConfigError(f"steps= is a number of updates, at least {FEWEST}, got {steps!r}: fewer show nothing.")


def _climb(trainer: Trainer, steps_of: Steps, source: Any, rates: Sequence[float]) -> tuple[list[float], str]:
    """The losses, as far as they are worth looking at, and why there are no more."""
    losses: list[float] = []
    unread: list[Any] = []
    set_rate = rate_setter(trainer)
    set_rate(rates[0])
    try:
        with updates(steps_of, source, len(rates)) as made:
            for info in made:
                assert info.outcome is not None
                unread.append(info.outcome.losses["total_loss"])
                if len(unread) == AT_ONCE or info.step == len(rates):
                    losses, unread = losses + _numbers(unread), []
                    if (end := _apart(losses)) is not None:
                        break
                if info.step < len(rates):
                    set_rate(rates[info.step])
    except NonFiniteError as error:
        losses += _numbers(unread)
        end = next((k for k, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
        if end < FEWEST:
            raise NonFiniteError(_hopeless(rates, end)) from error
        return losses[:end], f"at {rates[min(end, len(rates) - 1)]:.2g} it was not finite"
    if end is None:
        return losses, f"up to {rates[-1]:.2g} it did not come apart"
    if not math.isfinite(losses[end]) and end < FEWEST:
        raise NonFiniteError(_hopeless(rates, end))
    return losses[: end + math.isfinite(losses[end])], f"at {rates[end]:.2g} it had come apart"


def _hopeless(rates: Sequence[float], done: int) -> str:
    return (
        f"the loss is not finite after {done} updates, at a rate of {rates[done]:.2g}: too few to see anything. "
        "Lower lowest=, or look for bad rows: fit(..., scan=True)."
    )


def rate_setter(trainer: Trainer) -> Callable[[float], None]:
    """A function that gives the first group of the first optimizer a rate, and all others theirs in proportion."""
    groups = groups_of(trainer.optimizers.values())
    if not (shares := shares_of(groups)):
        raise ConfigError("the first group's rate is 0, so that others stand in no proportion to it. Give it a rate.")

    def set_rate(rate: float) -> None:
        for group, share in zip(groups, shares, strict=True):
            put_rate(group, rate * share)

    return set_rate


def _numbers(losses: Sequence[Any]) -> list[float]:
    """Read from the device, all together."""
    if losses and all(isinstance(loss, Tensor) for loss in losses):
        return [float(loss) for loss in torch.stack([loss.double() for loss in losses]).tolist()]
    return [float(loss) for loss in losses]


def _apart(losses: Sequence[float]) -> int | None:
    """The update at which the training had come apart: its loss is not finite, or far above the best so far."""
    total = weight = 0.0
    best = math.inf
    for k, loss in enumerate(losses):
        if not math.isfinite(loss):
            return k
        total, weight = MEMORY * total + (1 - MEMORY) * loss, MEMORY * weight + (1 - MEMORY)
        mean = total / weight
        best = min(best, mean)
        if mean > best + GROWN * max(abs(best), 0.1 * abs(losses[0])):
            return k
    return None


def _finding(rates: list[float], losses: list[float], why: str) -> LrFinding:
    """The steepest descent before the lowest point, if the loss falls by more than its noise."""
    smoothed, half = _smooth(np.array(losses))
    shown = [float(loss) for loss in smoothed]
    inner = slice(half, max(half + 1, len(losses) - half))  # where the means are of equally many
    lowest = int(smoothed[inner].argmin()) + half
    noise = float(np.std(np.array(losses)[: lowest + 1] - smoothed[: lowest + 1]))
    if smoothed[half] - smoothed[lowest] <= 2 * noise:
        flat = f"the loss does not fall by more than its noise between {rates[0]:.2g} and {rates[-1]:.2g}; {why}"
        return LrFinding(rates, losses, shown, None, flat)
    slopes = np.gradient(smoothed, np.log10(rates))
    steepest = int(slopes[half : lowest + 1].argmin()) + half
    how = f"there the loss, a mean of {2 * half + 1}, falls fastest by the logarithm of the rate; {why}"
    return LrFinding(rates, losses, shown, rates[steepest], how)


def _smooth(losses: np.ndarray) -> tuple[np.ndarray, int]:
    """A centred moving mean, which does not lag behind as a running one does; and half its width."""
    half = max(1, len(losses) // 20)
    sums = np.concatenate([[0.0], losses.cumsum()])
    at = np.arange(len(losses))
    reach = np.minimum(np.minimum(at, at[::-1]), half)
    return (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1), half


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()
