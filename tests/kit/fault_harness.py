"""Kills a process, or has a call fail, at the n-th change of a file; and checkpoints to compare afterwards."""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headrace.store import disk
from headrace.store.checkpoints import Store
from headrace.store.contents import COMMIT, MANIFEST, Contents
from kit import small

RUN = "0123456789abcdef"
CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS)


# --- what happens at an operation -------------------------------------------------------------------------


@contextmanager
def performing(perform: Callable[..., Any]) -> Iterator[None]:
    """Sends every change of a file through `perform(operation, call, *arguments)`."""
    before = disk.perform
    disk.perform = perform
    try:
        yield
    finally:
        disk.perform = before


def unsynced(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """For files of which no power failure is tested: nobody waits for the disk."""
    return None if operation in ("fsync", "sync_dir") else call(*arguments)


@dataclass
class Trace:
    """Notes the operations, and lets them happen."""

    operations: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self.operations.append(operation)
        self.paths.append(Path(arguments[0]))
        return call(*arguments)


@dataclass
class Kill(Trace):
    """Ends the process, as a power switch would, "before", "after" or "half" way through operation number `at`."""

    at: int = 0
    when: str = "before"

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        here = len(self.operations) == self.at
        if here and self.when == "half":
            _, fd, data = arguments
            os.write(fd, memoryview(data)[: len(data) // 2])
        if here and self.when != "after":
            self._end()
        result = super().__call__(operation, call, *arguments)
        if here:
            self._end()
        return result

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Died(BaseException):
    """Ends a save as the death of its process would."""


@dataclass
class Death(Kill):
    """Like `Kill` without ending the process: the operation raises `Died`, and no later one is performed."""

    dead: bool = False

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if self.dead:
            raise Died
        return super().__call__(operation, call, *arguments)

    def _end(self) -> None:
        self.dead = True
        raise Died


@dataclass
class Fail(Trace):
    """The operation number `at` fails with `code`; with `lasting`, so does each one after it."""

    at: int = 0
    code: int = errno.ENOSPC
    lasting: bool = False
    fired: int = 0

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        here = len(self.operations)
        if here == self.at or (self.lasting and here > self.at):
            self.operations.append(operation)
            self.paths.append(Path(arguments[0]))
            self.fired += 1
            raise OSError(self.code, os.strerror(self.code), str(arguments[0]))
        return super().__call__(operation, call, *arguments)


# --- a process of its own ---------------------------------------------------------------------------------


KILLED = "killed"


def in_child(work: Callable[[], Any], limit_s: float = 200.0) -> Any:
    """Runs `work` in a fork of this process, ended by a timer of the kernel: its result, pickled, or `KILLED`."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        _work(work, writing, limit_s)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"ended by {os.WTERMSIG(status)}; it may take {limit_s} s"
        return KILLED
    found = pickle.loads(data)
    assert "error" not in found, found["error"]
    return found["value"]


def _work(work: Callable[[], Any], writing: int, limit_s: float) -> None:
    """Runs `work` in the child and sends its result; never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        found = {"value": work()}
    except BaseException:
        found = {"error": traceback.format_exc()}
    try:
        with open(writing, "wb") as pipe:
            pickle.dump(found, pipe)
    finally:
        sys.stderr.flush()
        os._exit(0)


def open_files() -> list[str]:
    """The files that this process has open, one for each descriptor: threads of tests before may yet close sockets."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(target for target in found if target.startswith("/"))


# --- checkpoints to compare -------------------------------------------------------------------------------


@cache
def contents_of(step: int) -> Contents:
    """A small checkpoint; every tensor and document of it depends on the step."""
    draw = torch.Generator().manual_seed(step)
    return Contents(
        step,
        documents={
            "trainer.json": {"step": step, "rate": 0.1 / step, "names": ["α", f"step {step}"], "none": None},
            "rank-00000.json": {"cursor": [step, 37 * step], "words": {"$tensor": "words"}},
        },
        tensors={
            "model.safetensors": {
                "weight": torch.randn(3, 2, generator=draw),
                "half": torch.randn(5, generator=draw).to(torch.bfloat16),
                "count": torch.tensor(step),
                "mask": torch.rand(3, generator=draw) > 0.5,
                "none": torch.empty(0, 4),
            },
            "rank-00000.safetensors": {"words": torch.randint(1 << 40, (2,), generator=draw)},
        },
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory, in memory if possible, for tests that do not test the way to the disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="headrace-", dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def difference(found: Contents, expected: Contents) -> str:
    """Where two checkpoints are not bit for bit the same; "" if they are."""
    one, other = ([each.step, each.documents, each.tensors] for each in (found, expected))
    return small.difference(one, other)


def contents_again(step: int) -> Contents:
    """Another checkpoint of the same step, with other contents."""
    later = contents_of(1000 + step)
    return Contents(step, later.documents, later.tensors)


def sound(store: Store, steps: list[int]) -> None:
    """Exactly these steps are here, each is verified and bit for bit what `contents_of` gives."""
    assert store.steps() == steps
    for step in steps:
        assert store.verify(step).step == step
        assert difference(store.load(step), contents_of(step)) == ""


def goes_on(path: Path, keep: int | None, step: int) -> None:
    """The next save works, is found, and clears away what was left over."""
    store = Store(path, RUN, keep)
    store.save(contents_of(step))
    newest = store.newest()
    assert newest is not None
    assert difference(newest, contents_of(step)) == ""
    assert unfinished(path) == []


def unfinished(path: Path) -> list[str]:
    """What saves that were cut short have left in a directory of checkpoints."""
    return [name for name in os.listdir(path) if not (path / name / COMMIT).exists()] if path.is_dir() else []


def place(store: Store, step: int) -> Path:
    """The directory of a checkpoint, complete or not."""
    return max(store.path.glob(f"step-{step:012d}-*"))


def hashes(path: Path) -> dict[str, str]:
    """The sha256 of every file of a directory."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def recommit(path: Path, manifest: bytes | None = None, files: dict[str, bytes] | None = None) -> None:
    """Changes a checkpoint and updates its checksums, as an attacker would."""
    where = path / MANIFEST
    data = where.read_bytes() if manifest is None else manifest
    if files:
        told = json.loads(data)
        for name, changed in files.items():
            rewrite(path / name, changed)
            entry = next(entry for entry in told["files"] if entry["name"] == name)
            entry.update(size=len(changed), sha256=hashlib.sha256(changed).hexdigest())
        data = json.dumps(told).encode()
    rewrite(where, data)
    rewrite(path / COMMIT, hashlib.sha256(data).hexdigest().encode() + b"\n")


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes for a file, as a new one: to cut one that is there to nothing makes ext4 wait for the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
