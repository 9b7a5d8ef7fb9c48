"""Directories of runs for tests of reports: finished, and cut short."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FACTS = {
    "id": "0123456789abcdef",
    "created": "2026-03-01T10:00:00+0000",
    "command": ["train.py", "--lr", "0.1"],
    "versions": {"headrace": "0.1.0", "python": "3.11.7"},
    "environment": {"host": "somewhere", "cpus": 2, "variables": {"OMP_NUM_THREADS": "1"}},
}
CONFIG = {
    "loss": {"kind": "CrossEntropy"},
    "batch_size": 64,
    "clip_norm": None,
    "optimizer": {"kind": "Adam", "groups": [{"lr": 0.1}]},
}
STARTED, ENDED = "2026-03-01 10:00:00 started\n", "2026-03-01 10:05:00 ended: 5 epochs reached\n"


def rows(count: int, noise: float = 0.02) -> list[dict[str, Any]]:
    """The reported rows of a training whose validation loss improves until its last quarter."""
    draw = np.random.default_rng(0)
    made = []
    for k in range(1, count + 1):
        loss = 2 * math.exp(-4 * k / count) + noise * float(draw.random())
        worse = max(0.0, k / count - 0.75)
        made.append(
            {
                "epoch": k,
                "step": 20 * k,
                "samples": 1000 * k,
                "rate": 0.1 * (1 - k / (count + 1)),
                "train/loss": loss,
                "train/loss/ce": loss - 0.01,
                "train/loss/l2": 0.01,
                "train/accuracy": 1 - loss / 4,
                "val/loss": loss + 0.05 + worse,
                "val/loss/ce": loss + 0.05 + worse,
                "val/accuracy": 0.95 - loss / 4,
            }
        )
    return made


def make(path: Path, reports: Sequence[dict[str, Any]] = (), log: str = STARTED + ENDED, **files: Any) -> Path:
    """A run with these reports; `files`: texts and bytes by their names, with _ for the dot."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").write_text(json.dumps(FACTS))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "log.txt").write_text(log)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reports))
    times = ({"step": row["step"], "samples": row["samples"], "minutes": row["samples"] / 30_000} for row in reports)
    (path / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    for name, content in files.items():
        place = path / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def classified(classes: int = 12) -> list[dict[str, Any]]:
    """The reports of a classifier that is right for most rows, with its confusion matrix."""
    draw = np.random.default_rng(1)
    matrix = draw.integers(0, 2, (classes, classes)) + np.diag(draw.integers(1, 40, classes))
    reports = rows(4)
    reports[-1]["test/confusion"] = matrix.tolist()
    return reports
