"""Files of a run beside its checkpoints: cut anywhere, changed anywhere, or not files at all."""

import errno
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from kit import trainees
from kit.fault_harness import performing, unsynced
from kit.forked import start, tell
from kit.sampled import sampled
from torch import nn

import headrace as hr
from headrace.store import disk

STEPS, STOPPED, SAVED = 12, 10, 8  # of the training; when it was killed; the last checkpoint before that
X = torch.sin(torch.arange(72.0)).reshape(24, 3)
FILES = ("run.json", "config.json", "metrics.jsonl", "log.txt")
LIMIT_S = 1.0  # of computing, whatever else the machine does


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


def sizes(stopped: Path) -> tuple[list[int], list[int]]:
    """Lengths to which the report may have been cut: some, and all."""
    text = (stopped / "metrics.jsonl").read_bytes()
    ends = [k + 1 for k, byte in enumerate(text) if byte == ord("\n")]
    near = {end + d for end in (0, *ends[SAVED - 2 :]) for d in (-2, -1, 0, 1) if 0 <= end + d <= len(text)}
    return sorted(near | set(Random(1).sample(range(len(text)), 12))), list(range(len(text) + 1))


@pytest.mark.slow
def test_a_report_cut_near_the_end_of_a_line_goes_on_after_the_last_checkpoint(
    stopped: Path, whole: list[str], tmp_path: Path
) -> None:
    for size in sizes(stopped)[0]:
        resumed_after_cut(stopped, tmp_path / "run", size, whole)


@pytest.mark.slow
def test_a_report_cut_at_any_byte_goes_on_after_the_last_checkpoint(
    stopped: Path, whole: list[str], tmp_path: Path
) -> None:
    assert len(sizes(stopped)[1]) > 1000
    for size in sampled(sizes(stopped)[1], of=12):
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

WORDS = [
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"\x85",
    b"[" * 5000,
    b"{",
    b'"',
    b"NaN",
    b"-1",
    b"1" * 5000,
    b"\\ud800",
    b"null",
]


def mutated(data: bytes, random: Random) -> bytes:
    """Bytes changed in a few of many ways."""
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(data) + 1)
        to = min(len(data), at + random.choice((0, 1, 4, 40)))
        kind = random.randrange(6)
        if kind == 0:
            data = data[:at] + random.randbytes(random.choice((1, 4))) + data[to:]
        elif kind == 1:
            data = data[:at] + random.choice(WORDS) + data[to:]
        elif kind == 2:
            data = data[:at] + data[to:]
        elif kind == 3:
            data = data[:at] + data[at:to] * 3 + data[to:]
        elif kind == 4:
            data = data[:at]
        elif data:
            data = bytes([*data[: at - 1], data[at - 1] ^ 1 << random.randrange(8), *data[at:]])
    return data


def outcome(run: Path) -> tuple[str, list[int]]:
    """Trains on: the steps that are reported, or what is said against it; any other error is the test's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return "", train(run)["step"]
    except hr.HeadraceError as error:
        return str(error), []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "changes",
    [pytest.param(range(12), id="some"), pytest.param(sampled(range(500), of=10), id="many", marks=pytest.mark.slow)],
)
def test_a_file_changed_anywhere_is_refused_or_read_and_never_breaks_the_run(
    file: str, changes: Sequence[int], stopped: Path, whole: list[str], tmp_path: Path
) -> None:
    refused = taken = 0
    original = (stopped / file).read_bytes()
    for number in changes:
        run = copied(stopped, tmp_path / "run")
        data = mutated(original, Random(f"{file} {number}"))
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


def test_a_number_whose_name_is_half_a_character_is_reported_as_any_other(tmp_path: Path) -> None:
    names = hr.Lambda(on_epoch_end=lambda info, row: info.log({"odd \ud800": 1.0}))
    for epochs in (1, 2):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
        watching = [names, hr.TensorBoard()]
        data = (X, (X[:, 0] > 0).long())
        trainer.fit(data, epochs=epochs, run=tmp_path / "run", callbacks=watching, progress=False)
    (events,) = (tmp_path / "run" / "tb").iterdir()
    assert events.read_bytes().count(b"odd \\ud800") == 2


# --- no files at all --------------------------------------------------------------------------------------


def train_and_tell(stopped: str, at: str, kind: str) -> None:
    """In a process of its own, as it may wait for ever: whether each file may be something else."""
    for file in FILES:
        run, precious = copied(Path(stopped), Path(at) / file / "run"), Path(at) / file / "precious"
        before = (run / file).read_bytes()
        precious.write_bytes(before)
        (run / file).unlink()
        {"a link": link_to(precious), "a directory": Path.mkdir, "a pipe": os.mkfifo}[kind](run / file)
        try:
            train(run)
            said = "trained"
        except hr.HeadraceError as error:
            said = "refused, named" if str(run) in str(error) else f"refused {error}"
        tell(f"{said}, {'left alone' if precious.read_bytes() == before else 'changed'}: {file}")


def link_to(path: Path) -> Callable[[Path], None]:
    return lambda at: at.symlink_to(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a link", "a directory", "a pipe"])
def test_what_should_be_a_file_and_is_none_is_refused_or_replaced(kind: str, stopped: Path, tmp_path: Path) -> None:
    """And what a link points to is left alone."""
    with start(train_and_tell, tmp_path, stopped, tmp_path, kind) as child:
        assert child.ending() == 0, (child.told, child.output)
    for file, line in zip(FILES, child.told, strict=True):
        assert line in (f"trained, left alone: {file}", f"refused, named, left alone: {file}")


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
