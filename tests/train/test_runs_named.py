"""`run="runs/"`: runs get numbers; the same settings go on with the newest, others begin a new one and say why."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.small import data
from torch import nn

import headrace as hr
from headrace.errors import CheckpointError, RunError

DATA = data(12)


def trained(
    runs: Any, *, lr: float = 0.1, width: int = 8, epochs: int = 1, strategy: Any = None, **options: Any
) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))
    trainer = small.trainer(model, optimizer=partial(torch.optim.SGD, lr=lr), batch_size=4, strategy=strategy)
    return small.fit(trainer, DATA, epochs=epochs, run=runs, **options)


def name(history: Any) -> str:
    return str(history.run.name)


def log(history: Any) -> str:
    return str((history.run / "log.txt").read_text())


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return f"{tmp_path}/runs/"


def test_the_same_settings_go_on_to_the_bit_and_others_begin_a_run(runs: str, tmp_path: Path) -> None:
    first = trained(runs)
    assert first.run == Path(runs, "001")
    assert "this run is new\n" in log(first)
    on = trained(runs, epochs=2)
    assert (on.run, on.last["step"]) == (first.run, 6)
    assert on.rows == trained(tmp_path / "whole", epochs=2).rows
    narrow = trained(runs, width=7)
    assert name(narrow) == "002"
    assert "0.bias (float32[8] there, float32[7] here)" in log(narrow)
    other = trained(runs, lr=0.2)
    assert (name(other), other.last["step"]) == ("003", 3)
    assert f"this run is new, since {runs}002 differs: optimizer.groups.0.lr: 0.1 in the run, 0.2 now\n" in log(other)
    assert name(trained(runs, epochs=3)) == "001"
    assert name(trained(runs, lr=0.2, epochs=2)) == "003"


def test_never_begins_must_goes_on_and_override_takes_the_newest(runs: str) -> None:
    with pytest.raises(RunError, match=r"no run in .*runs has these settings. .*runs has no run with a checkpoint"):
        trained(runs, resume="must")
    assert not Path(runs).exists()
    trained(runs)
    assert name(trained(runs, resume="never")) == "002"
    assert name(trained(runs, resume="must", epochs=2)) == "002"
    with pytest.raises(RunError, match=r"no run in .*002 differs: .*lr: 0.1 in the run, 0.5 now"):
        trained(runs, lr=0.5, resume="must")
    assert name(trained(runs, lr=0.5, override=True, epochs=3)) == "002"
    with pytest.raises(CheckpointError, match="of another model"):
        trained(runs, width=2, override=True)
    assert sorted(os.listdir(runs)) == ["001", "002"]


def test_a_slash_at_the_end_of_a_run_means_nothing_and_a_path_has_none(runs: str, tmp_path: Path) -> None:
    trained(tmp_path / "one")
    on = trained(f"{tmp_path}/one/", epochs=2)
    assert (on.run, on.last["step"]) == (tmp_path / "one", 6)
    trained(runs)
    with pytest.raises(hr.ConfigError, match=r"is a directory of runs.*pass the string '.*/runs/': a Path loses"):
        trained(Path(runs))
    assert os.listdir(runs) == ["001"]
    assert name(trained(Path(runs, "001"), epochs=2)) == "001"


def test_what_is_no_numbered_run_or_cannot_be_read_is_left_alone(runs: str) -> None:
    trained(f"{runs}mine")
    Path(runs, "007").mkdir()
    Path(runs, "notes.txt").write_text("mine")
    first = trained(runs)
    assert name(first) == "008"
    assert name(trained(runs, epochs=2)) == "008"
    for manifest in first.run.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    history = trained(runs)
    assert name(history) == "009"
    assert "since" in log(history)
    assert "manifest" in log(history)


@pytest.mark.parametrize("strategy", [hr.Synchronous, hr.Elastic])
def test_workers_train_in_the_run_that_the_first_of_them_chooses(strategy: Any, runs: str) -> None:
    for lr, epochs, expected in (0.1, 1, "001"), (0.1, 2, "001"), (0.2, 1, "002"):
        history = hr.launch(partial(trained, runs, lr=lr, epochs=epochs, strategy=strategy()), workers=2)
        assert (name(history), history["epoch"]) == (expected, [*range(1, epochs + 1)])
