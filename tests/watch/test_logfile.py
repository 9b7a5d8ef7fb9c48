"""The log of a training: a line for every report, and for every warning, which everybody else sees too."""

import re
import warnings
from pathlib import Path

import pytest
from kit.tracked import At, fail, train

from headrace.watch.files import LogFile


def lines(path: Path) -> list[str]:
    """The log without its times, which are all as they should be."""
    found = path.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S", line) for line in found)
    return [line[20:] for line in found]


def test_the_log_of_a_run_has_every_report_once(tmp_path: Path) -> None:
    history = train(LogFile(), run=tmp_path / "run")
    found = lines(tmp_path / "run" / "log.txt")
    reports = [line for line in found if line.startswith("epoch")]
    assert [re.findall(r"step (\d+)", line)[0] for line in reports] == ["4", "6", "8", "12", "12"]
    assert reports[0].startswith("epoch 0  step 4  samples 16  rate 0.1  val/loss ")
    assert f"val/loss {history.rows[0]['val/loss']:.6g}  " in reports[0]
    assert "train/loss" in reports[1]
    assert "test/loss" in reports[-1]
    assert [found.count(line) for line in ("started", "ended: 2 epochs reached")] == [1, 1]


def test_a_log_of_its_own_tells_of_going_on_and_of_errors(tmp_path: Path) -> None:
    path, run = tmp_path / "own.log", tmp_path / "run"
    with pytest.raises(InterruptedError):
        train(LogFile(path), At(7, fail), run=run)
    assert lines(path)[-1] == "ended by InterruptedError: on purpose"
    train(LogFile(path), run=run)
    assert lines(path).count("going on from step 5") == 1
    assert lines(path)[-1] == "ended: 2 epochs reached"


def test_warnings_are_in_the_log_and_seen_by_everybody_else(tmp_path: Path) -> None:
    before = warnings.showwarning
    with pytest.warns(UserWarning, match="beware"):
        train(
            LogFile(tmp_path / "log"), At(2, lambda info: warnings.warn("beware\nof \x1b", UserWarning, stacklevel=1))
        )
    assert warnings.showwarning is before
    assert lines(tmp_path / "log").count(r"warning: beware\nof \x1b") == 1


def test_a_log_that_cannot_be_written_any_more_is_no_reason_to_stop(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    history = train(log, At(5, lambda info: log._file.close()))  # type: ignore[union-attr]
    assert len(history) == 4
