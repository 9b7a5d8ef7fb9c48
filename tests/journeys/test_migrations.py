"""The page for those who come from other libraries is true: the programs of both sides run and learn the same."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kit.imports import module_at

import headrace

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "switch.md"
NEEDS = {
    "with_keras": "keras",
    "with_skorch": "skorch",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
    "with_accelerate": "accelerate",
}


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The script that counts the lines."""
    return module_at(ROOT / "scripts" / "pages.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["with_headrace", "loop", *NEEDS])
def test_a_program_learns_the_task_and_goes_on_when_it_is_started_again(
    name: str, made: ModuleType, tmp_path: Path
) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    (tmp_path / "data.py").write_text(made.program("data", PAGE.read_text()))
    (tmp_path / "task.py").write_text(made.program(name, PAGE.read_text()))
    for _ in ("begins", "goes on"):
        last = run(tmp_path).splitlines()[-1]
        found = re.fullmatch(r"test accuracy (\d\.\d+)", last)
        assert found is not None, last
        assert float(found[1]) > 0.95, "guessing gives 0.33"
    kept = [path for path in tmp_path.iterdir() if path.stem not in ("data", "task", "__pycache__")]
    assert kept, "it has saved something to go on from"


def run(room: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "task.py"]
    done = subprocess.run(command, cwd=room, env=environment, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_lines_are_counted_in_programs_of_one_layout(made: ModuleType, tmp_path: Path) -> None:
    assert made.code_lines("# why\n\nimport torch\n\nx = 1  # one\n") == 2
    for name in made.TASKS:
        (tmp_path / f"{name}.py").write_text(made.program(name, PAGE.read_text()))
    command = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "120", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_lines_of_the_page_are_those_of_its_programs(made: ModuleType) -> None:
    text = PAGE.read_text()
    assert made.with_lines(text) == text, "it is out of date: run scripts/docs"
    assert made.with_lines(re.sub(r"\| \d+ \|", "| 99 |", text)) == text, "the control"
