"""A line at the foot of a terminal that is drawn again and again, below whatever else is printed meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

LEAST, MOST = 10, 40  # columns of the bar itself


class Bar:
    """Shows how far something is; `close` clears it away, and lines that were printed above it stay."""

    def __init__(self, file: TextIO) -> None:
        self._live = Live(
            console=_Steady(file=file, soft_wrap=True, highlight=False, markup=False, emoji=False, force_jupyter=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe is none of the terminal's business
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def show(self, head: str, done: int, total: int | None, pieces: Sequence[str]) -> None:
        """Draws `done` of `total`, and as many of the pieces as fit; those that matter most come first."""
        self._live.update(_Line(head, done, total, pieces), refresh=True)

    def print(self, text: str) -> None:
        """A line above the bar."""
        self._live.console.print(text)

    def close(self) -> None:
        self._live.stop()


class _Steady(Console):
    """Leaves the cursor as it is, so that nobody has to bring it back who is killed, and minds no closed terminal."""

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def on_broken_pipe(self) -> None:
        self.quiet = True


class _Line:
    """One line, laid out for the width that the terminal has when it is drawn."""

    def __init__(self, head: str, done: int, total: int | None, pieces: Sequence[str]) -> None:
        self._head, self._done, self._total, self._pieces = head, done, total, pieces

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
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
