"""Requests to end that are the user's own: handlers, threads, hooks, and what a trainer does afterwards."""

import os
import signal
import threading
import time
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


def look_at_handlers(at: str) -> None:
    """Four ways to end a training, and whether handlers are what they were, in it and after it."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def kept() -> bool:
        return [signal.getsignal(number) for number in numbers] == before

    def fail() -> None:
        raise RuntimeError("something else")

    for way in ("through", "preempted", "failed", "left"):
        trainer, inside = trainees.trainer(), []
        what = {"preempted": trainer.preempt, "failed": fail}.get(way, lambda: None)
        looks = hr.Lambda(on_step_end=lambda info: [inside.append(kept()), what()] if info.step == 3 else None)  # noqa: B023
        try:
            small.drive(
                trainer,
                trainees.Rows(),
                until=3 if way == "left" else None,
                steps=5,
                run=Path(at) / way,
                callbacks=[looks],
            )
        except (RuntimeError, SystemExit) as error:
            tell(f"{type(error).__name__} {error}")
        tell(f"{way}: {inside} {kept()}")


def test_handlers_are_what_they_were_however_a_training_ends(tmp_path: Path) -> None:
    with start(look_at_handlers, tmp_path, tmp_path) as child:
        assert child.ending() == 0, child.output
    told = ["through", "SystemExit 143", "preempted", "RuntimeError something else", "failed", "left"]
    assert child.told == [line if " " in line else f"{line}: [False] True" for line in told]


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


@pytest.mark.slow
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


def train_in_a_thread(run: str) -> None:
    """The training outside the main thread, where no handler can be set, and a handler that preempts it."""
    watched = trainees.Watched("backward", 13, trainees.until_signal)
    asked: list[bool] = []  # no event: the handler may run while this thread holds the event's lock

    def work() -> None:
        try:
            watched.fit(run)
        except SystemExit as error:
            tell(f"status {error.code}")

    signal.signal(signal.SIGTERM, lambda *_: (watched.trainer.preempt(), asked.append(True)))
    thread = threading.Thread(target=work)
    thread.start()
    while not asked:
        time.sleep(0.01)
    tell("asked")
    thread.join()


@pytest.mark.slow
def test_a_training_outside_the_main_thread_can_be_preempted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train_in_a_thread, tmp_path, run) as child:
        child.until("there, another thread")
        assert trainees.preempted(child, awaited="asked") == 0
        assert "status 143" in child.told
    assert trainees.last_step(run) == 13
    assert trainees.finished(run) == trainees.reference()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_without_a_run_signals_do_what_they_always_do(number: int, status: int, tmp_path: Path) -> None:
    with start(trainees.train, tmp_path, None, "backward", 13) as child:
        child.until("there")
        assert trainees.preempted(child, number) == status
        assert "step 13" not in child.told


# --- afterwards -------------------------------------------------------------------------------------------


def go_on_in_the_same_process(run: str) -> None:
    """Preempted, caught, validated, and trained to the end by the same trainer."""
    watched = trainees.Watched("backward", 13, lambda: watched.trainer.preempt())
    try:
        watched.fit(run)
    except SystemExit as error:
        tell(f"status {error.code}")
    trainer = watched.trainer
    tell(f"validated {trainer.validate(trainees.Rows(12))['val/loss'] > 0}")
    tell(f"predicted {tuple(trainer.predict(trainees.Rows(9)).shape)}")
    watched.fit(run)
    tell("digest " + trainees.digest(trainer))


@pytest.mark.slow
def test_a_trainer_that_was_preempted_validates_predicts_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(go_on_in_the_same_process, tmp_path, run) as child:
        assert child.until("status") == "143"
        assert child.until("validated") == "True"
        assert child.until("predicted") == "(9, 2)"
        assert child.until("digest") == trainees.reference().digest


def ask_too_early(run: str) -> None:
    """A request while the data are looked at, before the training proper, as a handler of one's own may make it."""

    class Asking(trainees.Rows):
        def __len__(self) -> int:
            trainer.preempt()
            return super().__len__()

    trainer = trainees.trainer()
    trainees.fit(trainer, run, Asking())


def test_a_request_that_comes_while_a_training_is_set_up_is_not_forgotten(tmp_path: Path) -> None:
    with start(ask_too_early, tmp_path, tmp_path / "run") as child:
        assert child.ending() == PREEMPTED
    assert trainees.last_step(tmp_path / "run") <= 1


def validate_in_a_hook(run: str, preempts: bool) -> None:
    """A callback that validates by itself when an epoch ends, and remembers what it found."""

    class Validates(hr.Callback):
        def __init__(self) -> None:
            self.found: list[list[float]] = []

        def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
            if preempts and info.step == 20:
                info.trainer.preempt()
            self.found.append([info.step, info.trainer.validate(trainees.Rows(12))["val/loss"]])

        def state_dict(self) -> dict[str, Any]:
            return {"found": self.found}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.found = state["found"]

    callback = Validates()
    trainees.fit(trainees.trainer(), run, callbacks=[callback])
    tell(f"found {callback.found}")


@pytest.mark.slow
def test_a_hook_that_is_interrupted_in_a_validation_of_its_own_is_called_again(tmp_path: Path) -> None:
    found = []
    for name, asked in (("never", [False]), ("once", [True, False])):
        for preempts in asked:
            with start(validate_in_a_hook, tmp_path, tmp_path / name, preempts) as child:
                if preempts:
                    assert child.ending() == PREEMPTED
                else:
                    found.append(child.until("found"))
    assert found[0] == found[1]


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

    def __init__(self, ask: Callable[[], None] = lambda: None) -> None:
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
