"""Requests to end that are the user's own: handlers, threads, hooks, and what a trainer does afterwards."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small, trainees
from kit.forked import start, tell
from torch import nn

import headrace as hr

PREEMPTED = trainees.PREEMPTED


# --- handlers ---------------------------------------------------------------------------------------------

WAYS: dict[str, Any] = {"through": None, "left": None, "preempted": SystemExit, "failed": RuntimeError}


@pytest.mark.parametrize("way", WAYS)
def test_handlers_are_what_they_were_however_a_training_ends(way: str, tmp_path: Path) -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]

    def at_the_third_step(info: hr.Info) -> None:
        if info.step == 3:
            inside.append(handlers())
            if way == "preempted":
                info.trainer.preempt()
            if way == "failed":
                raise RuntimeError("something else")

    before, inside = handlers(), list[Any]()
    callbacks = [hr.Lambda(on_step_end=at_the_third_step)]
    with pytest.raises(WAYS[way]) if WAYS[way] else nullcontext():
        small.drive(
            small.trainer(), until=3 if way == "left" else None, steps=5, run=tmp_path / "run", callbacks=callbacks
        )
    assert before not in inside
    assert len(inside) == 1
    assert handlers() == before


def ask_by_own_means(run: str, means: str) -> None:
    """The training, with a handler of the user's own, or asked by another thread."""
    heard = []

    def handler(number: int, frame: Any) -> None:
        heard.append(number)
        if means == "a handler":
            watched.trainer.preempt()

    def ask() -> None:
        thread = threading.Thread(target=watched.trainer.preempt)
        thread.start()
        thread.join()

    watched = trainees.Watched("backward", 13, ask if means == "a thread" else trainees.until_signal)
    before = signal.signal(signal.SIGTERM, handler) if means != "a thread" else handler
    try:
        watched.fit(run)
    finally:
        tell(f"heard {len(heard)}, stays {signal.getsignal(signal.SIGTERM) != before}")


@pytest.mark.parametrize(
    ("means", "heard", "status", "step"),
    [
        ("a handler", 1, PREEMPTED, 13),
        ("a handler that does nothing", 1, 0, trainees.STEPS),
        ("a thread", 0, PREEMPTED, 13),
    ],
)
def test_a_handler_of_ones_own_stays_and_may_preempt_as_any_thread_may(
    means: str, heard: int, status: int, step: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with start(ask_by_own_means, tmp_path, run, means) as child:
        if heard:
            child.until("there")
            child.send(signal.SIGTERM)
        child.until(f"heard {heard}, stays True")
        assert child.ending() == status
    assert trainees.last_step(run) == step
    assert trainees.finished(run) == trainees.reference()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_without_a_run_signals_do_what_they_always_do(number: int, status: int, tmp_path: Path) -> None:
    with start(trainees.train, tmp_path, None, "backward", 13) as child:
        child.until("there")
        assert trainees.preempted(child, number) == status
        assert "step 13" not in child.told


# --- afterwards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_trainer_that_was_preempted_in_any_thread_validates_predicts_and_goes_on(
    in_a_thread: bool, tmp_path: Path
) -> None:
    def work() -> None:
        with pytest.raises(SystemExit) as ended:
            small.fit(made, run=run, callbacks=[hr.Lambda(on_step_end=asks)])
        statuses.append(ended.value.code)

    def asks(info: hr.Info) -> None:
        if info.step == 3:
            made.preempt()

    run, made, whole, statuses = tmp_path / "run", small.trainer(), small.trainer(), list[Any]()
    if in_a_thread:  # where no handler can be set
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert statuses == [PREEMPTED]
    assert trainees.last_step(run) == 3
    assert made.validate(small.data())["val/loss"] > 0
    assert made.predict(small.data()[0]).shape == (small.ROWS, 3)
    assert small.fit(made, run=run).rows == small.fit(whole).rows
    assert small.same(made, whole)


def test_a_request_that_comes_while_a_training_is_set_up_is_not_forgotten(tmp_path: Path) -> None:
    """While the data are looked at, before the training proper, as a handler of one's own may make it."""

    class Asking(trainees.Rows):
        def __len__(self) -> int:
            made.preempt()
            return super().__len__()

    made = trainees.trainer(microbatch=None)
    with pytest.raises(SystemExit):
        trainees.fit(made, tmp_path / "run", Asking())
    assert trainees.last_step(tmp_path / "run") <= 1


class Validates(hr.Callback):
    """Validates by itself when an epoch ends, and remembers what it found; it may ask for the end before that."""

    def __init__(self, asks: bool) -> None:
        self.asks, self.found = asks, list[list[float]]()

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        if self.asks and info.step == 8:
            info.trainer.preempt()
        self.found.append([info.step, info.trainer.validate(small.data())["val/loss"]])

    def state_dict(self) -> dict[str, Any]:
        return {"found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found = state["found"]


def test_a_hook_that_is_interrupted_in_a_validation_of_its_own_is_called_again(tmp_path: Path) -> None:
    found = []
    for run, asks in (("whole", False), ("parts", True), ("parts", False)):
        callback = Validates(asks)
        with pytest.raises(SystemExit) if asks else nullcontext():
            small.fit(small.trainer(), epochs=3, run=tmp_path / run, callbacks=[callback])
        found.append(callback.found)
    assert len(found[1]) < len(found[0])
    assert found[2] == found[0]


def close_when_asked(run: str, how: str) -> None:
    """The driver leaves its loop in the very step in which the program is asked to end."""
    trainer = trainees.trainer()
    with closing(trainer.steps(trainees.Rows(), steps=5, run=run)) as steps:
        for info in steps:
            if info.step == 3:
                trainer.preempt() if how == "preempt" else os.kill(os.getpid(), getattr(signal, how))
                break
    tell("went on")


@pytest.mark.parametrize("how", ["SIGTERM", "preempt", pytest.param("SIGUSR1", marks=pytest.mark.slow)])
def test_a_loop_that_is_closed_when_it_was_asked_to_end_ends_the_program(how: str, tmp_path: Path) -> None:
    with start(close_when_asked, tmp_path, tmp_path / "run", how) as child:
        assert child.ending() == PREEMPTED, child.output
    assert "went on" not in child.told
    assert trainees.last_step(tmp_path / "run") == 3


def test_ctrl_c_is_raised_by_a_loop_that_is_closed(tmp_path: Path) -> None:
    steps = small.trainer().steps(small.data(), run=tmp_path / "run")
    assert [next(steps).step for _ in range(3)] == [1, 2, 3]
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        steps.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert trainees.last_step(tmp_path / "run") == 3


def test_a_step_at_which_the_driver_stops_and_the_training_is_asked_to_end_is_not_its_last(tmp_path: Path) -> None:
    """It is saved as it stands: nothing is reported of it, and the training goes on as if nobody had asked."""

    def drive() -> None:
        trainer = small.trainer()
        for info in trainer.steps(small.data(), small.data(), epochs=2, run=tmp_path / "run"):
            if info.step == 3:
                info.stop("enough")
                trainer.preempt()

    with pytest.raises(SystemExit):
        drive()
    found, whole = (small.fit(small.trainer(), small.data(), small.data(), run=at) for at in (tmp_path / "run", None))
    assert found.rows == whole.rows


class DrawsWhenScored(nn.Module):
    """Draws random numbers where it is scored too, and asks for the end of the training in a validation."""

    def __init__(self, ask: Callable[..., None] = lambda: None) -> None:
        super().__init__()
        self.inner, self.ask, self.scored = small.model(dropout=0.5), ask, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            torch.rand(1)
            self.scored += 1
            if self.scored == 5:
                self.ask()
        out: torch.Tensor = self.inner(x)
        return out


def test_a_validation_that_is_cut_short_has_drawn_no_random_numbers(tmp_path: Path) -> None:
    made: list[hr.Trainer] = []
    for ask, run in [(False, "whole"), (True, "parts"), (False, "parts")]:
        trainer = small.trainer(DrawsWhenScored(lambda ask=ask: made[-1].preempt() if ask else None))
        made.append(trainer)
        torch.manual_seed(0)
        with pytest.raises(SystemExit) if ask else nullcontext():
            small.fit(trainer, small.data(), small.data(), epochs=3, run=tmp_path / run)
    assert small.same(made[0], made[2])
