"""`headrace board RUN...`: runs in TensorBoard, on this machine alone, until Ctrl-C."""

import argparse
import signal
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ...errors import ConfigError, RunError
from .runs import find
from .say import put

HOST = "127.0.0.1"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs, or directories that hold some")
    parser.add_argument("--port", type=int, default=0, help="of the page (any that is free)")


def run(options: argparse.Namespace) -> int:
    curves = _curves(options.runs)
    with tempfile.TemporaryDirectory(prefix="headrace-board-") as room:
        for name, folder in curves.items():
            link = Path(room) / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder.absolute(), target_is_directory=True)
        url = _served(Path(room), options.port)
        put(f"{url} shows {', '.join(curves)}; Ctrl-C ends it\n")
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        signal.signal(signal.SIGTERM, before)
    return 0


def _curves(runs: Iterable[Path]) -> dict[str, Path]:
    """What TensorBoard reads, by the name of the run."""
    found: dict[str, Path] = {}
    for where in runs:
        if not where.is_dir():
            raise RunError(f"there is no run {where}.")
        for run in find(where):
            name = run.absolute().name
            name = name if name not in found else str(run.absolute()).strip("/")
            found |= {name: run / "tb"} if (run / "tb").is_dir() else {}
    if not found:
        raise RunError(f"{', '.join(map(str, runs))} has no curves for TensorBoard: no run there has tb/.")
    return found


def _served(room: Path, port: int) -> str:
    """Starts TensorBoard in a thread; its address."""
    from tensorboard import program

    board = program.TensorBoard()
    try:
        board.configure(
            argv=["tensorboard", "--logdir", str(room), "--host", HOST, "--port", str(port), "--load_fast=false"]
        )
        return str(board.launch())
    except program.TensorBoardServerException as error:
        raise ConfigError(f"TensorBoard cannot start: {error} Name another --port.") from None
