"""The recipes that come with headrace, and `scripts/demo` as somebody types it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.cli_parts import LIMIT_S, environment, headrace

from headrace.app.find import find_recipe
from headrace.app.parameters import check_parameters

ROOT = Path(__file__).parents[2]
RECIPES = sorted({*(ROOT / "recipes").glob("*.py")} - {ROOT / "recipes" / "shapes.py"})  # which the others import


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_used_from_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.path.copy()
    try:
        check_parameters(find_recipe(str(path)))
        assert headrace("fit", path, "--help") == 0
        assert headrace("fit", path, "--print-config") == 0
    finally:
        sys.path[:] = before
    assert "arguments:" in capsys.readouterr().out


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository as far as the demo needs it, with an environment that is ready."""
    for name in ("scripts", "recipes"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / ".extras").write_text("sklearn\n")
    ready = 'source scripts/lib.sh && stamp "$(paste -sd, .venv/.extras)" > .venv/.stamp'
    subprocess.run(["bash", "-c", ready], cwd=tmp_path, check=True, timeout=LIMIT_S)
    return tmp_path


def demo(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(tree / "scripts" / "demo"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False)


def test_the_demo_trains_in_a_fresh_run_each_time_and_passes_on_what_it_is_given(tree: Path) -> None:
    (tree / "runs/digits").mkdir(parents=True)
    python = tree / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    done = demo(tree, "--epoch", "1", "--width=4")
    trained = "-m headrace fit recipes/digits.py --run runs/digits-2 --report --epoch 1 --width=4\n"
    assert (done.returncode, done.stdout) == (0, trained)


@pytest.mark.slow
def test_the_demo_shows_where_the_report_is(tree: Path) -> None:
    (tree / "runs/digits").mkdir(parents=True)
    done = demo(tree, "--epochs", "1", "--width=4")
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch 1/1 +train/loss", done.stderr)
    assert re.search(r"test/accuracy +0\.\d+", done.stdout)
    assert "run     runs/digits-2" in done.stdout
    assert "report  runs/digits-2/report.html" in done.stdout
    assert (tree / "runs/digits-2/report.html").is_file()
    assert '"width": 4' in (tree / "runs/digits-2/recipe.json").read_text()
