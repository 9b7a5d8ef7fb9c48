"""`headrace rehearse RECIPE`: a recipe on virtual workers, by one strategy after the other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .options import Count, UsageError, check_ending
from .output import print_line, print_result

KINDS = (".pdf", ".png", ".svg")
_COLUMNS = ("train/loss", "val/loss", "time", "updates", "sent each", "computing", "communicating", "idle")


def rehearse(
    recipe: str,
    /,
    *,
    workers: Count,
    strategy: tuple[str, ...],
    epochs: Count | None = None,
    steps: Count | None = None,
    every: str | None = None,
    bandwidth: str = "10 Gbit",
    latency: str = "50 us",
    rows_per_s: float = 1e5,
    speeds: str | None = None,
    stragglers: str | None = None,
    seed: int = 0,
    out: Path = Path("rehearsal.png"),
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
        bandwidth: of every worker's link, a second; Mbit, Mb and Mbps are bits, MB and MiB bytes
        latency: of every message
        rows_per_s: that a worker of speed 1 trains on
        speeds: of workers that are slower or quicker, as in 3=0.5, with commas between
        stragglers: slow at times, as in 3=0.1:5, which is five times as long in 10% of them
        seed: of who is slow when
        out: the picture: .pdf .png .svg
        json: print JSON, for a program to read
    """
    check_ending(out, KINDS, "--out")
    from ...engines.network import Network
    from ...formats.write import check_place
    from .. import rehearse as rehearsals

    check_place(out)
    _check_strategies(strategy)
    network = Network(
        bandwidth=bandwidth,
        latency=latency,
        rows_per_s=rows_per_s,
        speeds=dict(_by_worker(speeds, "--speeds", float, "3=0.5")),
        stragglers=dict(_by_worker(stragglers, "--stragglers", _slow, "3=0.1:5")),
        seed=seed,
    )
    limits = {"epochs": epochs, "steps": steps, "log_every": every, "validate_every": every}
    asked = {name: value for name, value in limits.items() if value is not None}
    width, found = max(8, *map(len, strategy)), []
    for name in strategy:
        found.append(rehearsals.rehearse(recipe, name, workers=workers, network=network, options=asked))
        if not json:
            lines = [] if len(found) > 1 else [_line("strategy", width, _COLUMNS)]
            print_line("\n".join([*lines, _line(name, width, _cells(found[-1]))]))
        rehearsals.draw(found, out, f"{workers} workers, {bandwidth}/s, {latency}")  # a later one may fail
    key = rehearsals.key_of(found)
    lines = [f"\n{key} at virtual seconds"]
    for one in found:
        points = (f"{loss:.4g} at {time:.4g}" for time, loss in _some(one.curve(key)))
        lines.append("  ".join([f"{one.strategy:{width}}", *points]))
    document = {"workers": workers, "picture": str(out), "strategies": [one.document for one in found]}
    print_result(json, document, "\n".join([*lines, f"\n{out}: all of it as a picture"]))
    return 0


def _check_strategies(names: Sequence[str]) -> None:
    from ..strategies import parse_strategy

    try:
        for name in names:
            parse_strategy(name)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--strategy {twice[0]!r} is given twice.")


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    """A line of the table."""
    return "  ".join(
        [f"{name:{width}}", *(f"{cell:>{max(9, len(c))}}" for c, cell in zip(_COLUMNS, cells, strict=True))]
    )


def _cells(one: Any) -> list[str]:
    """What a table shows of a rehearsal."""
    from ...store import disk

    losses = [one.last("train/loss"), one.last("val/loss")]
    shares = [f"{100 * one.shares[share]:.1f}%" for share in ("computing", "communicating", "idle")]
    numbers = ["-" if loss is None else f"{loss:.4g}" for loss in losses]
    return [*numbers, f"{one.clock_s:.4g} s", f"{one.updates:.6g}", disk.size(one.sent_bytes), *shares]


def _some(points: Sequence[Any], most: int = 6) -> list[Any]:
    """At most so many points of a curve, the first and the last among them."""
    last = len(points) - 1
    return [points[k] for k in sorted({round(last * k / (most - 1)) for k in range(most)})] if points else []


def _slow(text: str) -> tuple[float, float]:
    probability, _, factor = text.partition(":")
    return float(probability), float(factor)


def _by_worker(text: str | None, option: str, read: Callable[[str], Any], example: str) -> list[tuple[int, Any]]:
    """A value for each of some workers, with commas between."""
    try:
        pairs = [part.partition("=") for part in text.split(",")] if text else []
        return [(int(worker), read(value.strip())) for worker, _, value in pairs]
    except ValueError:
        raise ConfigError(f'{option} is written as "{example}", with commas between workers, got {text!r}.') from None
