"""Data that fail: they raise, give wrong rows, never come, end the process or break the memory they are read from."""

import mmap
import os
import re
import signal
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kit import trainees
from kit.forked import Child, hear, start, tell
from kit.sampled import sampled
from torch import Tensor

import headrace as hr
from headrace.data import feed

STATUS = 77


class Failing(trainees.Rows):
    """Rows that fail, in a way of their own, at one question for them; each is told."""

    def __init__(self, count: int, at: int, how: str) -> None:
        super().__init__(count)
        self._at, self._fail, self._questions = at, WAYS[how], 0

    def take(self, indices: Tensor) -> Any:
        self._questions += 1
        if self._questions != self._at:
            return super().take(indices)
        tell(f"failed on {len(indices)} rows")
        return self._fail(super().take(indices))


# --- ways to fail -----------------------------------------------------------------------------------------


def raises(batch: hr.Batch) -> hr.Batch:
    raise KeyError("row 17 is not in the archive")


def exits(batch: hr.Batch) -> hr.Batch:
    os._exit(STATUS)


def hangs(batch: hr.Batch) -> hr.Batch:
    hear()
    return batch


def breaks(batch: hr.Batch) -> hr.Batch:
    """Reads memory that is mapped to a file which has become shorter."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        file.truncate(mmap.PAGESIZE)
        return hr.Batch({"x": batch["x"] + memory[-1], "y": batch["y"]})


WAYS: dict[str, Callable[[hr.Batch], Any]] = {
    "raises": raises,
    "exits": exits,
    "hangs": hangs,
    "breaks": breaks,
    "another dtype": lambda batch: hr.Batch({"x": batch["x"].double(), "y": batch["y"]}),
    "a dict": lambda batch: dict(batch.fields),
    "nothing": lambda batch: None,
}
MESSAGES = {
    "raises": r"Failing|Reader.* failed while reading .*8 rows of x, y .*KeyError: 'row 17 is not in the archive'",
    "another dtype": r"expected stream x: float32\[5\], got x: float64\[5\]",
    "a dict": r"Failing.* gave a dict",
    "nothing": r"Failing.* gave a NoneType",
}


def train(run: str, how: str, at: int, join_timeout_s: float = feed.JOIN_TIMEOUT_S) -> None:
    """The training, whose data fail at a question; a read that hangs may be waited for more shortly."""
    feed.JOIN_TIMEOUT_S = join_timeout_s
    watched = trainees.Watched("", -1, lambda: None)
    trainees.fit(watched.trainer, run, Failing(trainees.ROWS, at, how), callbacks=[watched])


def updates_before(question: int) -> int:
    """The updates for which there were rows: a question is for two, the last of an epoch included."""
    return 2 * (question - 1)


def failed(child: Child, question: int) -> None:
    """It has failed there, after all updates that it had rows for."""
    assert f"failed on {6 if question % 5 == 0 else 8} rows" in child.told
    steps = [line for line in child.told if line.startswith("step")]
    assert steps[-1:] == [f"step {updates_before(question)}"][: question - 1]


ALL = [1, 4, 9]  # questions: the first, one in the first epoch, one in the second
CASES = sampled(product(MESSAGES, ALL), keep=[("raises", 4), *[(how, 9) for how in MESSAGES]], of=6)


@pytest.mark.parametrize(("how", "at"), CASES)
def test_rows_that_fail_end_the_training_by_an_error_that_names_them(how: str, at: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train, tmp_path, run, how, at) as child:
        assert child.ending() == 1
    failed(child, at)
    assert re.search(rf"^headrace\.errors\.(SourceError|DataError): .*{MESSAGES[how]}", child.output, re.MULTILINE)
    assert trainees.finished(run) == trainees.reference()


@pytest.mark.parametrize(
    ("how", "status", "at"),
    [("exits", STATUS, 1), ("exits", STATUS, 9), ("breaks", -signal.SIGBUS, 4)],
)
def test_data_that_end_the_process_lose_nothing(how: str, status: int, at: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train, tmp_path, run, how, at) as child:
        assert child.ending() == status
    assert f"failed on {6 if at % 5 == 0 else 8} rows" in child.told
    assert trainees.finished(run) == trainees.reference()


@pytest.mark.parametrize("at", ALL)
def test_data_that_never_come_do_not_keep_a_training_from_ending(at: int, tmp_path: Path) -> None:
    join_timeout_s, run = 0.3, tmp_path / "run"
    with start(train, tmp_path, run, "hangs", at, join_timeout_s) as child:
        trainees.told(child, "failed")
        if at > 1:
            trainees.told(child, f"step {updates_before(at)}")
        assert trainees.preempted(child) == trainees.PREEMPTED
    failed(child, at)
    assert (
        f"is still being read {join_timeout_s:g} s after its feed was left. Nobody waits for that read" in child.output
    )
    assert trainees.last_step(run) == updates_before(at)
    assert trainees.finished(run) == trainees.reference()
