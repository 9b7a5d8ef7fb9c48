"""What looks at runs: `runs`, `report` and `board`."""

import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import ConfigError, RunError
from .options import check_ending
from .output import iso_time, print_line, print_result, short_time, table

DEPTH = 3  # directories below the one that is named
HOST = "127.0.0.1"


def runs(dir: Path = Path("runs"), *, json: bool = False) -> int:
    """Lists the runs in a directory.

    Args:
        dir: where to look
    """
    from ...store.disk import run_path

    if not run_path(dir).is_dir():
        raise RunError(f"there is no directory {dir}. Name one that holds runs.")
    found = [_facts(path) for path in _runs_in(dir)]
    lines = [
        [each["run"], each["state"], str(each["epoch"] or 0), _best(each), short_time(each["changed"])]
        for each in found
    ]
    text = table(["run", "state", "epochs", "best", "last change"], lines)
    print_result(json, found, text if found else f"{dir} has no runs")
    return 0


def _runs_in(where: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The runs in a directory and in those below it, by name."""
    if (where / "run.json").is_file():
        yield where
    elif depth and os.access(where, os.R_OK | os.X_OK):
        for entry in sorted(where.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _runs_in(entry, depth - 1)


def _facts(path: Path) -> dict[str, Any]:
    """What a table shows of a run, in whatever state it is."""
    from ...watch.report.read import read

    found = read(path)
    best, last = found.best_row or {}, found.rows[-1] if found.rows else {}
    key = next((key for key in [*found.best, "val/loss", "train/loss"] if key in best and key != "step"), "")
    changed = max(
        file.stat().st_mtime for file in [path / "run.json", *path.glob("*.jsonl"), *path.glob("checkpoints")]
    )
    return {
        "run": str(path),
        "state": found.status[0],
        "why": found.status[1],
        "epoch": last.get("epoch"),
        "step": last.get("step"),
        "best": {"key": key, "value": best.get(key), "step": best.get("step")},
        "changed": iso_time(changed),
    }


def _best(facts: dict[str, Any]) -> str:
    """The best number, by its key."""
    best = facts["best"]
    return "-" if best["value"] is None else f"{best['key']} {best['value']:.4g}"


def report(run: Path, *, out: Path | None = None, pictures: bool = False, json: bool = False) -> int:
    """Writes a run as one page that needs nothing but itself.

    Args:
        out: the page (RUN/report.html)
        pictures: the curves as PNG, too, in RUN/report
    """
    if out is not None:
        check_ending(out, (".html",), "--out")
    from ...watch.report import write

    page = write(run, out, pictures)
    drawn = str(run / "report") if pictures else None
    text = f"{page}: open it in a browser" + (f"\n{drawn}: the curves as pictures" if drawn else "")
    print_result(json, {"report": str(page), "pictures": drawn}, text)
    return 0


def board(runs: tuple[Path, ...], *, port: int = 0) -> int:
    """Shows runs in TensorBoard, on this machine alone, until Ctrl-C.

    Args:
        runs: runs, or directories that hold some
        port: of the page (any that is free)
    """
    curves = _curves(runs)
    with tempfile.TemporaryDirectory(prefix="headrace-board-") as room:
        for name, folder in curves.items():
            link = Path(room) / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder.absolute(), target_is_directory=True)
        url = _served(Path(room), port)
        print_line(f"{url} shows {', '.join(curves)}; Ctrl-C ends it")
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        signal.signal(signal.SIGTERM, before)
    return 0


def _curves(runs: Iterable[Path]) -> dict[str, Path]:
    """What TensorBoard reads, by the name of the run."""
    from ...store.disk import run_path

    found: dict[str, Path] = {}
    for where in runs:
        if not run_path(where).is_dir():
            raise RunError(f"there is no run {where}.")
        for run in _runs_in(where):
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
