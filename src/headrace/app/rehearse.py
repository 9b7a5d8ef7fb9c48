"""Rehearsals: a recipe on virtual workers, by a strategy; what it reaches, when, and what the network carries."""

from collections.abc import Callable, Mapping, Sequence
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
"""The key of the virtual seconds of worker 0 at a report, and at the end."""
COLOURS = {"computing": "#3b7dd8", "communicating": "#e6a23c", "idle": "#c8ccd2"}
Rehearsal = dict[str, Any]


def rehearse(
    recipe: str, strategy: str, *, workers: int, network: Network, options: Mapping[str, Any] | None = None
) -> Rehearsal:
    """Trains the recipe of a file on virtual workers, with a strategy given by name; the result as plain values.

    These are the last losses, the virtual seconds, the updates and bytes of a worker on average, the shares of the
    workers' time, and under "rows" and "workers" the reports and the times of each worker. `options` override those
    that the recipe passes to `fit`; a limit among them replaces all of the recipe's. No run is written.
    """
    by = parse_strategy(strategy)
    try:
        rows, report = launch(_train, recipe, by, options or {}, workers=workers, network=network)
    except HeadraceError as error:
        error.args = (f"{strategy}: {error}",)
        raise
    found = report()
    each = found["workers"]
    total = sum(worker["clock_s"] for worker in each) or 1.0
    return {
        "strategy": strategy,
        **{key: next((row[key] for row in reversed(rows) if key in row), None) for key in ("train/loss", "val/loss")},
        TIME: found["clock_s"],
        **{key: sum(worker[key] for worker in each) / len(each) for key in ("updates", "sent_bytes")},
        **{share: sum(worker[f"{share}_s"] for worker in each) / total for share in COLOURS},
        "rows": rows,
        "workers": each,
    }


def _train(recipe: str, strategy: Strategy, options: Mapping[str, Any]) -> tuple[Sequence[Any], Callable[[], Any]]:
    """Trains in a virtual worker; the reported rows, and a function that gives the use of time at the end."""
    made, comm = load_recipe(recipe).open_data(), here()
    assert isinstance(comm, SimComm)
    data = as_data(made.train)
    if isinstance(data, Table) and len(data) < comm.count:
        raise ConfigError(f"{comm.count} workers for {len(data)} rows of training data: some would have no rows.")
    fit = merged({name: value for name, value in made.fit.items() if name not in ("run", "progress")}, options)
    if fit.get("minutes") is not None:
        raise ConfigError("the recipe ends after some minutes, which virtual workers cannot measure. Say --epochs.")
    set_strategy(made.trainer, strategy)
    rows = made.trainer.history.rows
    for _ in made.trainer.steps(made.train, made.val, **fit):
        rows = made.trainer.history.rows
        if rows:
            rows[-1].setdefault(TIME, comm.now())
    if rows:
        rows[-1].setdefault(TIME, comm.now())
    return made.trainer.history.rows, comm.cluster.report


def draw(found: Sequence[Rehearsal], out: Path, title: str) -> None:
    """Draws the loss of each strategy against virtual time, and below it bytes and time as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5 + 0.3 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subplot_mosaic([["loss", "loss"], ["sent", "time"]], height_ratios=[3, 0.6 + 0.25 * len(found)])
    loss, sent, time = parts["loss"], parts["sent"], parts["time"]
    key = "val/loss" if any(one["val/loss"] is not None for one in found) else "train/loss"
    for k, one in enumerate(found):
        curve = [(row[TIME], row[key]) for row in one["rows"] if key in row and TIME in row]
        loss.plot(*zip(*curve, strict=True), marker=".", label=one["strategy"], alpha=0.85)
        sent.barh(one["strategy"], one["sent_bytes"] / 1e6, color=f"C{k}")
        before = 0.0
        for share, colour in COLOURS.items():
            width = 100 * one[share]
            time.barh(one["strategy"], width, left=before, color=colour, label=None if k else share)
            before += width
    loss.set(xlabel="virtual seconds", ylabel=key, title=title)
    loss.set_xlim(left=0)
    loss.grid(alpha=0.3)
    loss.legend()
    sent.set_xlabel("MB sent by a worker")
    time.set_xlabel("% of the workers' time")
    time.set_yticks([])
    time.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize="small", frameon=False)
    for part in (sent, time):
        part.invert_yaxis()  # the first on top
    figure.savefig(out, dpi=120)
