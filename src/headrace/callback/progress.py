"""The progress of a training: a bar on a terminal, lines elsewhere; drawn by time, not by step."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from .base import Callback

if TYPE_CHECKING:
    from ..info import Info

BAR_S = 0.1  # how often the bar is drawn
WORKERS_SHOWN = 4  # of more, only the slowest and the fastest
LINE_S = 10.0  # how often a line is printed within an epoch


class Progress(Callback):
    """`"bar"`, `"plain"`, or `"auto"`: the bar if standard error is a terminal, lines if not, and in CI."""

    everywhere = False

    def __init__(self, style: str = "auto", file: TextIO | None = None) -> None:
        self._file = file
        self._style = style
        self._display: _Bar | _Lines | None = None
        self._next = 0.0

    def on_fit_start(self, info: Info) -> None:
        file = self._file or sys.stderr
        bar = self._style == "bar" or (self._style == "auto" and file.isatty() and not os.environ.get("CI"))
        self._display = _Bar(file) if bar else _Lines(file)
        self._clock = _Clock(info)
        self._next = time.perf_counter() + self._display.period
        if info.resumed:
            self._display.say(f"going on from step {info.resumed:,} of epoch {info.epoch + (not info.ends_epoch)}")

    def on_step_end(self, info: Info) -> None:
        if time.perf_counter() < self._next or self._display is None:
            return
        self._display.draw(info, self._clock)
        self._next = time.perf_counter() + self._display.period

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        if self._display is not None:
            self._display.epoch(info, row, self._clock)

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        if self._display is not None and not info.ends_epoch:
            self._display.say(f"step {info.step:,}  {_numbers(scores)}")

    def on_error(self, info: Info, error: BaseException) -> None:
        self._close()

    def on_fit_end(self, info: Info) -> None:
        if self._display is not None:
            span = _span(self._clock.elapsed)
            if info.resumed == info.step > 0:
                self._display.say(f"nothing left to train: {info.stopping}")
            self._display.say(f"done: {info.step:,} steps, {info.samples:,} samples, {span} ({info.stopping})")
        self._close()

    def _close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None


class _Clock:
    """How fast a training goes and how long it will go on."""

    def __init__(self, info: Info) -> None:
        self._start = time.perf_counter()
        self._samples = info.samples
        self._steps = info.step

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def rate(self, info: Info) -> float:
        """Samples per second."""
        return (info.samples - self._samples) / max(self.elapsed, 1e-9)

    def left(self, info: Info) -> float | None:
        """Seconds to the nearest limit, if it can be told."""
        done = info.step - self._steps
        if not done:
            return None
        per_step = self.elapsed / done
        seconds = []
        for limit in info.limits:
            if limit.unit == "minutes":
                seconds.append((limit.count - info.counters.minutes) * 60)
            elif limit.unit == "steps":
                seconds.append((limit.count - info.step) * per_step)
            elif limit.unit == "samples":
                seconds.append((limit.count - info.samples) * per_step * done / max(1, info.samples - self._samples))
            elif info.batches:
                seconds.append((limit.count * info.batches - info.step) * per_step)
        return max(0.0, min(seconds)) if seconds else None


class _Lines:
    """One line an epoch, and one every ten seconds of a long one."""

    period = LINE_S

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, info: Info, clock: _Clock) -> None:
        left = clock.left(info)
        eta = "" if left is None else f"  {_span(left)} left"
        self.say(f"epoch {_epoch(info)}  {_place(info)}  {_numbers(info.losses)}  {_rates(info, clock)}{eta}")

    def epoch(self, info: Info, row: dict[str, Any], clock: _Clock) -> None:
        self.say(f"epoch {info.epoch}  {_numbers(_shown(row))}  {_rates(info, clock)}")

    def say(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def close(self) -> None:
        pass


class _Bar(_Lines):
    """A rich bar for the epoch at hand; finished epochs stay above it as lines."""

    period = BAR_S

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(file=file),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._rich.add_task("", total=None, epoch=1, text="")
        self._rich.start()

    def draw(self, info: Info, clock: _Clock) -> None:
        left = clock.left(info)
        eta = "" if left is None else f"  {_span(left)} left"
        text = f"{_place(info)}  {_numbers(info.losses)}  {_rates(info, clock)}{eta}"
        self._rich.update(
            self._task,
            completed=info.batch,
            total=info.batches,
            epoch=_epoch(info),
            text=text,
        )
        self._rich.refresh()

    def say(self, text: str) -> None:
        self._rich.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._rich.stop()


def _epoch(info: Info) -> int:
    """The number, from 1, of the epoch that the last batch belongs to."""
    return info.epoch + (not info.ends_epoch)


def _place(info: Info) -> str:
    return f"batch {info.batch:,}/{info.batches:,}" if info.batches else f"batch {info.batch:,}"


def _rates(info: Info, clock: _Clock) -> str:
    """Samples a second: of all workers together, and of each of several."""
    whole = f"{clock.rate(info):,.0f} samples/s"
    if len(info.rates) < 2:
        return whole
    if len(info.rates) <= WORKERS_SHOWN:
        return f"{whole} ({' + '.join(f'{rate:,.0f}' for rate in info.rates)})"
    return f"{whole} ({len(info.rates)} workers, {min(info.rates):,.0f} to {max(info.rates):,.0f} each)"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a report that fit a line: no counters, no single terms, no matrices."""
    return {key: value for key, value in row.items() if isinstance(value, float) and "/" in key and key.count("/") == 1}


def _numbers(values: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, float))


def _span(seconds: float) -> str:
    seconds = round(seconds, 1) if seconds < 10 else round(seconds)
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
