"""Commands on runs in an object store: an S3 server over HTTP."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from kit.cli_parts import RECIPE, answer, headrace
from kit.s3_server import Server, s3
from torch import nn

import headrace as hr
from headrace.store.cache import folder_of


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture
def recipe(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "object_recipe.py").write_text(RECIPE)
    return f"{tmp_path}/object_recipe.py:small"


def test_commands_take_a_run_in_a_store(
    recipe: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "s3://bucket/commands/a"
    assert answer(capsys, "fit", recipe, "--run", run)["run"] == run
    shutil.rmtree(folder_of(run))
    assert answer(capsys, "resume", run, "--recipe", recipe, "--epochs", "3")["epoch"] == 3
    shutil.rmtree(folder_of(run))
    assert len(answer(capsys, "verify", run)["checkpoints"]) == 3
    assert answer(capsys, "validate", run, "--recipe", recipe)
    rows, answers = tmp_path / "rows.npy", tmp_path / "answers.arrow"
    np.save(rows, np.ones((5, 5), np.float32))
    shutil.rmtree(folder_of(run))
    assert answer(capsys, "predict", run, str(rows), "--recipe", recipe, "--out", str(answers))["rows"] == 5
    assert hr.open_table(answers).rows(0, 5)["output"].shape == (5, 2)
    page = answer(capsys, "report", run)["report"]
    assert Path(page).is_file()
    assert "PUT commands/a/report.html" in server.log
    assert headrace("resume", run, "--recipe", recipe, "--epochs", "3") == 0
    local = tmp_path / "local"
    assert headrace("fit", recipe, "--epochs", "3", "--run", str(local)) == 0
    assert not hr.diff(run, local), "the same bits"


def test_a_list_of_runs_takes_a_request_for_each(
    recipe: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in (2, 3, 4):
        assert headrace("fit", recipe, "--width", str(width), "--run", f"s3://bucket/list/w{width}") == 0
    shutil.rmtree(tmp_path / "cache")
    before = len(server.log)
    found = answer(capsys, "runs", "s3://bucket/list")
    assert [each["run"] for each in found] == [f"s3://bucket/list/w{width}" for width in (2, 3, 4)]
    assert [each["arguments"]["width"] for each in found] == [2, 3, 4]
    assert {each["state"] for each in found} == {"finished"}
    asked = server.log[before:]
    assert len(asked) <= 1 + 3
    assert sorted(asked)[:3] == [f"GET list/w{width}/overview.json" for width in (2, 3, 4)]


def test_the_copy_of_a_run_is_not_trained_as_a_run_of_its_own(recipe: str, server: Server, tmp_path: Path) -> None:
    run = "s3://bucket/copies/a"
    model = nn.Linear(4, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=8)
    data = (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    trainer.fit(data, epochs=1, run=run, progress=False)
    with pytest.raises(hr.RunError, match="this machine's copy of a run in an object store"):
        trainer.fit(data, epochs=2, run=folder_of(run), progress=False)
