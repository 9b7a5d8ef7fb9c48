"""The directory of a run: what is in it, who may use it, and whether it can be written."""

import ctypes
import errno
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.fault_harness import Fail, Trace, open_files, performing
from kit.small import in_run
from torch import nn

import headrace as hr
from headrace.store import disk
from headrace.store.run import METRICS, RunFiles, run_id

ROOT = pytest.mark.root
X = torch.sin(torch.arange(72.0)).reshape(24, 3)


def train(run: Path, **options: Any) -> hr.History:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
    return trainer.fit((X, (X[:, 0] > 0).long()), **in_run(run, **{"epochs": 2, "progress": False} | options))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / METRICS).read_text().splitlines()]


# --- what is in it ----------------------------------------------------------------------------------------


def test_run_json_says_what_ran_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_TEST", "3")
    monkeypatch.setenv("MY_SECRET", "password")
    run = RunFiles(tmp_path / "a" / "b" / "run")
    run.close()
    facts = json.loads((run.path / "run.json").read_text())
    assert facts.keys() == {"id", "created", "command", "versions", "environment", "git"}
    assert facts["id"] == run.id == run_id(run.path)
    assert re.fullmatch(r"[0-9a-f]{32}", facts["id"])
    assert facts["command"] == sys.argv
    assert facts["versions"].keys() == {"headrace", "python", "torch", "numpy"}
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["environment"]["host"] == os.uname().nodename
    assert facts["environment"]["directory"] == os.getcwd()
    assert facts["environment"]["variables"]["OMP_TEST"] == "3"
    assert "password" not in (run.path / "run.json").read_text()
    (again := RunFiles(run.path)).close()
    (other := RunFiles(tmp_path / "other")).close()
    assert again.id == run.id != other.id


def test_the_commit_is_noted_and_whether_there_were_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := tmp_path / "work").mkdir()
    monkeypatch.chdir(place)
    who = ["-c", "user.name=a", "-c", "user.email=b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", "first"], ["rev-parse", "HEAD"]):
        (place / "file").write_text("1")
        found = subprocess.run(["git", *words], check=True, timeout=400, capture_output=True, text=True).stdout
    for text, suffix in (("1", ""), ("2", "+")):
        (place / "file").write_text(text)
        RunFiles(tmp_path / f"run{suffix}").close()
        assert json.loads((tmp_path / f"run{suffix}" / "run.json").read_text())["git"] == found.strip() + suffix


def test_config_json_holds_the_settings_for_a_person_to_read(tmp_path: Path) -> None:
    train(tmp_path / "run")
    text = (tmp_path / "run" / "config.json").read_text()
    found = json.loads(text)
    assert found["batch_size"] == 4
    assert found["optimizer"]["groups"][0]["lr"] == 0.1
    assert found["loss"]["kind"] == "CrossEntropy"
    assert found["limits"] == {"epochs": 2}
    train(tmp_path / "run", epochs=3)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["limits"] == {"epochs": 3}


def test_the_log_has_a_line_with_a_time_for_everything_that_happened(tmp_path: Path) -> None:
    train(tmp_path / "run")
    train(tmp_path / "run", epochs=3)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    told = [line[20:] for line in lines]
    data = "the train data (Reader) resume exactly, after any batch, with any number of workers"
    first, last = ["started", data, "ended: 2 epochs reached"], ["ended: 3 epochs reached"]
    reports = [line for line in told if line.startswith("epoch ")]
    notes = [line for line in told if line.startswith("passes are ")]  # replayed or not: that depends on the machine
    more = ["limit in epochs: 2 in the run, 3 now", "going on from step 12"]
    assert [line for line in told if line not in reports + notes] == [*first, *more, data, *last]
    assert notes
    assert [line.split()[3] for line in reports] == ["6", "12", "18"]


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J\x1b]0;m\x07", "one\ntwo\rthree", "a\0b\x7f\x9b31m", "next\x85line", "α\t✓", "\x1b[31mred\n \u202e"],
)
def test_a_log_line_is_one_line_and_has_no_control_characters(text: str, tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "run")
    run.log(f"stream {text!s} is odd")
    run.close()
    [line] = (run.path / "log.txt").read_bytes().decode().split("\n")[:-1]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    assert line[20:].startswith("stream ")
    assert line.endswith(" is odd")
    assert ("α" in line) == ("α" in text)
    for letter in re.findall("[a-z]+", text):
        assert letter in line


def test_reports_are_json_whatever_a_metric_gives(tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "run")
    odd = {"step": 1, "a": math.nan, "b": -math.inf, "c": torch.tensor([1.0, math.inf]), "d": np.float32(0.5)}
    run.report({**odd, "e": {1: (2, None)}, "f": object, "g": np.array([[1]]), "h": "\n\ud800", "i": True}, 0.5)
    run.close()
    [row] = rows_of(run.path)
    assert row["a"], row["b"] == ("NaN", "-Infinity")
    assert row["c"] == [1.0, "Infinity"]
    assert (row["d"], row["e"], row["g"], row["i"]) == (0.5, {"1": [2, None]}, [[1]], True)
    assert row["f"] == str(object)
    assert row["h"] == "\n\ud800"


# --- who may use it ---------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("mine")
    (tmp_path / "thesis" / "checkpoints").mkdir()
    before = contents(tmp_path)
    with pytest.raises(hr.RunError, match=r"it has no run\.json, and holds chapter1\.tex, checkpoints"):
        train(tmp_path / "thesis")
    assert contents(tmp_path) == before
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".gitignore").write_text("*")
    train(tmp_path / "hidden")
    assert (tmp_path / "hidden" / ".gitignore").read_text() == "*"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"id": 5}', '{"id": ""}', "\xff", "[" * 10**5, '{"id": "a"'])
def test_a_run_whose_json_says_nothing_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(hr.RunError, match=re.escape(str(tmp_path / "run.json"))):
        RunFiles(tmp_path)
    (tmp_path / "run.json").write_text('{"id": "abc"}')
    RunFiles(tmp_path).close()  # nothing of it is held


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(hr.RunError, match=re.escape(str(tmp_path / "file"))):
            train(path)
    assert (tmp_path / "file").read_text() == "mine"


# --- whether it can be written ----------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a piece of memory as a file system, for as long as the test lasts."""
    libc, places = ctypes.CDLL(None, use_errno=True), list[Path]()

    def mount(options: str) -> Path:
        place = tmp_path / f"mounted-{len(places)}"
        place.mkdir()
        if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options.encode()):
            pytest.skip(f"needs to be root, to mount a file system: {os.strerror(ctypes.get_errno())}")
        places.append(place)
        return place

    yield mount
    for place in places:
        libc.umount2(os.fsencode(place), 2)


@ROOT
def test_a_directory_that_cannot_be_written_is_refused_before_the_first_step(
    mounted: Callable[[str], Path],
) -> None:
    place = mounted("size=1m")
    if ctypes.CDLL(None, use_errno=True).mount(None, os.fsencode(place), None, 32 | 1, None):
        pytest.skip("a mount cannot be made read-only here")
    with pytest.raises(hr.RunError, match="Read-only file system") as caught:
        train(place / "run")
    assert str(place / "run") in str(caught.value)
    assert caught.value.errno == errno.EROFS


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]


@ROOT
def test_a_directory_without_room_for_two_checkpoints_is_refused_with_both_numbers(
    mounted: Callable[[str], Path],
) -> None:
    place = mounted("size=256k")
    model = nn.Linear(100, 1000)
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(hr.RunError, match="room for two checkpoints") as caught:
        trainer.fit((torch.randn(4, 100), torch.randn(4, 1000)), run=place / "run", epochs=1, progress=False)
    free, needed = (bytes_of(text) for text in re.findall(r"[\d.e+]+ [kM]?B", str(caught.value)))
    assert 0 < free <= 256 * 1024
    assert needed >= 2 * 4 * 101_000
    assert str(place / "run") in str(caught.value)
    assert trainer.history.rows == []


@ROOT
@pytest.mark.parametrize("left", range(0, 16384, 4096))
def test_a_full_directory_is_refused_in_a_sentence_and_taken_once_there_is_room(
    left: int, mounted: Callable[[str], Path]
) -> None:
    place = mounted("size=256k")
    filler = place / "filler"
    filler.write_bytes(bytes(disk.free(place) - left))
    files = open_files()
    with pytest.raises(hr.RunError, match=r"No space left on device|room for two checkpoints") as caught:
        train(place / "run")
    assert str(place / "run") in str(caught.value)
    assert " free" in str(caught.value)

    filler.unlink()
    assert train(place / "run")["step"] == [6, 12]
    assert open_files() == files, "nothing is held open"


def used(path: Path) -> str:
    """Opens a run and writes what belongs to it; what is said against it."""
    try:
        run = RunFiles(path)
        try:
            run.probe(0)
            run.configure({"a": 1})
        finally:
            run.close()
    except hr.RunError as error:
        return str(error)
    return ""


def test_whatever_fails_while_a_run_is_opened_it_can_be_opened_again(tmp_path: Path) -> None:
    with performing(trace := Trace()):
        assert used(tmp_path / "traced") == ""
    assert len(trace.operations) > 15
    files = open_files()
    for at, _ in enumerate(trace.operations):
        with performing(Fail(at=at, code=errno.EIO, lasting=True)):
            assert os.strerror(errno.EIO) in used(tmp_path / str(at))
        assert open_files() == files, "nothing is held open"
        assert used(tmp_path / str(at)) == ""


def test_cut_drops_what_comes_after_a_step_and_what_is_not_whole(tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "run")
    for step in (1, 2, 3, 3, 4):
        run.report({"step": step}, 0.0)
    with open(run.path / METRICS, "ab") as file:
        file.write(b'{"step":')
    assert [row["step"] for row in run.rows_until(3)] == [1, 2, 3, 3]
    run.drop_later()
    assert [row["step"] for row in rows_of(run.path)] == [1, 2, 3, 3]
    run.report({"step": 4}, 0.0)
    assert [row["step"] for row in rows_of(run.path)] == [1, 2, 3, 3, 4]
    assert run.rows_until(-1) == []
    run.drop_later()
    assert rows_of(run.path) == []
    run.close()
