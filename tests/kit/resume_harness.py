"""Stops and resumes trainings, and records what they do so that two of them can be compared bit for bit."""

import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import headrace as hr
from headrace.store.checkpoints import Store
from kit.fault_harness import in_child
from kit.small import StoppedError, difference, exact, in_run
from kit.trainings import CASES, EPOCHS, Case

Record = dict[str, Any]
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Stop:
    """Where and how a training is stopped. `after` so many steps, unless the kind says otherwise.

    "break": the loop is left; "error": the model raises in the second microbatch of the step that follows;
    "preempt": the training is asked to end; "validating": it is asked while the model is being validated.
    """

    after: int
    kind: str = "break"


def uninterrupted(name: str, where: Path) -> Record:
    return in_process(name, where, None)


def stopped_and_resumed(name: str, where: Path, *stops: Stop) -> Record:
    """A training that is stopped at each of these places in turn, every part of it in a process of its own."""
    for stop in stops:
        in_process(name, where, stop)
    return in_process(name, where, None)


def differences_in_one_process(name: str, where: Path, *stops: Stop) -> dict[str, str]:
    """What differs if a training is stopped at each of these places, with all its parts in one process.

    Every part makes its own trainer, model and data, so only what was saved is handed on.
    """

    def work() -> dict[str, str]:
        where.mkdir()
        expected = run(name, where / "whole")
        for stop in stops:
            run(name, where / "parts", stop)
        return differences(run(name, where / "parts"), expected)

    warm_up()
    return dict(in_child(work))


def in_process(name: str, where: Path, stop: Stop | None, change: Change | None = None, seed: int = 0) -> Record:
    """One process: it begins the training, or goes on with it, until it is stopped or done.

    `change` is made to the state that it goes on from. The process that begins has `seed` as its seed; those
    that go on have other weights and other random numbers until they have read what was saved.
    """
    warm_up()
    found = in_child(lambda: run(name, where, stop, change, seed))
    return dict(found)


@cache
def warm_up() -> None:
    """Imports what trainings need, once for all child processes, by one of these trainings."""
    import torch._dynamo  # noqa: F401

    with tempfile.TemporaryDirectory() as at:
        run("table", Path(at) / "run")


def run(name: str, where: Path, stop: Stop | None = None, change: Change | None = None, seed: int = 0) -> Record:
    where.mkdir(exist_ok=True)
    log = where / "events.jsonl"
    for draw in (torch.manual_seed, random.seed, np.random.seed):
        draw(999 + log.stat().st_size if log.exists() else seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the model has .*with microbatches")
        warnings.filterwarnings("ignore", message="memory ran out")
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step")
        warnings.filterwarnings("ignore", message=".*epoch parameter in `scheduler.step")
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        case = CASES[name]()
        with changed(change):
            train(case, where, log, stop)
    return {} if stop else record(case, where, log)


def train(case: Case, where: Path, log: Path, stop: Stop | None) -> None:
    """Trains until the stop; raises if it did not come."""
    events = Events(log, stop)
    case.trainer.model.register_forward_pre_hook(events.on_forward)
    options = {"epochs": EPOCHS, "run": where / "run", **case.options}
    options["callbacks"] = [*case.options.get("callbacks", ()), events]
    try:
        for info in case.trainer.steps(case.train, case.val, **in_run(**options)):
            if stop == Stop(info.step):
                return
    except (StoppedError, SystemExit):
        if not events.fired:
            raise
    finally:
        events.close()
    assert stop is None or events.fired, f"{stop} did not come"


class Events(hr.Callback):
    """Writes every event to a file with the step that it belongs to, and stops the training at its stop."""

    def __init__(self, path: Path, stop: Stop | None) -> None:
        self._file = path.open("a")
        self._stop = stop or Stop(-1)
        self._info: Any = None
        self._passes = 0
        self.fired = False

    def close(self) -> None:
        self._file.close()

    def write(self, step: int, what: str, **values: Any) -> None:
        self._file.write(json.dumps([step, what, values]) + "\n")
        self._file.flush()

    def on_fit_start(self, info: hr.Info) -> None:
        self._info = info
        self.write(info.step, "begins")

    def on_epoch_start(self, info: hr.Info) -> None:
        if self._stop == Stop(0):
            self._fire()
            raise StoppedError
        self.write(info.step + 1, "epoch starts", epoch=info.epoch)

    def on_step_end(self, info: hr.Info) -> None:
        assert info.outcome is not None
        ids = [i for _, part in info.outcome.outputs for i in part["id"].tolist()]
        groups = [group for optimizer in info.trainer.optimizers.values() for group in optimizer.param_groups]
        place = [info.batch, info.samples, info.epoch, info.ends_epoch, info.skipped]
        self.write(info.step, "step", ids=ids, place=place, rates=[float(g["lr"]) for g in groups], losses=info.losses)
        self._passes = 0
        if self._stop == Stop(info.step, "preempt"):
            self._ask(info)

    def on_validation_end(self, info: hr.Info, scores: dict[str, Any]) -> None:
        self.write(info.step, "validation", scores=scores)

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        self.write(info.step, "epoch ends", row=row)

    def on_forward(self, model: torch.nn.Module, _: Any) -> None:
        if model.training:
            self._passes += 1
            if self._passes == 2 and self._stop == Stop(self._info.step, "error"):
                self._fire()
                raise StoppedError
        elif self._stop == Stop(self._info.step, "validating"):
            self._ask(self._info)

    def _ask(self, info: hr.Info) -> None:
        self._fire()
        info.trainer.preempt()

    def _fire(self) -> None:
        self.fired = True


@contextmanager
def changed(change: Change | None) -> Iterator[None]:
    """Changes the state that is read from a checkpoint before it is used."""
    from headrace.train import checkpointer

    before = vars(checkpointer)["decode"]

    def decode(contents: Any) -> Any:
        state = before(contents)
        if change is not None:
            parts = saved_parts(state)
            change(parts)
            state.workers = parts.pop("workers")
            state.common = parts
        return state

    checkpointer.decode = decode  # type: ignore[attr-defined]
    try:
        yield
    finally:
        checkpointer.decode = before  # type: ignore[attr-defined]


def saved_parts(state: Any) -> dict[str, Any]:
    """The parts of a checkpoint by name: the common ones, and those of each worker."""
    return {**state.common, "workers": state.workers}


# --- what is compared ---------------------------------------------------------------------------------------


def record(case: Case, where: Path, log: Path) -> Record:
    """All results of a training, and its last checkpoint without the time it took."""
    trainer = case.trainer
    last = Store(where / "run" / "checkpoints", None).newest()
    assert last is not None
    documents = json.loads(json.dumps(last.documents))
    del documents["trainer.json"]["counters"]["minutes"]
    if documents["trainer.json"]["place"]["ends_epoch"]:
        del documents["trainer.json"]["place"]["batch"]  # the next epoch counts anew
    cursors = [source.state_dict() for source in (case.train,) if isinstance(source, hr.Source)]
    weights, buffers = trainer.model.state_dict(), dict(trainer.model.named_buffers())
    optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers.values()]
    return {
        "weights": exact(weights),
        "strides": tree_map(_strides, [weights, buffers, optimizers, last.tensors]),
        "buffers": exact(buffers),
        "optimizers": exact(optimizers),
        "random": exact([random.getstate(), np.random.get_state(), torch.get_rng_state()]),
        "source": exact(cursors),
        "history": trainer.history.rows,
        "stopped": trainer.history.stopped,
        "metrics.jsonl": (where / "run" / "metrics.jsonl").read_text().splitlines(),
        "documents": documents,
        "tensors": exact(last.tensors),
        "events": events_of(log),
    }


def _strides(value: Any) -> list[int] | None:
    return [*value.stride()] if isinstance(value, Tensor) else None


def events_of(log: Path) -> list[Any]:
    """The events of a training; steps that a resumed process made again count once, and missing ones stay missing."""
    events: list[Any] = []
    for line in log.read_text().splitlines():
        step, what, values = json.loads(line)
        if what == "begins":
            events = [event for event in events if event[0] <= step]
        else:
            events.append([step, what, values])
    return events


def differences(found: Record, expected: Record) -> dict[str, str]:
    """The entries of two records that differ, each with the first place where it does."""
    assert found.keys() == expected.keys()
    return {name: where for name in expected if (where := difference(found[name], expected[name]))}
