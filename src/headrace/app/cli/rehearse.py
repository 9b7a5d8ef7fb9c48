"""`headrace rehearse RECIPE`: a recipe on virtual workers, by one strategy after the other."""

from typing import Annotated, Any

from .options import OF_STRATEGIES, Count
from .output import print_result, table

_COLUMNS = ("train/loss", "val/loss", "time", "updates", "sent each", "computing", "communicating", "idle")


def rehearse(
    recipe: str,
    /,
    *,
    workers: Count,
    strategy: Annotated[tuple[str, ...], OF_STRATEGIES],
    epochs: Count | None = None,
    steps: Count | None = None,
    every: str | None = None,
    bandwidth: str = "10 Gbit",
    latency: str = "50 us",
    rows_per_s: float = 1e5,
    json: bool = False,
) -> int:
    """Trains a recipe on virtual workers, by one strategy after the other.

    Args:
        recipe: file.py or file.py:function, which returns a Recipe
        workers: how many virtual workers there are
        strategy: as in diloco or "periodic:every=16 steps,weights=equal"; for each that is to be tried
        epochs: passes over the data, instead of the recipe's limits
        steps: updates of a worker, instead of the recipe's limits
        every: how often losses are looked at, as in "20 steps"
        bandwidth: of every worker's link, a second, as in 100 Mbit or 12 MB
        latency: of every message
        rows_per_s: that a worker of speed 1 trains on
        json: print JSON, with the reports of each strategy, for a program to read
    """
    from ...engines.network import Network
    from .. import rehearse as rehearsals

    network = Network(bandwidth=bandwidth, latency=latency, rows_per_s=rows_per_s)
    limits = {"epochs": epochs, "steps": steps, "log_every": every, "validate_every": every}
    asked = {name: value for name, value in limits.items() if value is not None}
    found: list[dict[str, Any]] = []
    try:
        for name in dict.fromkeys(strategy):
            found.append(rehearsals.rehearse(recipe, name, workers=workers, network=network, options=asked))
    finally:  # one may fail, and those before it are worth their time
        if found:
            text = table(("strategy", *_COLUMNS), [_line(each) for each in found])
            print_result(json, {"workers": workers, "strategies": found}, text)
    return 0


def _line(one: dict[str, Any]) -> list[str]:
    from ...store import disk

    losses = ["-" if loss is None else f"{loss:.4g}" for loss in (one["train/loss"], one["val/loss"])]
    use = [f"{one['virtual_s']:.4g} s", f"{one['updates']:.6g}", disk.size(one["sent_bytes"])]
    return [one["strategy"], *losses, *use, *(f"{100 * one[share]:.1f}%" for share in _COLUMNS[-3:])]
