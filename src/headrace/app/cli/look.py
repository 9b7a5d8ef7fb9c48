"""What looks at runs: `runs` and `report`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import RunError
from .options import check_ending
from .output import iso_time, print_result, short_time, table

DEPTH = 3  # directories below the one that is named


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
