"""The directory of a run: what it is, what it reported, who is at work in it, and on what kind of machine."""

import hashlib
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from .. import __version__
from ..errors import RunError
from . import disk, system
from .document import LARGE_BYTES, encoded_line, read_document, read_row, readable
from .place import Place

RUN, CONFIG, LOG, METRICS, LOCK = "run.json", "config.json", "log.txt", "metrics.jsonl", "lock"
TIMES = "times.jsonl"  # apart from the metrics, which are the same however often a training is interrupted
CHECKPOINTS, BEST = "checkpoints", "best"
_ENVIRONMENT = re.compile(r"OMP_|MKL_|CUDA_|NCCL_|GLOO_|SLURM_(JOB_ID|NODELIST|NTASKS|PROCID)|PYTORCH_|TORCH_|MALLOC_")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class RunFiles:
    """A run directory, held by one trainer at a time from `RunFiles(path)` to `close`.

    `parents`: what a new run goes on from, which its file says.
    """

    def __init__(self, path: Path, parents: Sequence[Mapping[str, Any]] = ()) -> None:
        self.path, self._parents = path, parents
        self._length, self._digest = 0, hashlib.sha256()  # of what has been reported
        _refuse_others(path)
        with disk.failing(f"opening the run {path}", path), ExitStack() as opened:
            disk.make_dirs(path)
            opened.callback(lock_run(path / LOCK).release)
            self.id = self._identify()
            self._rows = opened.enter_context(disk.File(path / METRICS, new=False))
            self._times = opened.enter_context(disk.File(path / TIMES, new=False))
            self._log = opened.enter_context(disk.File(path / LOG, new=False))
            self._opened = opened.pop_all()

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def probe(self, needed: int) -> None:
        """Raises unless files can be written and renamed here, and so many bytes are free."""
        free = disk.free(self.path)
        if free < needed:
            raise RunError(
                f"{self.path} has {disk.size(free)} free and needs {disk.size(needed)}, room for two checkpoints. "
                "Free some space, or choose another directory."
            )
        with disk.failing(f"a trial of writing to {self.path}", self.path, needed):
            disk.write_file(self.path / ".probe", b"x" * 512)
            disk.unlink(self.path / ".probe")

    def configure(self, config: Mapping[str, Any]) -> None:
        """Writes the settings of the training for a person to read."""
        text = readable(config)
        with disk.failing(f"writing {self.path / CONFIG}", self.path, len(text)):
            disk.write_file(self.path / CONFIG, text)

    def log(self, message: str) -> None:
        """A line of the log, with the time. One that cannot be written is no reason to stop."""
        text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], message)
        with suppress(OSError):
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="backslashreplace"))

    @contextmanager
    def logging_warnings(self) -> Iterator[None]:
        """Warnings are also written into the log."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            self.log(str(warning.message))
            warnings.warn(warning.message, stacklevel=4)

    def report(self, row: Mapping[str, Any], minutes: float) -> None:
        """A line of metrics, and when that was: after so many minutes of training."""
        line = encoded_line(row)
        with disk.failing(f"reporting step {row['step']}", self.path, len(line)):
            self._rows.write(line)
        self._digest.update(line)
        self._length += len(line)
        when = {"step": row["step"], "samples": row.get("samples", 0), "minutes": round(minutes, 6)}
        with suppress(OSError):  # nice to know, and no reason to stop
            self._times.write(encoded_line(when))

    def start_with(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts the reports of a parent in place of what there is."""
        text = b"".join(map(encoded_line, rows))
        self._rows.truncate(0)
        self._rows.write(text)
        self._rows.sync()
        self._length, self._digest = len(text), hashlib.sha256(text)

    def sync(self) -> None:
        """Makes certain that what was reported is on the disk."""
        self._rows.sync()

    @property
    def reported(self) -> dict[str, Any]:
        """The length and the hash of all that has been reported: a checkpoint keeps them, and not the rows."""
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}

    def check_reported(self, reported: Mapping[str, Any], step: int) -> None:
        """Warns unless the file begins with what had been `reported` when the checkpoint of a step was saved."""
        if not begins_with(b"".join(self._lines()), reported):
            warnings.warn(
                f"{self.path / METRICS} is not as it was when the checkpoint of step {step} was saved: the history has "
                "only the rows that can be read. The weights and the rest of the state are not concerned.",
                stacklevel=3,
            )

    def rows_until(self, step: int, samples: float = math.inf) -> list[dict[str, Any]]:
        """The rows that were reported up to a step, or up to so many samples; `drop_later` drops the others.

        Samples tell reports of one step apart where workers hear later of what others do.
        """
        rows, at, stays = [], 0, 0
        lines = self._lines()
        for line in lines:
            at += len(line)
            row = read_row(line)
            if row is not None and row["step"] <= step and row.get("samples", 0) <= samples:
                rows.append(row)
                stays = at
        begins = b"".join(lines)[:stays]
        self._length, self._digest = stays, hashlib.sha256(begins)
        return rows

    def drop_later(self) -> None:
        """Drops what was reported after the rows that `rows_until` gave, and a line that was cut short."""
        with disk.failing(f"writing {self.path / METRICS}", self.path):
            if self._length < sum(map(len, self._lines())):
                self._rows.truncate(self._length)
                self._rows.sync()

    def _lines(self) -> list[bytes]:
        with disk.failing(f"reading {self.path / METRICS}", self.path):
            return disk.read_file(self.path / METRICS, LARGE_BYTES).splitlines(keepends=True)

    def best(self, source: Path, facts: Mapping[str, Any]) -> None:
        """The best weights under a name that a person finds, beside what makes them the best."""
        folder, beside = self.path / BEST, self.path / BEST / ".model.new"
        disk.make_dirs(folder)
        if os.path.lexists(beside):
            disk.unlink(beside)
        try:
            disk.link(source, beside)
        except OSError:  # a file system without links
            shutil.copyfile(source, beside)
        disk.replace(beside, folder / "model.safetensors")
        disk.write_file(folder / "best.json", encoded_line(facts))

    def tells_best(self, step: int) -> bool:
        """Whether the best weights that a person finds are those of this step."""
        try:
            return bool(read_document(self.path / BEST / "best.json")["step"] == step)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def refuse_without_checkpoints(self) -> None:
        """Raises if this run has come further than its checkpoints, which are not there, say."""
        traces = [f"{METRICS} has reports"] if any(map(read_row, self._lines())) else []
        traces += [f"{BEST}/ holds weights"] if (self.path / BEST).is_dir() else []
        names = os.listdir(self.checkpoints) if self.checkpoints.is_dir() else []
        places = {name: Place.of(name) for name in names if name[0] != "."}
        later = [name for name, place in places.items() if place is None or place.step]  # the first save is of step 0
        traces += [f"{CHECKPOINTS}/ holds {name}" for name in later[:1]]
        if traces:
            raise RunError(
                f"{self.path} has no checkpoint to go on from, and yet {' and '.join(traces)}. Put {CHECKPOINTS}/ "
                "back, or name another run; nothing is begun again from the start unasked."
            )

    def close(self) -> None:
        self._opened.close()

    def _identify(self) -> str:
        """The run's id: read, or made for a directory that holds nothing yet."""
        _refuse_others(self.path)
        for name in (CHECKPOINTS, BEST):
            disk.refuse_link(self.path / name)
        if (self.path / RUN).exists():
            return run_id(self.path)
        facts = {
            "id": uuid.uuid4().hex,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": sys.argv,
            "versions": _versions(),
            "environment": _environment(),
            "git": _git_commit(),
            **({"parents": self._parents} if self._parents else {}),
        }
        disk.write_file(self.path / RUN, json.dumps(facts, indent=2).encode() + b"\n")
        return str(facts["id"])


def begins_with(history: bytes, reported: Mapping[str, Any]) -> bool:
    """Whether a history begins with what had been `reported` when a checkpoint was saved."""
    begins = history[: reported["bytes"]]
    return bool(len(begins) == reported["bytes"] and hashlib.sha256(begins).hexdigest() == reported["sha256"])


def rows_in(path: Path) -> list[dict[str, Any]]:
    """What a run has reported, without a line that was cut short."""
    with disk.failing(f"reading {path / METRICS}", path):
        lines = disk.read_file(path / METRICS, LARGE_BYTES).splitlines(keepends=True)
    return [row for line in lines if (row := read_row(line)) is not None]


def _refuse_others(path: Path) -> None:
    """Raises on a file, and on a directory that holds something, and is no run."""
    refuse_file(path)
    if not path.is_dir():
        return
    others = [name for name in os.listdir(path) if name != LOCK and not name.startswith(".")]
    if others and RUN not in others:
        raise RunError(
            f"{path} is not a run: it has no {RUN}, and holds {', '.join(sorted(others)[:3])}. "
            "Name a directory that is empty or does not exist."
        )


def refuse_file(path: Path) -> None:
    """Raises if what should be the directory of a run is a file."""
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; name the directory of a run.")


def run_id(path: Path) -> str:
    """The id of a run, from its directory."""
    where = path / RUN
    try:
        found = read_document(where)
    except FileNotFoundError:
        raise disk.no_run(path) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{where} cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("id"), str) or not found["id"]:
        raise RunError(f"{where} has no id. Every manifest of the run's checkpoints holds it, as run_id.")
    return str(found["id"])


def machine(device: torch.device) -> dict[str, Any]:
    """What the bits of a training depend on beside its state, as plain values: processor, threads, torch."""
    found = {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    return found | ({"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


@cache
def processor() -> str:
    """The processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return system.processor() or platform.processor() or platform.machine()


def compare_machine(before: Any, device: torch.device) -> None:
    """Warns of what may make bits differ after a resume, as far as it is known."""
    known, now = before if isinstance(before, Mapping) else {}, machine(device)
    names = [name for name in {**known, **now} if known and known.get(name) != now.get(name)]
    if found := [f"{name} {known.get(name, 'none')} (now {now.get(name, 'none')})" for name in names]:
        warnings.warn(
            f"the run was saved with {', '.join(found)}: it goes on, but perhaps not bit for bit. Exact resume needs "
            "the same kind of processor, number of threads and version of torch.",
            stacklevel=3,
        )


MOMENT_S = 0.2
"""How long a trainer waits for whoever only looks whether a run is in use."""


def lock_run(path: Path) -> FileLock:
    """A file lock that prevents two processes from training in one run directory; it ends with its process."""
    os.close(disk.open_regular(path, os.O_RDWR | os.O_CREAT))
    lock = FileLock(path, timeout=MOMENT_S, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        holder = ""
        with suppress(OSError):
            holder = _CONTROL.sub("", disk.read_file(path, 1 << 20)[:4096].decode(errors="replace"))
        raise RunError(
            f"{path.parent} is in use by {holder or 'another process'}. One trainer at a time: wait for it, end it, or "
            "name another run."
        ) from None
    with suppress(OSError):
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    return lock


def _versions() -> dict[str, str]:
    return {
        "headrace": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _environment() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "directory": os.getcwd(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.match(name)},
    }


_COMMIT = "# branch.oid "


def _git_commit() -> str | None:
    """The commit that the working directory is at, with "+" if there are changes; `None` where there is none."""
    # without locks, since one that is killed must not leave a lock in the repository
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.removeprefix(_COMMIT) for line in found if line.startswith(_COMMIT)), "(initial)")
    changed = any(not line.startswith("#") for line in found)
    return None if commit == "(initial)" else commit + "+" * changed
