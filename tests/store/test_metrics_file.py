"""Files of a run beside its checkpoints: cut anywhere, or changed anywhere."""

import errno
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from kit import trainees
from kit.fault_harness import performing, unsynced
from kit.sampled import sampled
from kit.spoilt import spoilt
from torch import nn

import headrace as hr
from headrace.store import disk

STEPS, STOPPED, SAVED = 12, 10, 8  # of the training; when it was killed; the last checkpoint before that
X = torch.sin(torch.arange(72.0)).reshape(24, 3)
LIMIT_S = 10.0  # of computing, whatever else the machine does


class Stops(hr.Callback):
    """Ends the training as an error does."""

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == STOPPED + 1:
            raise InterruptedError


def train(run: Path, stops: bool = False) -> hr.History:
    """The training from where it is."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
    return trainer.fit(
        (X, (X[:, 0] > 0).long()),
        steps=STEPS,
        run=hr.Run(run, every="4 steps"),
        log_every="1 step",
        callbacks=[Stops()] if stops else [],
        progress=False,
    )


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with performing(unsynced):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a training that nobody stops."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(run)
    return (run / "metrics.jsonl").read_text().splitlines(keepends=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped some steps after its last checkpoint."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(InterruptedError):
        train(run, stops=True)
    assert trainees.last_step(run) == SAVED
    assert len((run / "metrics.jsonl").read_text().splitlines()) == STOPPED
    return run


def copied(run: Path, at: Path) -> Path:
    """A copy of a run; of its checkpoints, which nobody ever changes, only the names are copied."""

    def copy(source: str, target: str) -> None:
        (os.link if "checkpoints" in source else shutil.copyfile)(source, target)

    shutil.rmtree(at, ignore_errors=True)
    return shutil.copytree(run, at, copy_function=copy)


# --- cut short --------------------------------------------------------------------------------------------


def resumed_after_cut(stopped: Path, at: Path, size: int, whole: list[str]) -> None:
    run = copied(stopped, at)
    file = run / "metrics.jsonl"
    os.truncate(file, size)
    kept = [line for line in file.read_text().splitlines(keepends=True)[:SAVED] if line.endswith("\n")]
    before = file.stat().st_ino

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = train(run)

    assert [f"{file} is not as it was" in str(warning.message) for warning in caught] == [True] * (len(kept) < SAVED)
    assert file.read_text().splitlines(keepends=True) == kept + whole[SAVED:], size
    last = whole[SAVED - 1 : SAVED] if len(kept) < SAVED else []  # the checkpoint has its last row
    assert [json.dumps(row) for row in history] == [
        json.dumps(json.loads(line)) for line in [*kept, *last, *whole[SAVED:]]
    ]
    assert file.stat().st_ino == before, "it is added to, not written anew"


def test_a_report_cut_at_any_byte_goes_on_after_the_last_checkpoint(
    stopped: Path, whole: list[str], tmp_path: Path
) -> None:
    text = (stopped / "metrics.jsonl").read_bytes()
    assert len(text) > 1000
    ends = [0, *(k + 1 for k, byte in enumerate(text) if byte == ord("\n"))]
    near = {end + d for end in (0, *ends[SAVED - 1 :]) for d in (-2, -1, 0, 1) if 0 <= end + d <= len(text)}
    for size in sampled(range(len(text) + 1), keep=near, of=60):
        resumed_after_cut(stopped, tmp_path / "run", size, whole)


def test_a_report_is_on_the_disk_before_the_checkpoint_that_has_seen_it(tmp_path: Path) -> None:
    """So that what is cut off by a power failure is never older than a checkpoint."""
    seen = []

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        seen.append((operation, arguments[0].name))
        return unsynced(operation, call, *arguments)

    with performing(perform):
        train(tmp_path / "run")
    commits = [k for k, (operation, name) in enumerate(seen) if operation == "replace" and name == ".COMMIT.new"]
    assert len(commits) == 1 + STEPS // 4
    for begin, end in zip([0, *commits], commits, strict=False):
        assert ("fsync", "metrics.jsonl") in seen[begin:end]


# --- changed ----------------------------------------------------------------------------------------------


def outcome(run: Path) -> tuple[str, list[int]]:
    """Trains on: the steps that are reported, or what is said against it; any other error is the test's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return "", train(run)["step"]
    except hr.HeadraceError as error:
        return str(error), []


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
def test_a_file_changed_anywhere_is_refused_or_read_and_never_breaks_the_run(
    file: str, stopped: Path, whole: list[str], tmp_path: Path
) -> None:
    refused = taken = 0
    changes = sampled(range(500), of=20)
    original = (stopped / file).read_bytes()
    for number in changes:
        run = copied(stopped, tmp_path / "run")
        data = spoilt(original, Random(f"{file} {number}"))
        (run / file).write_bytes(data)
        start_s = time.process_time()
        told, steps = outcome(run)
        assert time.process_time() - start_s < LIMIT_S
        assert told == "" or str(run) in told, (number, data)
        if told == "":
            assert sorted(set(steps)) == steps, (number, data)
            assert steps[SAVED - STEPS - 1 :] == list(range(SAVED, STEPS + 1)), (number, data)
            assert file == "metrics.jsonl" or steps == list(range(1, STEPS + 1)), (number, data)
            assert (run / "metrics.jsonl").read_bytes().endswith("".join(whole[SAVED:]).encode()), (number, data)
        refused, taken = refused + (told != ""), taken + (told == "")
    assert taken + refused == len(changes)
    assert taken == len(changes) or file == "run.json"
    assert refused > len(changes) / 4 or file != "run.json"


def test_a_report_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    fired = 0

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal fired
        if operation == "write" and arguments[0].name == "metrics.jsonl":
            fired += 1
            if fired == 6:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
        return unsynced(operation, call, *arguments)

    with performing(perform), pytest.raises(hr.RunError) as caught:
        train(tmp_path / "run")
    assert fired == 6
    assert str(tmp_path / "run" / "metrics.jsonl") in str(caught.value)
    assert "No space left" in str(caught.value)
    assert disk.perform is unsynced
    train(tmp_path / "run")
