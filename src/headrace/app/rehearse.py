"""Rehearsals: a recipe on virtual workers, by a strategy; what it reaches, when, and what the network carries."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
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
SHARES = ("computing", "communicating", "idle")


def rehearse(
    recipe: str, strategy: str, *, workers: int, network: Network, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
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
        **{share: sum(worker[f"{share}_s"] for worker in each) / total for share in SHARES},
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
    for _ in chain(made.trainer.steps(made.train, made.val, **fit), [None]):  # and once more at the end
        if rows := made.trainer.history.rows:
            rows[-1].setdefault(TIME, comm.now())
    return made.trainer.history.rows, comm.cluster.report
