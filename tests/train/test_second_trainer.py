"""Two trainers and one run: the second is sent away at once, and a holder that is gone holds nothing."""

import fcntl
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit import small, trainees
from kit.forked import hear, start, tell

import headrace as hr
from headrace.store.run import LOCK, METRICS


def in_use(run: Path, pid: int) -> str:
    """What the second is told, as a pattern."""
    host = re.escape(socket.gethostname())
    return rf"{re.escape(str(run))} is in use by process {pid} on {host}\. One trainer at a time"


class Pauses(hr.Callback):
    """Stays in the middle of the training until the test says a word."""

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 7:
            tell("at work")
            hear()


def train(run: str, pauses: bool) -> None:
    """The training, which may stay in its middle."""
    trainer = trainees.trainer()
    trainees.fit(trainer, run, callbacks=[Pauses()] if pauses else [])
    tell("digest " + trainees.digest(trainer))


def seen(run: Path) -> dict[str, bytes]:
    """Every file of a run that no thread is writing any more."""
    return {name: (run / name).read_bytes() for name in (METRICS, LOCK, "run.json", "config.json", "log.txt")}


def test_a_second_trainer_fails_at_once_and_names_the_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train, tmp_path, run, True) as first:
        first.until("at work")
        before = seen(run)
        for _ in range(2):
            with start(train, tmp_path, run, False) as second:
                assert second.ending() == 1
            assert re.search("RunError: " + in_use(run, first.pid), second.output), second.output
        assert seen(run) == before
        first.say("go on")
        assert first.until("digest") == trainees.reference().digest
        assert first.ending() == 0
    assert trainees.finished(run).rows == trainees.reference().rows


def train_when_told(run: str) -> None:
    """The training, as soon as the test says so, and after its middle when the test says so again."""
    tell("ready")
    hear()
    train(run, True)


def test_of_two_that_start_at_the_same_moment_one_trains(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train_when_told, tmp_path, run) as one, start(train_when_told, tmp_path, run) as other:
        for child in (one, other):
            child.until("ready")
        for child in (one, other):
            child.say("go")
        refused, trained = sorted((one, other), key=lambda child: child.line() is not None)
        assert refused.ending() == 1
        assert re.search(rf"RunError: {re.escape(str(run))} is in use by", refused.output), refused.output
        trained.say("go on")
        assert trained.until("digest") == trainees.reference().digest


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_a_holder_that_died_holds_nothing(number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train, tmp_path, run, True) as first:
        first.until("at work")
        first.send(number)
        assert first.ending() == -number
        assert f"process {first.pid} on" in (run / LOCK).read_text(), "its name is still there, and no lock"
        assert trainees.finished(run) == trainees.reference()


# --- in one process ---------------------------------------------------------------------------------------


def refused(run: Path) -> str:
    with pytest.raises(hr.RunError) as caught:
        small.fit(small.trainer(), run=run)
    return str(caught.value)


@pytest.mark.parametrize("by_thread", [True, False])
def test_a_second_trainer_of_the_same_process_is_sent_away_while_the_first_is_at_work(
    by_thread: bool, tmp_path: Path
) -> None:
    def at_the_third_step(info: hr.Info) -> None:
        if info.step == 3:
            with ThreadPoolExecutor(1) as pool:
                told.append(pool.submit(refused, run).result() if by_thread else refused(run))

    run, told = tmp_path / "run", list[str]()
    small.fit(small.trainer(), run=run, callbacks=[hr.Lambda(on_step_end=at_the_third_step)])
    assert len(told) == 1
    assert re.match(in_use(run, os.getpid()), told[0])
    assert small.fit(small.trainer(), run=run, epochs=3).last["step"] == 12


# --- children of the holder -------------------------------------------------------------------------------


def train_and_leave_a_worker(run: str) -> None:
    """A worker, forked while the run is held, outlives the trainer that forked it."""

    class Forks(hr.Callback):
        def on_step_end(self, info: hr.Info) -> None:
            if info.step != 7:
                return
            reading, writing = os.pipe()
            if not os.fork():
                tell(f"worker {os.getpid()}")
                os.close(writing)
                hear()
                os._exit(0)
            os.close(writing)
            os.read(reading, 1)
            os.kill(os.getpid(), signal.SIGKILL)

    trainees.fit(trainees.trainer(), run, callbacks=[Forks()])


def test_a_worker_that_outlives_its_trainer_does_not_hold_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train_and_leave_a_worker, tmp_path, run) as first:
        worker = int(first.until("worker"))
        assert first.code() == -signal.SIGKILL
        assert trainees.finished(run) == trainees.reference()
        os.kill(worker, 0)
        first.say("end")
        first.ending()


# --- what a lock file may be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b"\x1b[2J\x1b]0;mine\x07 on\r\nhost\x00\x9b31m", b"\xff\xfe\x80", b"", b"x" * 100_000]
)
def test_what_a_lock_says_is_shown_without_its_control_characters(text: bytes, tmp_path: Path) -> None:
    with open(tmp_path / LOCK, "wb") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        told = refused(tmp_path)
    assert "is in use by" in told
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", told)
    assert len(told) < 6000
    assert ("another process" in told) == (text == b"")


@pytest.mark.parametrize("kind", ["a link", "a directory", "a pipe"])
def test_a_lock_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    {"a link": lambda at: at.symlink_to(target), "a directory": Path.mkdir, "a pipe": os.mkfifo}[kind](run / LOCK)
    assert str(run) in refused(run)
    assert target.read_text() == "mine"
