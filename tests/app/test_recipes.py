"""The recipes that come with headrace, and `scripts/demo` as somebody types it."""

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


def test_the_demo_trains_in_a_fresh_run_each_time_and_passes_on_what_it_is_given(tmp_path: Path) -> None:
    """In a copy of the repository as far as it needs one, with an environment that is ready and only prints."""
    for name in ("scripts", "recipes"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / ".extras").write_text("sklearn\n")
    ready = 'source scripts/lib.sh && stamp "$(paste -sd, .venv/.extras)" > .venv/.stamp'
    subprocess.run(["bash", "-c", ready], cwd=tmp_path, check=True, timeout=LIMIT_S)
    (tmp_path / "runs/digits").mkdir(parents=True)
    command = [str(tmp_path / "scripts" / "demo"), "--epoch", "1", "--width=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), check=False)
    trained = "-m headrace fit recipes/digits.py --run runs/digits-2 --epoch 1 --width=4\n"
    assert (done.returncode, done.stdout) == (0, f"{trained}-m headrace report runs/digits-2\n")
