"""The training of `trainees` with several workers and a strategy, which tests kill or stop at any place of a worker."""

import json
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import headrace as hr
from headrace.engines.network import Network
from headrace.store import disk
from headrace.watch.callback import HOOKS as ALL_HOOKS
from headrace.workers.here import here
from kit import trainees
from kit.forked import start, tell

ROWS, EPOCHS, SHARE = 48, 3, 4  # rows that a worker brings to an update
SAVED = 3  # steps between two checkpoints
STRATEGIES: dict[str, Callable[[], hr.Strategy]] = {
    "synchronous": hr.Synchronous,
    "periodic": lambda: hr.Periodic("2 steps"),
    "block momentum": lambda: hr.BlockMomentum("2 steps"),
    "diloco": lambda: hr.DiLoCo("2 steps"),
    "elastic": lambda: hr.Elastic("2 steps"),
}
CENTERED = ("elastic",)
HOOKS = tuple(hook for hook in ALL_HOOKS if hook != "on_error")
WITHIN = ("before the update", "backward", "at the update", "after the update", "meets", "meeting", "has met")
SAVING = "saves"
"""Changes of files of the checkpoint of step 6."""
UNEVEN = Network(bandwidth="1 Mbit", latency="1 ms", rows_per_s=1000, speeds={0: 1.3, 1: 0.7})


class Place(NamedTuple):
    """A place of a training: what it is, in which worker, and at which of its visits there, from 1."""

    what: str
    worker: int
    time: int


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Watch(hr.Callback):
    """Counts how often a worker comes to each place, and calls `act` at one of them, once."""

    def __init__(self, place: Place | None, act: Callable[[], None] = die) -> None:
        self.times: Counter[str] = Counter()
        self.saved = -1
        """The step of its last checkpoint."""
        comm = here()
        mine = place is not None and place.worker == comm.shard.index
        self._place, self._act = (place if mine else None), act
        if comm.leader:
            self._perform, disk.perform = disk.perform, self._on_file

    def at(self, what: str) -> None:
        self.times[what] += 1
        place = self._place
        if place is not None and place.what == what and place.time == self.times[what]:
            self._place = None
            self._act()

    def look(self, trainer: hr.Trainer) -> None:
        """Hooks into the places of a trainer and its strategy."""
        trainer.model.register_forward_hook(self._on_forward)
        self._around(trainer, "train_step", "before the update", "after the update")
        trainer.optimizer.register_step_pre_hook(lambda *_: self.at("at the update"))
        strategy, comm = trainer.strategy, here()
        self._around(strategy, "reduce" if isinstance(strategy, hr.Synchronous) else "after", "meets", "has met")
        if strategy.centered:
            self._around(strategy, "exchange", "", "meeting")
        else:
            self._around(comm, "start", "", "meeting")

    def _around(self, owner: Any, name: str, before: str, after: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if before:
                self.at(before)
            found = real(*arguments, **options)
            self.at(after)
            return found

        setattr(owner, name, call)

    def _on_forward(self, module: torch.nn.Module, given: Any, output: torch.Tensor) -> None:
        if module.training:
            self.at("forward")
            output.register_hook(lambda gradient: self.at("backward"))
        else:
            self.at("scoring")

    def _on_file(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if f"step-{2 * SAVED:012d}-" in str(arguments[0]):
            self.at(SAVING)
        return self._perform(operation, call, *arguments)


def _hook(name: str) -> Callable[..., None]:
    def call(self: Watch, info: hr.Info, *_: Any) -> None:
        if name == "on_checkpoint":
            self.saved = info.step
        self.at(name)

    return call


for name in HOOKS:
    setattr(Watch, name, _hook(name))


def trainer(name: str, **options: Any) -> hr.Trainer:
    """A worker's trainer, as new."""
    strategy = STRATEGIES[name]()
    rows = SHARE * (here().count if strategy.joint else 1)
    given: dict[str, Any] = {"strategy": strategy, "batch_size": rows, "microbatch": None, "macrobatch": 2 * rows}
    given["schedule"] = hr.Schedule(lambda o, steps: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.7), every="1 step")
    return trainees.trainer(**given, **options)


def fit(run: str | Path | None, name: str, watch: Watch, **options: Any) -> hr.Trainer:
    """A worker's part of the training."""
    trained = trainer(name)
    watch.look(trained)
    given = {"epochs": EPOCHS, "every": f"{SAVED} steps"} | options
    rows = trainees.Rows(ROWS, lambda rows: watch.at("data") if trained.info else None)  # once it is under way
    trainees.fit(trained, run, rows, callbacks=[watch], **given)
    return trained


class Finished(NamedTuple):
    """The result of a training: hashes of all the state of its workers, and the lines that it reported."""

    digests: list[str]
    rows: list[str]


def check_end(name: str, found: Finished, expected: Finished) -> None:
    """Raises unless two trainings came to the same end; at a center each row was used as often, and nothing more."""
    if name not in CENTERED:
        assert found == expected
        return
    last, other = (json.loads(each.rows[-1]) for each in (found, expected))
    assert [last[count] for count in ("epoch", "samples")] == [other[count] for count in ("epoch", "samples")]


# --- virtual workers, in a process of its own ---------------------------------------------------------------


def work(run: str, name: str, place: Place | None) -> Any:
    watch = Watch(place)
    trained = fit(run, name, watch)
    return here().all_gather([trainees.digest(trained), dict(watch.times)])


def train(run: str, name: str, workers: int, place: list[Any] | None = None) -> None:
    """All virtual workers; the process is killed where one of them comes to the place."""
    found = hr.launch(
        work, run, name, place and Place(*place), workers=workers, network=UNEVEN if name in CENTERED else None
    )
    for digest, times in found:
        tell(f"digest {digest}")
        tell(f"times {times!r}")


def ends(run: Path, name: str, workers: int) -> tuple[Finished, list[dict[str, int]]]:
    """The training from where it is to its end, undisturbed; and how often each worker came where."""
    with start(train, run.parent, run, name, workers) as child:
        digests, times = [], []
        for _ in range(workers):
            digests.append(child.until("digest"))
            times.append(eval(child.until("times")))
        assert child.ending() == 0, child.output
    return Finished(digests, (run / "metrics.jsonl").read_text().splitlines()), times


@cache
def undisturbed(name: str, workers: int) -> tuple[Finished, list[dict[str, int]]]:
    """The result of the training without any interruption."""
    with tempfile.TemporaryDirectory() as at:
        return ends(Path(at) / "run", name, workers)


def killed(run: Path, name: str, workers: int, place: Place) -> None:
    """The training from where it is, killed at a place."""
    with start(train, run.parent, run, name, workers, list(place)) as child:
        code = child.ending()
        assert code == -signal.SIGKILL, f"{place}: {code}\n{child.output}"
