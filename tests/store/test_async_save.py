"""Checkpoints that are written slowly while the training goes on: what they hold, what fails, who waits for them."""

import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import trainees
from kit.forked import start, start_script, tell
from kit.sampled import sampled
from torch import Tensor, nn

import headrace as hr
from headrace.store import disk
from headrace.store.checkpoints import Store
from headrace.store.contents import MODEL, TRAINER, Contents
from headrace.train import checkpointer as keeper

EVERY = 10  # steps from save to save
WITHIN_S = 200.0
FAILING = [0, 5, 10, 20, 25]  # steps at which the disk breaks
DATA = torch.sin(torch.arange(400.0)).reshape(100, 4)


def perform_with(before: Callable[[str, Path], object]) -> None:
    """From now on, this is called before every operation on a file."""
    real = disk.perform

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        before(operation, Path(arguments[0]))
        return real(operation, call, *arguments)

    disk.perform = perform


def write_slowly(delay_s: float) -> None:
    """From now on, every write takes so long."""
    never = threading.Event()
    perform_with(lambda operation, path: never.wait(delay_s) if operation == "write" else None)


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    found = [bytes(tensor.contiguous().view(torch.uint8).numpy()) for _, tensor in sorted(tensors.items())]
    return hashlib.sha256(b"".join(found)).hexdigest()


class Saves(hr.Callback):
    """Tells what the weights are when a checkpoint is asked for, and how far the loop is when one is done.

    With `late`, it is written when the loop has come to where the next one is due, if it comes there meanwhile.
    """

    def __init__(self, late: range) -> None:
        self._late, self._step, self._moved = late, 0, threading.Condition()

    def on_step_end(self, info: hr.Info) -> None:
        with self._moved:
            self._step = info.step
            self._moved.notify_all()

    def on_checkpoint(self, info: hr.Info) -> None:
        tell(f"asked {info.step} {hash_of(info.trainer.model.state_dict())}")

    def before(self, operation: str, path: Path) -> None:
        found = re.search(r"/step-(\d+)-", str(path))
        saved = int(found[1]) if found else -1
        if operation == "write" and saved in self._late:
            with self._moved:
                self._moved.wait_for(lambda: self._step >= saved + EVERY - 1, WITHIN_S)
        if path.name == ".COMMIT.new" and operation == "replace":
            tell(f"ahead {self._step - saved}")


def trainer() -> hr.Trainer:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))
    return trainees.trainer(model, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), microbatch=None)


def train(run: str, saves: int, wait: bool, copies: bool = True) -> None:
    """A training of resident rows, which writes beside, and late, or waits. Its snapshots may be no copies."""
    if not copies:
        keeper.Copier.__call__ = lambda self, tensors: dict(tensors)  # type: ignore[attr-defined, method-assign]
    trainees.seed()
    callback = Saves(range(0) if wait else range(1, saves * EVERY))
    perform_with(callback.before)
    data = (DATA[:, :3], (DATA[:, 3] > 0).long())
    kept = hr.Run(run, every=f"{EVERY} steps", keep="all", wait=wait)
    trainer().fit(data, steps=saves * EVERY, run=kept, callbacks=[callback], progress=False)


def saved(run: Path, **how: Any) -> tuple[dict[int, str], list[int], list[Contents]]:
    """A training: what it said when it asked for each checkpoint, how far it was afterwards, and all checkpoints."""
    with start(train, run.parent, run, *how.values()) as child:
        assert child.ending() == 0, child.output
    asked = {int(line.split()[1]): line.split()[2] for line in child.told if line.startswith("asked")}
    ahead = [int(line.split()[1]) for line in child.told if line.startswith("ahead")]
    store = Store(run / "checkpoints", None)
    return asked, ahead, [store.load(step) for step in store.steps()]


def plain(contents: Contents) -> tuple[Any, dict[str, dict[str, str]]]:
    """What two checkpoints of the same state have in common: all but the time it took."""
    contents.documents[TRAINER]["counters"]["minutes"] = 0
    tensors = {
        file: {name: hash_of({name: t}) for name, t in found.items()} for file, found in contents.tensors.items()
    }
    return contents.documents, tensors


def test_a_checkpoint_holds_the_state_at_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    asked, ahead, found = saved(tmp_path / "beside", saves=10, wait=False)
    _, not_ahead, expected = saved(tmp_path / "waiting", saves=10, wait=True)

    assert [contents.step for contents in found] == [EVERY * k for k in range(11)] == list(asked)
    assert min(ahead[1:-1]) >= EVERY - 1, "the loop has gone on while it was written"
    assert max(not_ahead) == 0
    for contents, alike in zip(found, expected, strict=True):
        assert hash_of(contents.tensors[MODEL]) == asked[contents.step]
        assert plain(contents) == plain(alike)


def test_a_snapshot_that_is_no_copy_would_be_noticed(tmp_path: Path) -> None:
    """The negative control."""
    try:
        asked, _, found = saved(tmp_path / "run", saves=3, wait=False, copies=False)
    except hr.CorruptError:  # the weights have changed between the checksum and the writing
        return
    assert [hash_of(contents.tensors[MODEL]) == asked[contents.step] for contents in found[1:-1]] == [False, False]


def test_updates_are_made_while_the_first_checkpoint_is_written_and_reports_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, in_time, real = threading.Event(), list[bool](), disk.perform

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if operation == "write" and "/step-000000000000-" in str(arguments[0]):
            in_time.append(third.wait(WITHIN_S))
        return real(operation, call, *arguments)

    def report(info: hr.Info, row: Any) -> None:
        assert Store(tmp_path / "run" / "checkpoints", None).steps() == [0]

    monkeypatch.setattr(disk, "perform", perform)
    model = nn.Linear(3, 2)
    made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), batch_size=10)
    calls = [hr.Lambda(on_step_end=lambda info: third.set() if info.step == 3 else None, on_report=report)]
    made.fit((DATA[:, :3], (DATA[:, 3] > 0).long()), epochs=1, run=tmp_path / "run", progress=False, callbacks=calls)
    assert in_time
    assert all(in_time)


# --- a writer that fails ----------------------------------------------------------------------------------


def fail_at(step: int) -> None:
    """From now on, the checkpoint of a step cannot be written."""

    def fail(operation: str, path: Path) -> None:
        if operation == "write" and f"step-{step:012d}-" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    perform_with(fail)


def train_and_fail(run: str, step: int) -> None:
    """The training, on a disk that breaks while the checkpoint of a step is written."""
    fail_at(step)
    trainees.Watched("", -1, lambda: None).fit(run)


@pytest.mark.parametrize(
    ("step", "last"),
    [(30, 30), *[(k, k + 5 if k else 2) for k in sampled(FAILING, keep=[0], of=2)]],
)
def test_a_write_that_fails_ends_the_training_at_the_next_save_or_at_the_end(
    step: int, last: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with start(train_and_fail, tmp_path, run, step) as child:
        assert child.ending() == 1
    assert f"{run}/checkpoints/step-{step:012d}-" in child.output, "the file is named"
    assert [line for line in child.told if line.startswith("step")][-1:] == [f"step {last}"]
    steps = Store(run / "checkpoints", None).steps()
    assert step not in steps
    assert steps == [] if step == 0 else max(steps) == step - 5
    told = (run / "log.txt").read_text()
    assert trainees.finished(run) == trainees.reference()
    for text in (child.output, told):
        assert f"saving step {step} in {run}/checkpoints failed: {os.strerror(errno.EIO)}" in text


# --- ways to leave ----------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import headrace as hr
import test_async_save
from contextlib import closing
from kit import trainees
test_async_save.write_slowly(0.005)
if {fails}:
    test_async_save.fail_at(7)
{loop}
        if info.step == 7:
            {leave}
"""
LOOPS = {
    "plain": "if True:\n    for info in trainees.trainer().steps({arguments}):",
    "closed": "with closing(trainees.trainer().steps({arguments})) as loop:\n    for info in loop:",
}
ARGUMENTS = 'trainees.Rows(), run=hr.Run({run!r}, every="5 steps"), epochs=1'


def script(at: Path, loop: str, leave: str, fails: bool) -> Path:
    """A program that leaves its loop at step 7, while the checkpoint of step 5 is being written."""
    arguments = ARGUMENTS.format(run=str(at / "run"))
    text = SCRIPT.format(
        folder=str(Path(__file__).parent), loop=LOOPS[loop].format(arguments=arguments), leave=leave, fails=fails
    )
    (at / "script.py").write_text(text)
    return at / "script.py"


WAYS = [  # the loop, how it is left, whether its last save fails, the exit status, the last step that is saved
    ("plain", "break", False, 0, 7),
    ("closed", "sys.exit(3)", False, 3, 7),
    ("closed", "raise ValueError('mine')", True, 1, 5),
    ("plain", "break", True, 0, 5),  # where Python only prints the error
]


@pytest.mark.parametrize(
    ("loop", "leave", "fails", "status", "step"),
    [way if number < 2 else pytest.param(*way, marks=pytest.mark.slow) for number, way in enumerate(WAYS)],
)
def test_a_program_that_leaves_its_loop_in_any_way_has_its_last_update_saved_or_is_told(
    loop: str, leave: str, fails: bool, status: int, step: int, tmp_path: Path
) -> None:
    with start_script(script(tmp_path, loop, leave, fails)) as child:
        assert child.ending() == status, child.output
    assert trainees.last_step(tmp_path / "run") == step
    unsaved = "step-000000000007-"
    assert (f"{tmp_path}/run/checkpoints/{unsaved}" in child.output) == fails
    assert (unsaved in (tmp_path / "run" / "log.txt").read_text()) == fails
    assert fails or "Exception ignored" not in child.output
    assert fails or ("ValueError: mine" in child.output) == ("ValueError" in leave)
