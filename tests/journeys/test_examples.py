"""The examples run as they are, learn what they are about, and stay short."""

import json
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kit.imports import module_at
from kit.sampled import sampled

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
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


pytestmark = pytest.mark.usefixtures("in_tmp_path")


def run(name: str, capsys: Any) -> str:
    """What an example prints."""
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("name", sampled(LEARNT, keep=[name for name in LEARNT if name != "detector"]))
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


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    """The script that makes notebooks of examples."""
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    return module_at(ROOT / "scripts" / "notebooks.py")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's packages
def test_a_notebook_has_the_cells_of_its_example_and_what_it_printed(notebooks: ModuleType) -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(notebooks.NAMES)
    for name in notebooks.NAMES:
        stored = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
        made = notebooks.notebook((ROOT / "examples" / f"{name}.py").read_text())
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in stored["cells"]]
        assert sources == [(cell.cell_type, cell.source) for cell in made.cells], "run scripts/notebooks.py"
        assert re.search(rf"{LEARNT[name][0]} 0\.9", json.dumps(stored))
        assert '"error"' not in json.dumps([cell.get("outputs") for cell in stored["cells"]])


def test_every_example_is_run() -> None:
    assert {example.stem for example in EXAMPLES} == {*LEARNT, "tune_with_optuna"}
