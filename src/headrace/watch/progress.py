"""Shows the progress of a training: a bar on a terminal, lines elsewhere; drawn by time, not by step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import ConfigError, unknown
from .callback import Callback

if TYPE_CHECKING:
    from .info import Info

STYLES = ("auto", "bar", "plain")
BAR_S = 0.1  # how often the bar is drawn
WORKERS_SHOWN = 4  # of more, only the slowest and the fastest
LINE_S = 10.0  # how often a line is printed within an epoch
LEAST, MOST = 10, 40  # columns of the bar itself
_COLUMN = 10  # of a number in the line of an epoch, such as " 0.0009835"
RECENT_S = 2.0  # what a rate is taken over, at least, once there is as much


class Progress(Callback):
    """`"bar"`, `"plain"`, or `"auto"`: the bar on a standard error that is a terminal and can draw it, else lines."""

    everywhere = False
    each_step = False
    _looks_on = True

    def __init__(self, style: str = "auto", file: TextIO | None = None) -> None:
        if style not in STYLES:
            raise ConfigError(f"Progress: {unknown('style', style, STYLES)}")
        self._file = file
        self._style = style
        self._display: _Lines | None = None
        self._next = 0.0

    def on_fit_start(self, info: Info) -> None:
        file = self._file or sys.stderr
        bar = self._style == "bar" or (self._style == "auto" and _has_bars(file))
        self._display = Bar(file) if bar else _Lines(file)
        self._clock, self._next = _Clock(info), 0.0
        if info.resumed:
            self._display.print_line(f"going on from step {info.resumed:,}, epoch {_epoch(info)}")

    def on_step_end(self, info: Info) -> None:
        clock = self._clock
        clock.now = time.perf_counter()
        if clock.now < self._next or self._display is None:
            return
        if clock.begun:
            self._display.draw(info, clock)
        else:
            clock.begin(info)
        self._next = time.perf_counter() + self._display.period

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        if self._display is not None:
            self._display.epoch(info, row, self._clock)

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        self._clock.pause()
        tested = any(key.startswith("test/") for key in scores)  # else the line of the report or of the epoch says it
        if self._display is not None and (tested or not (info.ends_epoch or self._display.reports)):
            self._display.print_line(f"step {info.step:,}  {'  '.join(_shown(scores))}")

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        tests = all(key.startswith("test/") for key in row if "/" in key)
        if self._display is not None and self._display.reports and not (info.ends_epoch or tests):
            self._display.print_line(f"step {info.step:,}  {'  '.join(_shown(row))}  {_rates(info, self._clock)}")
            self._next = time.perf_counter() + self._display.period

    def on_error(self, info: Info, error: BaseException) -> None:
        self._close()

    def on_fit_end(self, info: Info) -> None:
        if self._display is not None:
            took = span(self._clock.elapsed)
            if info.resumed == info.step > 0:
                self._display.print_line(f"nothing left to train: {info.stopping}")
            note = f" ({info.trainer.strategy.note})" if info.trainer.strategy.note else ""
            self._display.print_line(
                f"ended after {info.step:,} steps, {info.samples:,} samples, {took}: {info.stopping}{note}"
            )
        self._close()

    def _close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None


class _Clock:
    """Measures how fast a training goes and estimates how long it will take."""

    def __init__(self, info: Info) -> None:
        self._start = self.now = time.perf_counter()
        self._samples, self._steps = info.samples, info.step
        self._paused = 0.0
        self._old = self._new = (self.now, info.samples)
        self.begun = False
        """Whether the first update has been made, which takes longer than others."""

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def begin(self, info: Info) -> None:
        """The first update has been made now."""
        self._first = self.now
        self._samples, self._steps = info.samples, info.step
        self._old = self._new = (self._worked, info.samples)
        self.begun = True

    def pause(self) -> None:
        """Leaves the time since the last update out of the rate."""
        last, self.now = self.now, time.perf_counter()
        self._paused += self.now - last

    @property
    def _worked(self) -> float:
        return self.now - self._paused

    def rate(self, info: Info) -> float:
        """Samples per second over the last seconds."""
        seconds, samples = self._worked - self._old[0], info.samples - self._old[1]
        if not samples:  # there has been one update
            return info.samples / max(self._worked - self._start, 1e-9)
        if self._worked - self._new[0] > RECENT_S:
            self._old, self._new = self._new, (self._worked, info.samples)
        return samples / max(seconds, 1e-9)

    def remaining_s(self, info: Info) -> float | None:
        """Seconds to the nearest limit, if it can be told."""
        done = info.step - self._steps
        if not self.begun or not done:
            return None
        per_step = (self.now - self._first) / done
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
    """Prints a line for each epoch and each report within one, and one every ten seconds if none comes."""

    period = LINE_S
    reports = True
    """Whether it prints reports within an epoch."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, info: Info, clock: _Clock) -> None:
        pieces = [_place(info), *_losses(info), _rates(info, clock), *_remaining(info, clock)]
        self.print_line(f"epoch {_epoch(info)}  {'  '.join(pieces)}")

    def epoch(self, info: Info, row: dict[str, Any], clock: _Clock) -> None:
        columns = [piece.ljust(_COLUMN + len(piece.split()[0])) for piece in _shown(row)]
        self.print_line(f"epoch {_of_all(info, info.epoch)}  {'  '.join(columns)}  {_rates(info, clock)}")

    def print_line(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a closed pipe does not stop the training
            print(text, file=self._file, flush=True)

    def close(self) -> None:
        pass


class Bar(_Lines):
    """Draws a bar for the current epoch at the foot of a terminal; lines printed meanwhile stay above it."""

    period = BAR_S
    reports = False

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        console: Any = Console(
            file=file, soft_wrap=True, highlight=False, markup=False, emoji=False, force_jupyter=False
        )
        console.show_cursor = lambda show=True: False  # hidden, it would stay so when the process is killed
        console.on_broken_pipe = partial(setattr, console, "quiet", True)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe is none of the terminal's business
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def draw(self, info: Info, clock: _Clock) -> None:
        total, *terms = _losses(info) or [""]
        pieces = [_place(info), total, *_remaining(info, clock), _rates(info, clock), *terms]
        self._live.update(_Line(f"epoch {_epoch(info)}", info.batch, info.batches, pieces), refresh=True)

    def print_line(self, text: str) -> None:
        self._live.console.print(text)

    def close(self) -> None:
        self._live.stop()


class _Line:
    """The line of the bar, laid out for the width that the terminal has when it is drawn.

    Of the pieces it shows as many as fit; those that matter most come first.
    """

    def __init__(self, head: str, done: int, total: int | None, pieces: Sequence[str]) -> None:
        self._head, self._done, self._total, self._pieces = head, done, total, pieces

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.cells import cell_len, set_cell_size
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        room = options.max_width - 3  # some terminals go on to the next line at the last column, and Ctrl-C shows as ^C
        if cell_len(self._head) + 1 + LEAST > room:
            yield Text(set_cell_size(self._head, min(room, cell_len(self._head))), end="")
            return
        room -= cell_len(self._head) + 1 + LEAST
        shown = ""
        for piece in self._pieces:
            if 2 + cell_len(piece) <= room:  # one that is too long leaves its place to shorter ones
                shown += f"  {piece}"
                room -= 2 + cell_len(piece)
        yield Text(f"{self._head} ", end="")
        yield ProgressBar(self._total, self._done, width=min(MOST, LEAST + room), pulse=self._total is None)
        yield Text(shown, end="")


def _has_bars(file: TextIO) -> bool:
    """Whether a bar can be drawn on a file: not in a pipe, not in CI, not on a terminal without a cursor."""
    watched = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return file.isatty() and not watched and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _epoch(info: Info) -> str:
    """The epoch that the last batch belongs to, counted from 1, as in "8/40"."""
    return _of_all(info, info.epoch + (not info.ends_epoch))


def _of_all(info: Info, epoch: int) -> str:
    """An epoch, and how many there will be if that is known; as wide as the last one."""
    epochs = next((limit.count for limit in info.limits if limit.unit == "epochs"), None)
    return f"{epoch}" if epochs is None else f"{epoch:>{len(str(epochs))}}/{epochs}"


def _losses(info: Info) -> list[str]:
    """The losses of the last update; a single term is not repeated beside the total."""
    losses = dict(info.losses)
    return _each({"loss": losses["total_loss"]} if len(losses) == 2 and "total_loss" in losses else losses)


def _place(info: Info) -> str:
    return f"batch {info.batch:,}/{info.batches:,}" if info.batches else f"batch {info.batch:,}"


def _rates(info: Info, clock: _Clock) -> str:
    """Samples a second: of all workers together, and of each of several."""
    rate = clock.rate(info) if len(info.rates) < 2 else sum(info.rates)
    text = f"{rate:,.0f} samples/s"
    if tokens := info.per_row.get("tokens_per_s"):
        text += f"  {rate * tokens:,.0f} tokens/s"
    if mfu := info.per_row.get("mfu"):
        text += f"  MFU {rate * mfu:.1%}"
    if len(info.rates) < 2:
        return text
    if len(info.rates) <= WORKERS_SHOWN:
        return f"{text} ({' + '.join(f'{rate:,.0f}' for rate in info.rates)})"
    return f"{text} ({len(info.rates)} workers, {min(info.rates):,.0f} to {max(info.rates):,.0f} each)"


def _shown(row: dict[str, Any]) -> list[str]:
    """The numbers of a report that fit a line: no counters, no single terms, no matrices."""
    return _each({key: value for key, value in row.items() if key.count("/") == 1 or _is_total(key)})


def _is_total(key: str) -> bool:
    """Whether this is the loss or a metric of one of several data sets or outputs, rather than a term of a loss."""
    return key.startswith(("train/", "val/", "test/")) and "/loss/" not in key


def _remaining(info: Info, clock: _Clock) -> list[str]:
    """How long it will go on, if that can be told."""
    remaining_s = clock.remaining_s(info)
    return [] if remaining_s is None else [f"{span(remaining_s)} left"]


def _each(values: dict[str, Any]) -> list[str]:
    return [f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, float)]


def span(seconds: float) -> str:
    """A time as text, such as "3 min 20 s"."""
    seconds = round(seconds, 1) if seconds < 10 else round(seconds)
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
