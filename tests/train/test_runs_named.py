"""`run="runs/"`: runs get numbers; the same settings go on with the newest, others begin a new one and say why."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.in_run import in_run
from torch import nn

import headrace as hr
from headrace.errors import CheckpointError, RunError

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(dim=1, keepdim=True)


def fit(runs: Any, *, lr: float = 0.1, width: int = 1, seed: int = 0, epochs: int = 1, **options: Any) -> hr.History:
    torch.manual_seed(0)
    model = nn.Linear(3, 1) if width == 1 else nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=4, seed=seed, device="cpu")
    return trainer.fit((X, Y), epochs=epochs, progress=False, **in_run(runs, **options))


def name(history: hr.History) -> str:
    assert history.run is not None
    return history.run.name


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return f"{tmp_path}/runs/"


def log(history: hr.History) -> str:
    assert history.run is not None
    return (history.run / "log.txt").read_text()


def test_the_same_settings_go_on_and_others_begin_a_run(runs: str) -> None:
    first = fit(runs)
    assert first.run == Path(runs, "001")
    assert "this run is new\n" in log(first)
    on = fit(runs, epochs=2)
    assert (on.run, on.last["step"], len(on)) == (first.run, 6, 2)
    other = fit(runs, lr=0.2)
    assert (name(other), other.last["step"]) == ("002", 3)
    assert f"this run is new, since {runs}001 differs: optimizer.groups.0.lr: 0.1 in the run, 0.2 now\n" in log(other)
    assert name(fit(runs, width=2)) == "003"
    assert name(fit(runs, epochs=3)) == "001"
    assert name(fit(runs, lr=0.2, epochs=2)) == "002"


def test_a_run_that_goes_on_has_the_bits_of_one_that_did_not_stop(runs: str, tmp_path: Path) -> None:
    fit(runs)
    on, whole = fit(runs, epochs=3), fit(tmp_path / "whole", epochs=3)
    assert on.rows == whole.rows
    assert whole.run == tmp_path / "whole"


def test_another_model_of_the_same_settings_begins_a_run(runs: str) -> None:
    fit(runs, width=2)
    assert name(history := fit(runs, width=3)) == "002"
    assert "0.bias (float32[2] there, float32[3] here)" in log(history)


def test_never_begins_must_goes_on_and_override_takes_the_newest(runs: str) -> None:
    with pytest.raises(RunError, match=r"no run in .*runs has these settings. .*runs has no run with a checkpoint"):
        fit(runs, resume="must")
    assert not Path(runs).exists()
    fit(runs)
    assert name(fit(runs, resume="never")) == "002"
    assert name(fit(runs, resume="must", epochs=2)) == "002"
    with pytest.raises(RunError, match=r"no run in .*002 differs: .*lr: 0.1 in the run, 0.5 now"):
        fit(runs, lr=0.5, resume="must")
    assert name(fit(runs, lr=0.5, override=True, epochs=3)) == "002"
    with pytest.raises(CheckpointError, match="of another model"):
        fit(runs, width=2, override=True)
    assert sorted(os.listdir(runs)) == ["001", "002"]


def test_a_run_with_a_slash_at_the_end_is_that_run(tmp_path: Path) -> None:
    fit(tmp_path / "one")
    on = fit(f"{tmp_path}/one/", epochs=2)
    assert (on.run, on.last["step"]) == (tmp_path / "one", 6)


def test_a_path_loses_its_slash_and_is_refused_where_there_are_numbered_runs(runs: str) -> None:
    fit(runs)
    with pytest.raises(hr.ConfigError, match=r"is a directory of runs.*pass the string '.*/runs/': a Path loses"):
        fit(Path(runs))
    assert os.listdir(runs) == ["001"]
    assert name(fit(Path(runs, "001"), epochs=2)) == "001"


def test_what_is_no_numbered_run_is_left_alone(runs: str) -> None:
    fit(f"{runs}mine")
    Path(runs, "007").mkdir()
    Path(runs, "notes.txt").write_text("mine")
    assert name(fit(runs)) == "008"
    assert name(fit(runs, epochs=2)) == "008"


def test_a_run_whose_checkpoints_cannot_be_read_is_not_gone_on_from(runs: str) -> None:
    first = fit(runs)
    assert first.run is not None
    for manifest in first.run.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    assert name(history := fit(runs)) == "002"
    assert "since" in log(history)
    assert "manifest" in log(history)


@pytest.mark.parametrize("strategy", [hr.Synchronous, hr.Elastic])
def test_workers_train_in_the_run_that_the_first_of_them_chooses(strategy: Any, runs: str) -> None:
    for lr, epochs, expected in (0.1, 1, "001"), (0.1, 2, "001"), (0.2, 1, "002"):
        found = hr.launch(_worker, runs, strategy, lr, epochs, workers=2, engine="local")
        assert found == (expected, [*range(1, epochs + 1)])


def _worker(runs: str, strategy: Any, lr: float, epochs: int) -> tuple[str | None, list[int]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=6, strategy=strategy(), device="cpu")
    history = trainer.fit((X, Y), epochs=epochs, run=runs, progress=False)
    return history.run and history.run.name, [row["epoch"] for row in history.rows]
