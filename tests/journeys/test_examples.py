"""The examples run as they are, learn what they are about, and stay short."""

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 60  # lines
LEARNT = {
    "tabular": ("test r2", 0.97),
    "images": ("test accuracy", 0.93),
    "detector": ("test map", 0.3),
    "sequences": ("test accuracy", 0.85),
    "own_source": ("validation accuracy", 0.95),
    "own_objective": ("explained variance", 0.6),
}
"""What an example prints last, and what it reaches where it has learnt something; guessing is far below."""


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: Any) -> Iterator[None]:
    """A directory of its own, one thread, and torch's random numbers as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def run(name: str, capsys: Any) -> str:
    """What an example prints."""
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return str(capsys.readouterr().out)


QUICK = "tabular"


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LEARNT if name != QUICK)]
)
def test_an_example_learns_what_it_is_about(name: str, capsys: Any, tmp_path: Path) -> None:
    what, enough = LEARNT[name]
    printed = run(name, capsys)
    last = printed.splitlines()[-1]
    found = re.fullmatch(rf"{what} (\d\.\d+)", last)
    assert found is not None, last
    assert enough <= float(found[1]) <= 1
    if name == "own_source":
        assert "the weights of both are the same: True" in printed
        assert "going on from step 317" in (tmp_path / "runs" / "parts" / "log.txt").read_text()


@pytest.mark.slow
def test_the_example_of_optuna_finds_something_and_prunes_something(capsys: Any, tmp_path: Path) -> None:
    last = run("tune_with_optuna", capsys).splitlines()[-1]
    found = re.fullmatch(r"best: (\d\.\d+) with \{.*\}; pruned: (\d+) of 8", last)
    assert found is not None, last
    assert float(found[1]) < 0.2, "guessing gives 0.69"
    assert 1 <= int(found[2]) <= 5
    assert len(list((tmp_path / "runs" / "tuned").iterdir())) == 8


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_short_and_reads_as_a_notebook(example: Path) -> None:
    lines = example.read_text().splitlines()
    assert len(lines) <= LONGEST
    assert lines[0].startswith("# %%")
    assert sum(line.startswith("# %%") for line in lines) >= 3


def test_every_example_is_run() -> None:
    assert {example.stem for example in EXAMPLES} == {*LEARNT, "tune_with_optuna"}
    assert os.getcwd() != str(ROOT), "nothing is left behind in the repository"
