"""What `headrace new` makes is run as a user would: trained by its commands, tested by its test, liked by a linter."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.forked import start

from headrace.app.cli import main
from headrace.app.cli.commands import COMMANDS


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "churn"
    assert main(["new", str(path)]) == 0
    return path


def test_it_says_what_it_has_made_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "churn"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in said["files"]] == ["churn.py", "test_churn.py", "README.md"]
    assert said["next"] == [f"cd {tmp_path / 'churn'}", "headrace fit churn.py --run runs/first", "python -m pytest"]


def test_its_tests_hold(churn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(churn)
    tests = importlib.import_module("test_churn")
    try:
        tests.test_it_learns()
        tests.test_it_goes_on_where_it_was_interrupted(tmp_path)
    finally:
        del sys.modules["test_churn"], sys.modules["churn"]


def its_tests(place: str, *words: str) -> None:
    """Runs the tests that are there, as `pytest` does."""
    os.chdir(place)
    raise SystemExit(int(pytest.main(["-q", "-p", "no:cacheprovider", *words])))


@pytest.mark.slow
def test_its_test_passes_without_a_warning(churn: Path, tmp_path: Path) -> None:
    with start(its_tests, tmp_path, churn, "-W", "error", limit_s=60) as child:
        assert child.ending(60) == 0, child.output
        assert "2 passed" in child.output


@pytest.mark.slow
def test_its_test_fails_for_a_recipe_that_does_not_learn(tmp_path: Path) -> None:
    main(["new", str(tmp_path / "churn")])
    recipe = tmp_path / "churn" / "churn.py"
    recipe.write_text(recipe.read_text().replace("lr: float = 0.01", "lr: float = 1e-9"))
    with start(its_tests, tmp_path, tmp_path / "churn", limit_s=60) as child:
        assert child.ending(60) == 1, child.output
        assert "1 failed, 1 passed" in child.output


def test_its_first_command_trains(churn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(churn)
    assert main(["fit", "churn.py", "--epochs", "2", "--run", "runs/first"]) == 0
    assert (churn / "runs/first/metrics.jsonl").read_text().count("train/accuracy") == 2


def test_a_linter_has_nothing_to_say(churn: Path) -> None:
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", check[0], "--isolated", "--no-cache", *check[1:], "."]
        done = subprocess.run(command, cwd=churn, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_of_its_readme_is_one_that_there_is(churn: Path) -> None:
    named = re.findall(r"`headrace (\w+)", (churn / "README.md").read_text())
    assert len(named) >= 5
    assert set(named) <= set(COMMANDS)
