"""`headrace rehearse RECIPE`: a recipe on virtual workers, by one strategy after the other."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .parser import UsageError, add_json, count, file_of
from .say import say, tell

EXAMPLE = '"periodic:every=16 steps,weights=equal"'
KINDS = (".pdf", ".png", ".svg")
_COLUMNS = ("train/loss", "val/loss", "time", "updates", "sent each", "computing", "communicating", "idle", "down")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="file.py or file.py:function, which returns a Recipe")
    parser.add_argument("--epochs", type=count, help="passes over the data, instead of the recipe's limits")
    parser.add_argument("--steps", type=count, help="updates of a worker, instead of the recipe's limits")
    parser.add_argument("--workers", type=count, required=True, help="how many virtual workers there are")
    parser.add_argument(
        "--strategy", action="append", required=True, help=f"as in diloco or {EXAMPLE}; for each that is to be tried"
    )
    parser.add_argument("--every", metavar="LENGTH", help='how often losses are looked at, as in "20 steps"')
    network = parser.add_argument_group("the virtual cluster")
    network.add_argument("--bandwidth", default="10 Gbit", help="of every worker's link, a second (10 Gbit)")
    network.add_argument("--latency", default="50 us", help="of every message (50 us)")
    network.add_argument("--rows-per-s", type=float, default=1e5, help="that a worker of speed 1 trains on (1e5)")
    network.add_argument("--speeds", metavar="K=SPEED,...", help="of workers that are slower or quicker: 3=0.5")
    network.add_argument(
        "--stragglers", metavar="K=PART:FACTOR,...", help="slow at times: 3=0.1:5 is five times as long in 10%% of them"
    )
    network.add_argument("--failures", metavar="K=TIME,...", help='when workers die: "3=12.5 s"')
    network.add_argument("--restart", default="30 s", help="until one that has died is back, or never (30 s)")
    network.add_argument("--seed", type=int, default=0, help="of who is slow when (0)")
    parser.add_argument(
        "--out",
        type=file_of(*KINDS),
        default=Path("rehearsal.png"),
        help=f"the picture: {' '.join(KINDS)} (rehearsal.png)",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from ...formats.write import check_place
    from ...workers.named import named
    from .. import picture
    from ..rehearse import rehearse

    check_place(options.out)
    try:
        for name in options.strategy:
            named(name)
    except ConfigError as error:
        raise UsageError("headrace rehearse", str(error)) from None
    network, asked = _network(options), _limits(options)
    if options.every is not None:
        asked |= {"log_every": options.every, "validate_every": options.every}
    for name in {name for name in options.strategy if options.strategy.count(name) > 1}:
        raise UsageError("headrace rehearse", f"--strategy {name!r} is given twice.")
    width, found = max(8, *map(len, options.strategy)), []
    cluster = f"{options.workers} workers, {options.bandwidth}/s, {options.latency}"
    for name in options.strategy:
        found.append(rehearse(options.recipe, name, workers=options.workers, network=network, options=asked))
        if len(found) == 1:
            tell(options, _line("strategy", width, _COLUMNS))
        tell(options, _line(name, width, _cells(found[-1])))
        picture.draw(found, options.out, cluster)  # a later one may fail
    key = picture.key_of(found)
    tell(options, f"\n{key} at virtual seconds")
    for one in found:
        points = _some(one.curve(key))
        tell(options, "  ".join([f"{one.strategy:{width}}", *(f"{loss:.4g} at {time:.4g}" for time, loss in points)]))
    document = {"workers": options.workers, "picture": str(options.out), "strategies": [one.document for one in found]}
    say(options, document, f"\n{options.out}: all of it as a picture")
    return 0


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    """A line of the table."""
    return "  ".join(
        [f"{name:{width}}", *(f"{cell:>{max(9, len(c))}}" for c, cell in zip(_COLUMNS, cells, strict=True))]
    )


def _cells(one: Any) -> list[str]:
    """What a table says of a rehearsal."""
    from ...store import disk

    losses = [one.last("train/loss"), one.last("val/loss")]
    shares = [f"{100 * one.shares[share]:.1f}%" for share in ("computing", "communicating", "idle", "down")]
    numbers = ["-" if loss is None else f"{loss:.4g}" for loss in losses]
    return [*numbers, f"{one.clock_s:.4g} s", f"{one.updates:.6g}", disk.size(one.sent_bytes), *shares]


def _some(points: Sequence[Any], most: int = 6) -> list[Any]:
    """So many points of a curve at most, the first and the last among them."""
    last = len(points) - 1
    return [points[k] for k in sorted({round(last * k / (most - 1)) for k in range(most)})] if points else []


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    given = {"epochs": options.epochs, "steps": options.steps}
    return {name: count for name, count in given.items() if count is not None}


def _network(options: argparse.Namespace) -> Any:
    from ...engines.network import Network

    def slow(text: str) -> tuple[float, float]:
        probability, _, factor = text.partition(":")
        return float(probability), float(factor)

    network = Network(
        bandwidth=options.bandwidth,
        latency=options.latency,
        rows_per_s=options.rows_per_s,
        speeds=dict(_by_worker(options.speeds, "--speeds", float, "3=0.5")),
        stragglers=dict(_by_worker(options.stragglers, "--stragglers", slow, "3=0.1:5")),
        failures=_by_worker(options.failures, "--failures", str, "3=12.5 s"),
        restart=None if options.restart == "never" else options.restart,
        seed=options.seed,
    )
    return network


def _by_worker(text: str | None, option: str, read: Callable[[str], Any], example: str) -> list[tuple[int, Any]]:
    """What is said of some workers, with commas between."""
    try:
        pairs = [part.partition("=") for part in text.split(",")] if text else []
        return [(int(worker), read(value.strip())) for worker, _, value in pairs]
    except ValueError:
        raise ConfigError(f'{option} is written as "{example}", with commas between workers, got {text!r}.') from None
