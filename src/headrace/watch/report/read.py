"""Reads a run's directory for the report; what cannot be read is listed, not raised."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...store import disk
from ...store.document import COUNTERS, LARGE_BYTES, SMALL_BYTES, Row, read_document, read_row
from ...store.named import run_path
from ...store.place import WHY, Place
from ..rows import best_of, by_step, number, was_interrupted
from ..tensorboard import NEWEST, PICTURES

BEGINS = ("started", "going on from step")
BAD = ("warning", "overridden:", "ended by", "refused", "cannot", "could not", "failed", "not finite", "left out")
"""Words in lines of the log that somebody should look at."""


@dataclass(slots=True)
class SavedCheckpoint:
    """A checkpoint, as its manifest describes it."""

    step: int
    nbytes: int
    written_at: float
    """Seconds since 1970."""
    is_complete: bool = True
    """Whether its manifest can be read, and it has been committed."""


@dataclass(slots=True)
class RunContents:
    """The contents of a run's directory."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One for each step that was reported."""
    log: list[tuple[str, str]] = field(default_factory=list)
    """Time and text of each line."""
    best: dict[str, Any] = field(default_factory=dict)
    """Step and number of the best model, as best/best.json says."""
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    parents: list[tuple[str, Sequence[Row]]] = field(default_factory=list)
    """What it goes on from, as "runs/a@600", the nearest first, and what that run has reported from that step on."""
    picture: bytes | None = None
    """What the model said about some images, a PNG."""
    causes: list[tuple[int, str]] = field(default_factory=list)
    """Steps whose loss was looked into, and the cause: see `Why.write`."""
    running: bool = False
    missing: list[str] = field(default_factory=list)
    """What should be there and is not, or cannot be read, in sentences."""

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def best_row(self) -> dict[str, Any] | None:
        """The row of the best step."""
        step = self.best.get("step")
        return best_of(self.rows, step if isinstance(step, int) else None)

    @property
    def best_number(self) -> tuple[str, float | None]:
        """The key and the value of the number by which the best step is the best."""
        row, marks = self.best_row or {}, [(key, number(each)) for key, each in self.best.items() if key != "step"]
        if marks and marks[0][1] is not None:
            return marks[0]
        key = next((key for key in ("val/loss", "train/loss") if number(row.get(key)) is not None), "")
        return key, number(row.get(key))

    @property
    def status(self) -> tuple[str, str]:
        """The state of the training in a word, and why."""
        if self.running:
            return "running", "as this report was written"
        for _, text in reversed(self.log):
            if text.startswith("ended: "):
                why = text.removeprefix("ended: ")
                return ("interrupted" if was_interrupted(why) else "finished"), why
            if text.startswith("ended by "):
                why = text.removeprefix("ended by ")
                return ("interrupted" if why.startswith(("KeyboardInterrupt", "SystemExit")) else "failed"), why
            if text.startswith(BEGINS):
                return "interrupted", "it ended without a word: killed, or the machine stopped"
        return "unknown", f"the log does not say whether it ended{'' if self.rows else ', and nothing was reported'}"

    @property
    def is_finished(self) -> bool:
        """Whether the training has reached its end."""
        return not self.running and self.status[0] == "finished"

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """The lines of the log that are warnings."""
        lines = [(at, text) for at, text in self.log if not text.startswith(COUNTERS)]
        return [(at, text) for at, text in lines if any(word in text.lower() for word in BAD)]


def read(path: Path) -> RunContents:
    """Reads a run's directory; raises only if it is none."""
    _check(path)
    run = RunContents(path)
    run.facts = _part(run, "run.json", _json, "when and where the training began")
    run.config = _part(run, "config.json", _json, "with which settings")
    run.recipe = _part(run, "recipe.json", _json)
    times = _times(path)
    run.rows = [row | times.get(_when(row), {}) for row in by_step(_rows(run))]
    if run.facts.get("parents"):
        run.parents = _part(run, "run.json", lambda _: _parents(run.facts["parents"])) or []
    run.log = _part(run, "log.txt", _log, "how it went") or []
    run.best = _part(run, "best/best.json", _json)
    run.checkpoints = _part(run, "checkpoints", _checkpoints) or []
    run.picture = _part(run, f"{PICTURES}/{NEWEST}", _png) or None
    run.causes = _part(run, WHY, _causes) or []
    run.running = _is_held(path / "lock")
    return run


def overview_of(path: Path) -> dict[str, Any]:
    """What a list of runs shows of a run, in whatever state it is; plain values."""
    run = read(path)
    (key, value), best, last = run.best_number, run.best_row or {}, run.rows[-1] if run.rows else {}
    arguments = run.recipe.get("arguments") if isinstance(run.recipe, dict) else None
    files = [path / "run.json", *path.glob("*.jsonl"), *path.glob("checkpoints")]
    return {
        "run": str(path),
        "state": run.status[0],
        "why": run.status[1],
        "epoch": last.get("epoch"),
        "step": last.get("step"),
        "best": {"key": key, "value": value, "step": best.get("step")},
        "changed": max(file.stat().st_mtime for file in files),
        "parents": [name for name, _ in run.parents],
        "arguments": arguments if isinstance(arguments, dict) else {},
    }


def _check(path: Path) -> None:
    if not run_path(path).is_dir():
        raise RunError(f"{path} is not a directory. Name the directory of a run, as it was given to fit(run=...).")
    if not (path / "run.json").is_file():
        raise disk.no_run(path)


def _part(run: RunContents, name: str, reader: Callable[[Path], Any], what: str = "") -> Any:
    """A file of the run, or nothing with a sentence about why; a file that says nothing of `what` may be missing."""
    try:
        return reader(run.path / name)
    except FileNotFoundError:
        if what:
            run.missing.append(f"There is no {name}, which says {what}.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        run.missing.append(f"{name} cannot be read: {str(error).splitlines()[0] if str(error) else 'it is cut short'}.")
    return {}


def _png(path: Path) -> bytes:
    data = disk.read_file(path, SMALL_BYTES)
    if not data.startswith(b"\x89PNG\r\n"):
        raise ValueError("it is no PNG")
    return data


def _json(path: Path) -> dict[str, Any]:
    document = read_document(path)
    if not isinstance(document, dict):
        raise ValueError("it holds no names and values")
    return document


def _rows(run: RunContents) -> list[dict[str, Any]]:
    """The rows that can be read; says how many lines cannot."""
    try:
        lines = disk.read_file(run.path / "metrics.jsonl", LARGE_BYTES).splitlines(keepends=True)
    except OSError as error:
        run.missing.append(f"metrics.jsonl cannot be read: {error.strerror}.")
        return []
    rows = [row for row in map(read_row, lines) if row is not None]
    if not rows:
        run.missing.append("Nothing has been reported yet: metrics.jsonl has no rows.")
    if lines and not lines[-1].endswith(b"\n"):
        run.missing.append("The last line of metrics.jsonl was cut short, and is left out.")
        lines = lines[:-1]
    if len(lines) > len(rows):
        run.missing.append(f"metrics.jsonl has {len(lines) - len(rows)} lines that are no rows; they are left out.")
    return rows


def _parents(parents: Any) -> list[tuple[str, Sequence[Row]]]:
    """The parents of a run; one that is not there any more, or is another run now, has no rows."""
    curves: list[tuple[str, Sequence[Row]]] = []
    for each in parents:
        parent, step = RunContents(Path(each["run"])), int(each["step"])
        is_there = _part(parent, "run.json", _json).get("id") == each["id"]
        rows = by_step(_rows(parent)) if is_there else []
        curves.append((f"{parent.path}@{step}", [row for row in rows if row["step"] >= step]))
    return curves


def _times(path: Path) -> dict[tuple[int, Any], dict[str, Any]]:
    """Minutes of training by step; where a step was made again after an interruption, those of the last time."""
    try:
        lines = disk.read_file(path / "times.jsonl", LARGE_BYTES).splitlines(keepends=True)
    except OSError:
        return {}
    rows = [row for row in map(read_row, lines) if row is not None and number(row.get("minutes")) is not None]
    return {_when(row): {"minutes": row["minutes"]} for row in rows}


def _when(row: Row) -> tuple[int, Any]:
    """The key of a report: its step and samples."""
    return row["step"], number(row.get("samples"))


def _log(path: Path) -> list[tuple[str, str]]:
    """Lines with their time, which the run has put before each; a line without belongs to the one before."""
    lines = disk.read_file(path, LARGE_BYTES).decode(errors="replace").splitlines()
    return [(line[:19], line[20:]) if line[:4].isdigit() and line[10:11] == " " else ("", line) for line in lines]


def _causes(folder: Path) -> list[tuple[int, str]]:
    """The texts that a `Why` has written, by step."""
    files = {int(path.stem): path for path in folder.iterdir() if path.suffix == ".txt" and path.stem.isdecimal()}
    return [(step, disk.read_file(path, SMALL_BYTES).decode(errors="replace")) for step, path in sorted(files.items())]


def _checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """The checkpoints by step, the newest first; one that cannot be read is there, and not complete."""
    places = [(place, child) for child in folder.iterdir() if (place := Place.of(child.name)) is not None]
    checkpoints = [saved for place, child in places if (saved := _saved(child, place.step)) is not None]
    return sorted(checkpoints, key=lambda saved: -saved.step)


def _saved(path: Path, step: int) -> SavedCheckpoint | None:
    manifest = path / "manifest.json"
    try:
        at = path.stat().st_mtime
    except OSError:  # it has just been let go
        return None
    try:
        sizes = [int(file["size"]) for file in _json(manifest)["files"]]
        return SavedCheckpoint(step, sum(sizes), manifest.stat().st_mtime, (path / "COMMIT").is_file())
    except (OSError, ValueError, KeyError, TypeError):
        return SavedCheckpoint(step, 0, at, is_complete=False)


def _is_held(lock: Path) -> bool:
    """Whether a trainer is at work: whether the file is locked. A trainer that begins meanwhile waits for a moment."""
    try:
        import fcntl

        with open(disk.open_regular(lock, os.O_RDONLY), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ImportError):
        return False
    return False
