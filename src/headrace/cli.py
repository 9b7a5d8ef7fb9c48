"""The command line: `headrace fit|rehearse RECIPE`, `checkpoint list|verify|export RUN`, `convert IN OUT`.

Exit status: 0 if all is well, 1 if something was found wrong or could not be done, 2 for a command that makes no sense.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import disk
from .batch import Stream
from .checkpoint import Store
from .checkpoint.contents import TRAINER
from .comm import here
from .errors import CheckpointError, ConfigError, HeadraceError, RunError, unknown
from .export import FORMATS, export
from .run import CHECKPOINTS, run_id

_EXAMPLE = '"periodic:every=16 steps,weights=equal"'
_COLUMNS = ("train/loss", "val/loss", "time", "updates", "sent each", "computing", "communicating", "idle", "down")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except HeadraceError as error:
        _say(options, {"error": str(error), "kind": type(error).__name__}, f"headrace: {error}", file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    """Names the nearest of the choices that there are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, unknown(str(action.metavar or action.dest), value, action.choices))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help lists what there is.)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="headrace", description="Trains PyTorch models.")
    commands = parser.add_subparsers(metavar="command", required=True)
    checkpoint = commands.add_parser("checkpoint", help="what a run has saved")
    actions = checkpoint.add_subparsers(metavar="action", required=True)
    listing = actions.add_parser("list", help="the checkpoints of a run")
    listing.set_defaults(command=_list)
    verifying = actions.add_parser("verify", help="whether every byte of them is as it was written")
    verifying.set_defaults(command=_verify)
    exporting = actions.add_parser("export", help="the weights of one, for other programs")
    exporting.set_defaults(command=_export)
    for action in (listing, verifying, exporting):
        action.add_argument("run", type=Path, metavar="RUN", help="the directory of the run")
        action.add_argument("--json", action="store_true", help="print JSON, for a program to read")
    exporting.add_argument("--out", type=Path, help="the file to write (RUN/model.safetensors, .onnx or .pt2)")
    exporting.add_argument(
        "--to", default="safetensors", choices=list(FORMATS), metavar="FORMAT", help="|".join(FORMATS)
    )
    exporting.add_argument("--which", type=_which, default="best", help="best, last or a step (best, if there is one)")
    exporting.add_argument("--recipe", help="file.py or file.py:function, which makes the model (onnx and torch)")
    _add_fit(commands)
    _add_rehearse(commands)
    converting = commands.add_parser("convert", help="data files into a file of another kind")
    converting.set_defaults(command=_convert)
    converting.add_argument(
        "data", nargs="+", metavar="IN", help="files, globs or URLs: .npy .npz .arrow .parquet .csv .ctf"
    )
    converting.add_argument("out", type=Path, metavar="OUT", help="the file to write: .arrow .parquet .npz .ctf")
    converting.add_argument(
        "--stream",
        action="append",
        default=[],
        metavar="STREAM",
        help='a stream of a .ctf file, as in "words 1000 sparse sequence" or "image 28x28 uint8"; for each of them',
    )
    converting.add_argument("--skip-bad-rows", action="store_true", help="leave out what cannot be read of a .ctf file")
    converting.add_argument("--json", action="store_true", help="print JSON, for a program to read")
    return parser


def _add_fit(commands: Any) -> None:
    fitting = commands.add_parser("fit", help="trains a recipe, with one worker or several")
    fitting.set_defaults(command=_fit)
    _add_recipe(fitting)
    fitting.add_argument("--workers", type=int, default=1, help="how many workers train it (1)")
    fitting.add_argument("--engine", default="local", help="where they are: local|processes|ray (local)")
    fitting.add_argument("--strategy", help="how they make one model, as in diloco or " + _EXAMPLE)
    fitting.add_argument("--run", type=Path, metavar="DIR", help="the directory in which the training survives")


def _add_rehearse(commands: Any) -> None:
    rehearsing = commands.add_parser("rehearse", help="a recipe on virtual workers, by one strategy after the other")
    rehearsing.set_defaults(command=_rehearse)
    _add_recipe(rehearsing)
    rehearsing.add_argument("--workers", type=int, required=True, help="how many virtual workers there are")
    rehearsing.add_argument(
        "--strategy", action="append", required=True, help=f"as in diloco or {_EXAMPLE}; for each that is to be tried"
    )
    rehearsing.add_argument("--every", metavar="LENGTH", help='how often losses are looked at, as in "20 steps"')
    network = rehearsing.add_argument_group("the virtual cluster")
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
    rehearsing.add_argument("--out", type=Path, default=Path("rehearsal.png"), help="the picture (rehearsal.png)")


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="file.py or file.py:function, which returns a Recipe")
    parser.add_argument("--epochs", type=int, help="passes over the data, instead of the recipe's limits")
    parser.add_argument("--steps", type=int, help="updates of a worker, instead of the recipe's limits")
    parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")


def _fit(options: argparse.Namespace) -> int:
    from .engine import launch
    from .recipe import located, run_recipe
    from .strategy.named import named

    asked = _limits(options) | ({} if options.run is None else {"run": str(options.run)})
    if options.json:
        asked["progress"] = False
    strategy = None if options.strategy is None else named(options.strategy)
    recipe = located(options.recipe)
    last = launch(run_recipe, recipe, strategy, asked, workers=options.workers, engine=options.engine)
    if here().leader:  # under torchrun, this is one of the workers
        _say(options, last, "\n".join(f"{key}  {value}" for key, value in last.items()))
    return 0


def _rehearse(options: argparse.Namespace) -> int:
    from . import picture
    from .rehearse import rehearse
    from .strategy.named import named

    picture.check(options.out)
    network, asked = _network(options), _limits(options)
    if options.every is not None:
        asked |= {"log_every": options.every, "validate_every": options.every}
    for name in {name for name in options.strategy if options.strategy.count(name) > 1}:
        raise ConfigError(f"--strategy {name!r} is given twice.")
    for name in options.strategy:
        named(name)  # before any work is done
    width, found = max(8, *map(len, options.strategy)), []
    cluster = f"{options.workers} workers, {options.bandwidth}/s, {options.latency}"
    for name in options.strategy:
        found.append(rehearse(options.recipe, name, workers=options.workers, network=network, options=asked))
        if len(found) == 1:
            _tell(options, _line("strategy", width, _COLUMNS))
        _tell(options, _line(name, width, _cells(found[-1])))
        picture.draw(found, options.out, cluster)  # a later one may fail
    key = picture.key_of(found)
    _tell(options, f"\n{key} at virtual seconds")
    for one in found:
        points = _some(one.curve(key))
        _tell(options, "  ".join([f"{one.strategy:{width}}", *(f"{loss:.4g} at {time:.4g}" for time, loss in points)]))
    document = {"workers": options.workers, "picture": str(options.out), "strategies": [one.document for one in found]}
    _say(options, document, f"\n{options.out}: all of it as a picture")
    return 0


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    """A line of the table."""
    return "  ".join(
        [f"{name:{width}}", *(f"{cell:>{max(9, len(c))}}" for c, cell in zip(_COLUMNS, cells, strict=True))]
    )


def _cells(one: Any) -> list[str]:
    """What a table says of a rehearsal."""
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
    from .engine import Network

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


def _convert(options: argparse.Namespace) -> int:
    from .data.files import open_table, write_table

    streams = [_stream(text) for text in options.stream] or None
    data = options.data if len(options.data) > 1 else options.data[0]
    table = open_table(data, streams=streams, bad_rows="skip" if options.skip_bad_rows else "stop")
    write_table(table, options.out)
    document = {"file": str(options.out), "rows": len(table), "streams": list(map(str, table.streams))}
    _say(options, document, f"{options.out}: {len(table)} rows of {', '.join(map(str, table.streams))}")
    return 0


def _stream(text: str) -> Stream:
    """A stream as the command line has it: its name, then its shape, dtype, "sparse", "sequence" in any order."""
    name, *words = text.split() or [""]
    if not name:
        raise ConfigError('--stream "": name the stream, as in "words 1000 sparse sequence".')
    try:
        shape = tuple(int(size) for word in words if word[0].isdigit() for size in word.split("x"))
    except ValueError:
        raise ConfigError(f"--stream {text!r}: a shape is written as 100 or 28x28.") from None
    kinds = [word for word in words if not word[0].isdigit() and word not in ("sparse", "sequence")]
    if len(kinds) > 1:
        raise ConfigError(f"--stream {text!r}: expected one dtype at most, got {' and '.join(kinds)}.")
    layout: Any = "sparse" if "sparse" in words else "dense"
    return Stream(name, shape, kinds[0] if kinds else "float32", layout, "sequence" in words)


def _list(options: argparse.Namespace) -> int:
    store = _store(options.run)
    found = []
    for step in store.steps():
        facts = _facts(store, step)
        if not facts["note"] or step in store.steps():  # else: whoever is at work in the run has let it go meanwhile
            found.append(facts)
    lines = [f"{entry['name']}  {disk.size(entry['bytes']):>8}  {entry['written']}  {entry['note']}" for entry in found]
    _say(options, found, "\n".join(lines) or f"{options.run} has no checkpoints")
    return 0


def _verify(options: argparse.Namespace) -> int:
    store = _store(options.run)
    problems, steps = {}, store.steps()
    for step in list(steps):
        try:
            store.verify(step)
        except CheckpointError as error:
            if step in store.steps():
                problems[step] = str(error)
            else:  # whoever is at work in the run has let it go meanwhile
                steps.remove(step)
    found = [{"step": step, "sound": step not in problems, "problem": problems.get(step)} for step in steps]
    lines = [f"{store.at(step).name}  {problems.get(step, 'sound')}" for step in steps]
    _say(options, found, "\n".join(lines) or f"{options.run} has no checkpoints")
    return 1 if problems or not steps else 0


def _export(options: argparse.Namespace) -> int:
    out = options.out or options.run / f"model{FORMATS[options.to]}"
    which = options.which
    if which == "best" and not _has_best(options.run):
        which = "last"
    step = export(options.run, out, to=options.to, which=which, recipe=options.recipe)
    _say(options, {"file": str(out), "step": step}, f"{out}: the weights of step {step}")
    return 0


def _store(run: Path) -> Store:
    if not run.is_dir():
        raise RunError(f"there is no run {run}.")
    return Store(run / CHECKPOINTS, run_id(run))


def _has_best(run: Path) -> bool:
    newest = _store(run).newest(lambda name: name == TRAINER)
    return newest is not None and newest.documents[TRAINER].get("best") is not None


def _facts(store: Store, step: int) -> dict[str, Any]:
    """What a list shows of a checkpoint, from its manifest alone."""
    path = store.at(step)
    facts = {"step": step, "name": path.name, "bytes": 0, "written": "", "note": ""}
    try:
        manifest = store.manifest(step)
        facts["bytes"] = sum(written.size for written in manifest.files)
        facts["written"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
    except (CheckpointError, OSError) as error:
        facts["note"] = f"not usable: {error}"
    return facts


def _which(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _tell(options: argparse.Namespace, line: str) -> None:
    """A line on the way, for people."""
    if not options.json:
        print(line, flush=True)


def _say(options: argparse.Namespace, document: Any, text: str, file: Any = None) -> None:
    print(json.dumps(document) if options.json else text, file=file)
