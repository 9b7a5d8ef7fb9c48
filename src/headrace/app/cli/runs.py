"""`headrace runs [DIR]`: the runs under a directory, in a table."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import RunError
from .parser import add_json
from .say import moment, say, shown, table

DEPTH = 3  # directories below the one that is named


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="where to look (runs)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if not options.where.is_dir():
        raise RunError(f"there is no directory {options.where}. Name one that holds runs.")
    found = [_facts(path) for path in find(options.where)]
    lines = [
        [each["run"], each["state"], str(each["epoch"] or 0), _best(each), shown(each["changed"])] for each in found
    ]
    text = table(["run", "state", "epochs", "best", "last change"], lines)
    say(options, found, text if found else f"{options.where} has no runs")
    return 0


def find(where: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The runs in a directory and in those below it, by name."""
    if (where / "run.json").is_file():
        yield where
    elif depth and os.access(where, os.R_OK | os.X_OK):
        for entry in sorted(where.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from find(entry, depth - 1)


def _facts(path: Path) -> dict[str, Any]:
    """What a table says of a run, in whatever state it is."""
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
        "changed": moment(changed),
    }


def _best(facts: dict[str, Any]) -> str:
    """The best number, by its key."""
    best = facts["best"]
    return "-" if best["value"] is None else f"{best['key']} {best['value']:.4g}"
