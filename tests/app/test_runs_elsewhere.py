"""A URL is a run of an object store wherever a run is named, and never a directory that is called so."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.cli_parts import headrace, refused
from torch import nn

import headrace as hr
from headrace.watch.report import write

pytest_plugins = ["kit.cli_place"]
pytestmark = pytest.mark.usefixtures("place")
Use = Callable[[Any], object]


def trainer() -> hr.Trainer:
    model = nn.Linear(2, 2)
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)


DATA = torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)
USES: dict[str, Use] = {
    "fit": lambda run: trainer().fit(DATA, epochs=1, run=run, progress=False),
    "two workers": lambda run: hr.launch(train, str(run), workers=2),
    "load with a model": lambda run: hr.load(run, nn.Linear(2, 2)),
    "load_weights": lambda run: hr.load_weights(nn.Linear(2, 2), run),
    "report": lambda run: write(Path(run)),
}


def train(run: str) -> None:
    trainer().fit(DATA, epochs=1, run=run, progress=False)


@pytest.fixture
def url(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place that fsspec reaches, and an empty cache."""
    monkeypatch.setenv("HEADRACE_CACHE", str(in_tmp_path / "cache"))
    return f"file://{in_tmp_path}/bucket/run"


@pytest.mark.parametrize("use", USES)
def test_a_url_is_a_run_wherever_one_is_named(use: str, url: str, in_tmp_path: Path) -> None:
    train(url)
    before = set(os.listdir())
    for run in (url, Path(url)):
        USES[use](run)
    assert set(os.listdir()) == before, "nothing is made here that is called as the URL begins"
    assert (in_tmp_path / "bucket" / "run" / "run.json").is_file()


def test_a_url_that_is_no_run_is_refused_in_a_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "checkpoint", "list", url)
    assert f"there is no run at {url}" in said
    with pytest.raises(hr.RunError, match="runs are numbered on this machine only"):
        train(f"{url}s/")


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_a_directory_with_a_colon_in_its_name_is_one(in_tmp_path: Path) -> None:
    for name in ("a:b", "runs/12:30", "s3:"):
        trainer().fit(DATA, epochs=1, run=name, progress=False)
        assert hr.load(name, nn.Linear(2, 2)).step == 2
    assert headrace("report", "a:b") == 0
