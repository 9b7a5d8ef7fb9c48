"""A URL is no run: wherever a run is named, it is refused in a sentence, and nothing is made on this machine."""

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
    "resume": lambda run: trainer().fit(DATA, epochs=1, run=hr.Run(run, resume="must"), progress=False),
    "steps": lambda run: next(iter(trainer().steps(DATA, epochs=1, run=run))),
    "two workers": lambda run: hr.launch(train, str(run), workers=2),
    "load": lambda run: hr.load(run, trust=True),
    "load with a model": lambda run: hr.load(run, nn.Linear(2, 2)),
    "load_weights": lambda run: hr.load_weights(nn.Linear(2, 2), run),
    "report": lambda run: write(Path(run)),
}


def train(run: str) -> None:
    trainer().fit(DATA, epochs=1, run=run, progress=False)


@pytest.mark.parametrize(
    "run", ["s3://bucket/run", Path("s3://bucket/run"), "gs://bucket/runs/", "file:///tmp/run"], ids=str
)
@pytest.mark.parametrize("use", USES)
def test_a_url_is_refused_as_a_run(use: str, run: str | Path) -> None:
    before = os.listdir()
    with pytest.raises(hr.RunError, match=r"://.* is a URL, and a run is a directory on this machine: name one"):
        USES[use](run)
    assert os.listdir() == before


COMMANDS = [
    "fit sines.py:small --run URL",
    "fit sines.py:small --run URL/",
    "resume URL --trust",
    "validate URL --trust",
    "predict URL rows.npy --out out.csv --trust",
    "checkpoint list URL",
    "checkpoint verify URL",
    "checkpoint export URL",
    "report URL",
    "runs URL",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_url_as_a_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.listdir()
    said = refused(capsys, *command.replace("URL", "s3://bucket/run").split())
    assert "s3://bucket/run" in said
    assert "is a URL, and a run is a directory on this machine: name one" in said
    assert os.listdir() == before


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_a_directory_with_a_colon_in_its_name_is_one(in_tmp_path: Path) -> None:
    for name in ("a:b", "runs/12:30", "s3:"):
        trainer().fit(DATA, epochs=1, run=name, progress=False)
        assert hr.load(name, nn.Linear(2, 2)).step == 2
    assert headrace("report", "a:b") == 0
