"""Records that others keep, and what all trackers share."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.tracked import DATA, At, fail, train
from torch import nn

import headrace as hr
from headrace.watch import trackers
from headrace.watch.files import LogFile
from headrace.watch.rows import numbers
from headrace.watch.tensorboard import TensorBoard
from headrace.watch.trackers import MLflow, Tracker, WandB

pd = late("pandas")
FILES = {LogFile: "log.txt", TensorBoard: "tb"}


# --- what they share --------------------------------------------------------------------------------------


def test_numbers_are_what_can_be_drawn() -> None:
    row = {"epoch": 1, "step": 2, "samples": 3, "rate": 0.1, "val/loss": np.float32(2), "val/many": {"a": 1, "b": [2]}}
    row |= {"val/confusion": [[1, 2], [3, 4]], "name": "x", "yes": True, "nothing": None}
    assert numbers(row) == {"rate": 0.1, "val/loss": 2.0, "val/many/a": 1.0}


@pytest.mark.parametrize("kind", FILES)
def test_a_tracker_without_a_path_and_a_run_says_what_to_do(kind: Any) -> None:
    with pytest.raises(hr.ConfigError, match=rf"this training has none.*{kind.__name__}\('{FILES[kind]}'\)"):
        train(kind())


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("path", [7, "", b"log"])
def test_a_path_that_is_none_is_refused(kind: Any, path: Any) -> None:
    with pytest.raises(hr.ConfigError, match=rf"{kind.__name__} takes the path"):
        kind(path)


@pytest.mark.parametrize("kind", FILES)
def test_what_is_in_the_way_is_found_before_the_first_step(kind: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch() if kind is TensorBoard else wrong.mkdir()
    (tmp_path / "file").touch()
    for path in (wrong, tmp_path / "file" / "below"):
        model = nn.Linear(4, 2)
        before = model.weight.clone()
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
        with pytest.raises(hr.ConfigError, match=f"{kind.__name__} cannot write to {path}.*or name another path"):
            trainer.fit(DATA, callbacks=[kind(path)], progress=False, epochs=1)
        assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", FILES)
def test_directories_on_the_way_are_made(kind: Any, tmp_path: Path) -> None:
    train(kind(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").exists()


@pytest.mark.parametrize("kind", FILES)
def test_trackers_are_called_on_one_worker_alone(kind: Any) -> None:
    assert not kind.everywhere
    assert not MLflow.everywhere
    assert not WandB.everywhere


@pytest.mark.parametrize(("kind", "name"), [(MLflow, "mlflow"), (WandB, "wandb")])
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    kind: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        hr.ConfigError, match=rf'needs {name}, which is not installed: pip install "headrace\[{name}\]"'
    ):
        kind()


def test_a_directory_that_has_the_name_of_a_package_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.watch.trackers import require

    (tmp_path / "wandb_like").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(hr.ConfigError, match="not installed"):
        require("WandB", "wandb_like")


# --- records that others keep -----------------------------------------------------------------------------


class Far(Tracker):
    """A record that cannot be reached at times."""

    def __init__(self, *artifacts: Path) -> None:
        super().__init__(artifacts=artifacts)
        self.record: list[int] = []
        self.ended: list[str] = []
        self.begun: list[str] = []
        self.reached = True
        self.changed = threading.Condition()
        self.refused = 0

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_so, 30)

    def begin(self, info: hr.Info) -> None:
        self.begun.append(self.id)
        self.id = self.id or "name"

    def send(self, rows: Any) -> None:
        with self.changed:
            self.changed.notify_all()
            if not self.reached:
                self.refused += 1
                raise OSError("nobody there")
            self.record += [row["step"] for row in rows if row["step"] not in self.record]

    def end(self, state: str) -> None:
        self.ended.append(state)


def test_reports_wait_until_the_record_can_be_reached(tmp_path: Path) -> None:
    far = Far()
    away = At(5, lambda info: (far.wait_until(lambda: far.record == [4]), setattr(far, "reached", False)))
    tried = At(7, lambda info: far.wait_until(lambda: far.refused > 0))
    back = At(11, lambda info: setattr(far, "reached", True))
    with pytest.warns(UserWarning, match="Far has not taken step 6, which is tried again: OSError: nobody") as caught:
        train(far, away, tried, back)
    assert len(caught) == 1
    assert far.record == [4, 6, 8, 12]
    assert far.ended == ["finished"]


def test_a_training_ends_well_without_its_record() -> None:
    far = Far()
    far.reached = False
    with pytest.warns(UserWarning, match=r"has not taken step \d+, which is tried again") as caught:
        history = train(far)
    assert len(caught) == 1
    assert len(history) == 4


def test_a_server_that_refuses_is_asked_again_after_a_pause_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "RETRY_S", 1000.0)
    far = Far()
    far.reached = False
    with pytest.warns(UserWarning, match="Far has not taken step 4, which is tried again: OSError: nobody there"):
        train(far, At(5, lambda info: far.wait_until(lambda: far.refused == 1)))
    assert far.refused == 2, "not once for each of the four reports"


class Plain(Tracker):
    """A tracker whose constructor is its own."""

    def __init__(self) -> None:
        self.record: list[int] = []

    def begin(self, info: hr.Info) -> None:
        self.id = "name"

    def send(self, rows: Any) -> None:
        self.record += [row["step"] for row in rows]

    def end(self, state: str) -> None:
        self.record.append(-1)


def test_a_tracker_need_not_call_the_constructor_of_its_base() -> None:
    plain = Plain()
    assert plain.id == ""
    train(plain)
    assert [*dict.fromkeys(plain.record)] == [4, 6, 8, 12, -1]


class Hangs(Far):
    """A server that takes what it is sent and does not answer."""

    def send(self, rows: Any) -> None:
        with self.changed:
            self.refused += 1
            self.changed.notify_all()
        self.wait_until(lambda: self.reached)


def test_a_server_that_does_not_answer_holds_up_no_update_and_the_end_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "END_S", 0.1)
    far, steps = Hangs(), list[int]()
    far.reached = False
    asked = At(5, lambda info: far.wait_until(lambda: far.refused == 1))
    last = At(12, lambda info: steps.append(info.step))
    with pytest.warns(
        UserWarning, match="Hangs has not taken the last reports: TimeoutError: it does not answer"
    ) as said:
        history = train(far, asked, last)
    assert (len(said), len(history), steps, far.refused) == (1, 4, [12], 1)
    assert far.ended == [], "nobody is told that all has come"
    with far.changed:
        far.reached = True
        far.changed.notify_all()


def test_the_record_goes_on_where_the_training_does(tmp_path: Path) -> None:
    first, then = Far(), Far()
    with pytest.raises(InterruptedError):
        train(first, At(7, fail), run=tmp_path / "run")
    assert first.ended == ["failed"]
    train(then, run=tmp_path / "run")
    assert then.begun == ["name"]
    assert then.record == [4, 6, 8, 12]
    train(then, run=tmp_path / "another")
    assert then.begun == ["name", ""]


def test_a_record_that_cannot_begin_is_found_before_the_first_step() -> None:
    far = Far()
    far.begin = fail  # type: ignore[assignment]
    with pytest.raises(hr.ConfigError, match="Far could not begin: InterruptedError: on purpose"):
        train(far)


def test_what_wandb_is_told_by_us_is_not_told_by_others() -> None:
    with pytest.raises(hr.ConfigError, match="WandB sets id and resume by itself"):
        WandB("project", id="x", resume="must")


def test_files_of_one_s_own_are_kept_when_the_training_ends(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("good")

    class Near(Far):
        def keep(self, path: Path) -> None:
            self.ended.append(path.read_text())

    near = Near(tmp_path / "notes.txt", tmp_path / "none.txt")
    with pytest.warns(UserWarning, match=r"has not taken .*none\.txt: FileNotFoundError"):
        train(near)
    assert near.ended == ["good", "finished"]


@pytest.mark.parametrize("kind", [MLflow, WandB])
def test_what_cannot_be_parameters_or_files_is_refused(kind: Any) -> None:
    with pytest.raises(hr.ConfigError, match=r"\(params=\) takes a dict"):
        kind(params=["width"])
    with pytest.raises(hr.ConfigError, match=r"\(artifacts=\) takes a list"):
        kind(artifacts="train.py")
