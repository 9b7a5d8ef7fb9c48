"""`headrace rehearse RECIPE`: a recipe on virtual workers, by one strategy after the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from .options import OF_STRATEGIES, Count, of_kind
from .output import print_line, print_result

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
    out: Annotated[Path, of_kind(".pdf", ".png", ".svg")] = Path("rehearsal.png"),
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
        out: the picture: .pdf .png .svg
        json: print JSON, for a program to read
    """
    from ...engines.network import Network
    from ...formats.write import check_place
    from .. import rehearse as rehearsals

    check_place(out)
    strategy = tuple(dict.fromkeys(strategy))
    network = Network(bandwidth=bandwidth, latency=latency, rows_per_s=rows_per_s)
    limits = {"epochs": epochs, "steps": steps, "log_every": every, "validate_every": every}
    asked = {name: value for name, value in limits.items() if value is not None}
    found: list[dict[str, Any]] = []
    for name in strategy:
        found.append(rehearsals.rehearse(recipe, name, workers=workers, network=network, options=asked))
        if not json:
            lines = _table(found, strategy)
            print_line("\n".join(lines if len(found) == 1 else lines[-1:]))
        rehearsals.draw(found, out, f"{workers} workers, {bandwidth}/s, {latency}")  # a later one may fail
    document = {"workers": workers, "picture": str(out), "strategies": found}
    print_result(json, document, f"\n{out}: loss, bytes and time as a picture")
    return 0


def _table(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """A line for each strategy, under a head. The columns are as wide as `names` and the numbers need."""
    from ...store import disk

    width = max(8, *map(len, names))
    lines = ["  ".join([f"{'strategy':{width}}", *(f"{name:>{max(9, len(name))}}" for name in _COLUMNS)])]
    for one in found:
        losses = [one["train/loss"], one["val/loss"]]
        cells = ["-" if loss is None else f"{loss:.4g}" for loss in losses]
        cells += [f"{one['virtual_s']:.4g} s", f"{one['updates']:.6g}", disk.size(one["sent_bytes"])]
        cells += [f"{100 * one[share]:.1f}%" for share in _COLUMNS[-3:]]
        padded = (f"{cell:>{max(9, len(name))}}" for cell, name in zip(cells, _COLUMNS, strict=True))
        lines.append("  ".join([f"{one['strategy']:{width}}", *padded]))
    return lines
