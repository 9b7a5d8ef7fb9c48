"""A training for tests to interrupt: every part of it has state, and it takes a fraction of a second.

Dropout, batch statistics and noise from all three random generators; Adam, a schedule, clipping, two microbatches to
an update; a shuffled table that is read on the feed's thread; validation, metrics and a best model.
"""

import hashlib
import random
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.store import disk
from headrace.store.checkpoints import Store
from kit.forked import Child, hear, hold, start, tell
from kit.own_data import Elsewhere
from kit.small import in_run

ROWS, BATCH, EPOCHS = 38, 4, 3
UPDATES = 10  # in an epoch
STEPS = UPDATES * EPOCHS
PREEMPTED = 143  # the exit status


class Rows(Elsewhere):
    """Rows that a thread takes; `look` gets their numbers first."""

    def __init__(self, count: int = ROWS, look: Callable[[Tensor], None] = lambda rows: None) -> None:
        x = torch.sin(torch.arange(count)[:, None] * torch.arange(1, 6) * 0.7)
        super().__init__({"x": x, "y": (x[:, 0] > x[:, 1]).long()}, look)


class Noise(nn.Module):
    """Adds a little from each random generator of the process."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x + 0.1 * (torch.randn_like(x) + random.gauss(0, 1) + float(np.random.standard_normal()))


class Right:
    """The share of rows that are right, as an object of one's own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.right = self.rows = 0

    def update(self, outputs: Tensor, target: Tensor) -> None:
        self.right += int((outputs.argmax(dim=1) == target).sum())
        self.rows += len(target)

    def compute(self) -> float:
        return self.right / self.rows

    def state_dict(self) -> dict[str, Any]:
        return {"right": self.right, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.right, self.rows = state["right"], state["rows"]


def seed() -> None:
    """The random generators as at the start of a program."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def network() -> nn.Sequential:
    """The model as new, and the random generators too."""
    seed()
    return nn.Sequential(Noise(), nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def trainer(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    """A trainer of a model as new."""
    model = network() if model is None else model
    given: dict[str, Any] = {
        "loss": hr.CrossEntropy(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "batch_size": BATCH,
        "microbatch": 2,
        "macrobatch": 2 * BATCH,
        "clip_norm": 1.0,
        "schedule": hr.Cosine(0.1),
        "metrics": {"right": Right()},
    }
    return hr.Trainer(model, **{**given, **options})


def fit(trainer: hr.Trainer, run: str | Path | None, train: Any = None, **options: Any) -> hr.History:
    """The training that all these tests run."""
    given: dict[str, Any] = {
        "val": Rows(12),
        "test": Rows(9),
        "epochs": EPOCHS,
        "every": "5 steps",
        "log_every": "2 steps",
        "keep": 2,
        "callbacks": [],
        "progress": False,
    }
    given |= options
    given["callbacks"] = [hr.BestModel("val/loss"), *given["callbacks"]]
    return trainer.fit(Rows() if train is None else train, **in_run(run, **given))


def digest(trainer: hr.Trainer) -> str:
    """A hash of weights, buffers, optimizer and random generators, to the last bit."""
    sha = hashlib.sha256()
    for name, value in trainer.model.state_dict().items():
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + _bytes(value))
    for number, state in sorted(trainer.optimizer.state_dict()["state"].items()):
        for name, value in sorted(state.items()):
            sha.update(f"{number} {name}".encode() + _bytes(torch.as_tensor(value)))
    sha.update(repr([group["lr"].hex() for group in trainer.optimizer.param_groups]).encode())
    sha.update(repr(random.getstate()).encode() + repr(np.random.get_state()).encode() + _bytes(torch.get_rng_state()))
    return sha.hexdigest()


def _bytes(value: Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# --- in a process of its own -------------------------------------------------------------------------------


class Watched(hr.Callback):
    """A training that tells its progress, and calls `there` at one place of it, once."""

    def __init__(self, place: str, number: int, there: Callable[[], None], **options: Any) -> None:
        self._place, self._number, self._there = place, number, there
        self._step = self._saving = self._questions = 0
        model = network()
        model.register_forward_hook(self._on_forward)
        self._perform, disk.perform = disk.perform, self._on_file
        self.trainer = trainer(model, **options)

    def fit(self, run: str | None, **options: Any) -> None:
        callbacks = [self, *options.pop("callbacks", ())]
        fit(self.trainer, run, Rows(look=self._on_question), callbacks=callbacks, **options)

    def on_fit_start(self, info: hr.Info) -> None:
        self._step = info.step
        self._at("fit start", info.step)

    def on_step_end(self, info: hr.Info) -> None:
        self._step = info.step
        tell(f"step {info.step}")

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        self._at("epoch end", info.step)

    def on_checkpoint(self, info: hr.Info) -> None:
        self._saving = info.step
        tell(f"checkpoint {info.step}")

    def on_fit_end(self, info: hr.Info) -> None:
        tell(f"ends at {info.step}")

    def _on_forward(self, module: torch.nn.Module, given: Any, output: torch.Tensor) -> None:
        if module.training:
            self._at("forward", self._step + 1)
            output.register_hook(lambda gradient: self._at("backward", self._step + 1))
        else:
            self._at("test" if self._step == self._saving else "validation", self._step)

    def _on_question(self, rows: torch.Tensor) -> None:
        self._questions += 1
        self._at("data", self._questions)

    def _on_file(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if operation == "write" and f"step-{self._number:012d}-" in str(arguments[0]):
            self._at("save", self._number)
        return self._perform(operation, call, *arguments)

    def _at(self, place: str, number: int) -> None:
        if (place, number) == (self._place, self._number):
            self._place = ""
            self._there()


def until_signal() -> None:
    """Waits for a signal; on other threads than the main one, which no signal wakes, waits for a line from the test."""
    if threading.current_thread() is threading.main_thread():
        hold("there, main thread")
    else:
        tell("there, another thread")
        hear()


def train(run: str | None, place: str, number: int) -> None:
    """In a process of its own: the training, which waits for a signal at a place."""
    watched = Watched(place, number, until_signal)
    watched.fit(run)
    tell("digest " + digest(watched.trainer))


# --- in the test ------------------------------------------------------------------------------------------


class Finished(NamedTuple):
    """The result of a training: a hash of all its state, and the lines that it reported."""

    digest: str
    rows: list[str]


def finished(run: Path) -> Finished:
    """The training from where it is to its end, undisturbed, in a process of its own."""
    with start(train, run.parent, run, "", 0) as child:
        return Finished(child.until("digest"), (run / "metrics.jsonl").read_text().splitlines())


@cache
def reference() -> Finished:
    """The result of the training without any interruption."""
    with tempfile.TemporaryDirectory() as at:
        return finished(Path(at) / "run")


def told(child: Child, wanted: str) -> None:
    """Returns once the process has told a line that begins with `wanted`."""
    if not any(line.startswith(wanted) for line in child.told):
        child.until(wanted)


def preempted(child: Child, number: int = signal.SIGTERM, awaited: str | None = None) -> int:
    """Sends the signal and waits for the end; the exit status.

    With `awaited`, a waiting thread is released once the process has told this line.
    """
    child.send(number)
    if awaited is not None:
        told(child, awaited)
        child.say("go on")
    return child.ending()


def last_step(run: Path) -> int:
    """The step of the newest checkpoint, once all are verified."""
    store = Store(run / "checkpoints", None)
    assert [store.verify(step).step for step in store.steps()]
    return store.steps()[-1]
