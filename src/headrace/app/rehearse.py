"""Rehearsals: a recipe on virtual workers, by a strategy; what it reaches, when, what the network carries; and a
picture of it: loss against virtual time, what was sent, and what workers did with their time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..adapters.adapt import as_data
from ..data.source import Table
from ..engines.launch import launch
from ..engines.local import SimComm
from ..engines.network import Network
from ..errors import ConfigError, HeadraceError
from ..workers.here import here
from ..workers.strategy import Strategy
from .recipe import load_recipe, merged, set_strategy
from .strategies import parse_strategy

TIME = "virtual_s"
"""Of a row of the history: when it was reported, on worker 0's virtual clock."""
COLOURS = {"computing": "#3b7dd8", "communicating": "#e6a23c", "idle": "#c8ccd2"}
SHARES = tuple(COLOURS)
_OWN = ("run", "progress")
"""What a rehearsal settles itself, whatever the recipe passes to `fit`."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result of training a recipe with one strategy."""

    strategy: str
    rows: list[Row]
    """What was reported, and when."""
    workers: list[dict[str, Any]]
    """What each worker has done with its time, in virtual seconds."""
    clock_s: float

    def curve(self, key: str) -> list[tuple[float, float]]:
        """A number against virtual seconds."""
        return [(row[TIME], row[key]) for row in self.rows if key in row]

    def last(self, key: str) -> float | None:
        """The last value that was reported, if there is any."""
        return next((row[key] for row in reversed(self.rows) if key in row), None)

    @property
    def updates(self) -> float:
        """Updates of a worker, on average: without a barrier they differ."""
        return self._mean("updates")

    @property
    def sent_bytes(self) -> float:
        """By a worker, in the mean."""
        return self._mean("sent_bytes")

    @property
    def shares(self) -> dict[str, float]:
        """What part of all workers' time was spent on what."""
        whole = sum(worker["clock_s"] for worker in self.workers) or 1.0
        return {share: sum(worker[f"{share}_s"] for worker in self.workers) / whole for share in SHARES}

    @property
    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "strategy": self.strategy,
            "train/loss": self.last("train/loss"),
            "val/loss": self.last("val/loss"),
            TIME: self.clock_s,
            "updates": self.updates,
            "sent_bytes": self.sent_bytes,
            **self.shares,
            "rows": self.rows,
            "workers": self.workers,
        }

    def _mean(self, what: str) -> float:
        return float(sum(worker[what] for worker in self.workers) / len(self.workers))


def rehearse(
    recipe: str, strategy: str, *, workers: int, network: Network, options: Mapping[str, Any] | None = None
) -> Rehearsal:
    """Trains the recipe of a file on virtual workers, with a strategy given by name.

    `options` go before those that the recipe passes to `fit`; a limit among them replaces all of the recipe's. Nothing
    is kept.
    """
    by = parse_strategy(strategy)
    try:
        rows, report = launch(perform, recipe, by, options or {}, workers=workers, network=network)
    except HeadraceError as error:
        error.args = (f"{strategy}: {error}",)
        raise
    found = report()
    return Rehearsal(strategy, rows, found["workers"], found["clock_s"])


def perform(recipe: str, strategy: Strategy, options: Mapping[str, Any]) -> tuple[list[Row], Callable[[], Any]]:
    """Trains in a virtual worker; the reported rows, and a function for the use of time at the end."""
    made, comm = load_recipe(recipe), here()
    assert isinstance(comm, SimComm)
    _check_rows(made.train, comm.count)
    set_strategy(made.trainer, strategy)
    for _ in made.trainer.steps(made.train, made.val, **_options(made.fit, options)):
        _note(made.trainer.history.rows, comm)
    _note(made.trainer.history.rows, comm)
    return made.trainer.history.rows, comm.cluster.report


def _note(rows: list[Row], comm: SimComm) -> None:
    """Writes down when a row was reported; in the history, where it stays when a training is taken up again."""
    if rows and TIME not in rows[-1]:
        rows[-1][TIME] = comm.now()


def _options(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """What to pass to `steps`."""
    found = merged({name: value for name, value in own.items() if name not in _OWN}, asked)
    if found.get("minutes") is not None:
        raise ConfigError("the recipe ends after some minutes, which virtual workers know nothing of. Say --epochs.")
    return found


def _check_rows(train: Any, workers: int) -> None:
    data = as_data(train)
    if isinstance(data, Table) and len(data) < workers:
        raise ConfigError(f"{workers} workers for {len(data)} rows of training data: some would have nothing to do.")


# --- the picture -------------------------------------------------------------------------------------------


def key_of(found: Sequence[Rehearsal]) -> str:
    """The loss to compare by: of the validation, if there is one."""
    return "val/loss" if any(one.curve("val/loss") for one in found) else "train/loss"


def draw(found: Sequence[Rehearsal], out: Path, title: str) -> None:
    """Draws one line for each strategy, and bars below in the same colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5 + 0.3 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subplot_mosaic([["loss", "loss"], ["sent", "time"]], height_ratios=[3, 0.6 + 0.25 * len(found)])
    colours = _lines(parts["loss"], found, key_of(found), title)
    names = [one.strategy for one in found]
    parts["sent"].barh(names, [one.sent_bytes / 1e6 for one in found], color=colours)
    parts["sent"].set_xlabel("MB sent by a worker")
    before = [0.0] * len(found)
    for share in SHARES:
        widths = [100 * one.shares[share] for one in found]
        parts["time"].barh(names, widths, left=before, color=COLOURS[share], label=share)
        before = [start + width for start, width in zip(before, widths, strict=True)]
    parts["time"].set_xlabel("% of the workers' time")
    parts["time"].set_yticks([])
    parts["time"].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize="small", frameon=False)
    for part in (parts["sent"], parts["time"]):
        part.invert_yaxis()  # the first on top
    figure.savefig(out, dpi=120)


def _lines(axes: Any, found: Sequence[Rehearsal], key: str, title: str) -> list[Any]:
    """The curves; the colour of each."""
    colours = []
    for one in found:
        curve = one.curve(key)
        (line,) = axes.plot(
            [time for time, _ in curve], [loss for _, loss in curve], marker=".", label=one.strategy, alpha=0.85
        )
        colours.append(line.get_color())
    axes.set(xlabel="virtual seconds", ylabel=key, title=title)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return colours
