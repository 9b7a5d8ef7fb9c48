"""What `headrace new` makes is run as a user would, and is liked by a linter; names that cannot be are refused."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.cli_parts import answer, headrace, refused
from kit.forked import start

from headrace.app.cli.commands import COMMANDS
from headrace.store import disk


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "churn"
    assert headrace("new", path) == 0
    return path


def test_it_says_what_it_has_made_and_what_to_do_next(tmp_path: Path, capsys: Any) -> None:
    said = answer(capsys, "new", tmp_path / "models" / "churn")
    files = [Path(file) for file in said["files"]]
    assert [file.name for file in files] == ["churn.py", "test_churn.py", "README.md"]
    assert sorted(files) == sorted((tmp_path / "models" / "churn").iterdir())
    assert all("NAME" not in file.read_text() and "churn" in file.read_text() for file in files)
    commands = [f"cd {tmp_path / 'models/churn'}", "headrace fit churn.py --run runs/first", "python -m pytest"]
    assert said["next"] == commands


def test_its_commands_train(churn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(churn)
    assert headrace("fit", "churn.py", "--epochs", "2", "--run", "runs/first") == 0
    assert (churn / "runs/first/metrics.jsonl").read_text().count("train/accuracy") == 2


def its_tests(place: str, *words: str) -> None:
    """Runs the tests that are there, as `pytest` does."""
    os.chdir(place)
    raise SystemExit(int(pytest.main(["-q", "-p", "no:cacheprovider", *words])))


def test_its_test_passes_without_a_warning_and_fails_for_a_recipe_that_does_not_learn(tmp_path: Path) -> None:
    assert headrace("new", tmp_path / "churn") == 0
    recipe = tmp_path / "churn" / "churn.py"
    for rate, status, told in (("0.01", 0, "2 passed"), ("1e-9", 1, "1 failed, 1 passed")):
        recipe.write_text(recipe.read_text().replace("lr: float = 0.01", f"lr: float = {rate}"))
        with start(its_tests, tmp_path, tmp_path / "churn", "-W", "error") as child:
            assert child.ending() == status, child.output
            assert told in child.output


def test_a_linter_has_nothing_to_say_and_every_command_of_its_readme_is_one_that_there_is(churn: Path) -> None:
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", check[0], "--isolated", "--no-cache", *check[1:], "."]
        done = subprocess.run(command, cwd=churn, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    named = re.findall(r"`headrace (\w+)", (churn / "README.md").read_text())
    assert len(named) >= 5
    assert set(named) <= set(COMMANDS)


WRONG = [
    ("my-model", "letters, digits and _"),
    ("2nd", "begin with a letter"),
    ("größe", "letters, digits and _"),
    ("class", "no word of Python"),
    ("print", "no word of Python"),
    ("", "cannot be the name of a recipe"),
    ("json", "which json.py would hide. Try 'json_model'"),
    ("numpy", "which numpy.py would hide. Try 'numpy_model'"),
    ("headrace", "which headrace.py would hide. Try 'headrace_model'"),
    ("samples", "a name that the recipe uses"),
    ("nn", "a name that the recipe uses"),
    ("directory", "directory is there already, and is left as it is. Remove it, or choose another name."),
    ("file", "file is there already"),
    ("link", "link is there already"),
    ("file/churn", "file"),
]


@pytest.mark.parametrize(("name", "told"), WRONG)
def test_a_name_that_cannot_be_is_refused_and_what_is_there_is_left(
    name: str, told: str, in_tmp_path: Path, capsys: Any
) -> None:
    Path("directory").mkdir()
    Path("file").touch()
    Path("link").symlink_to("nowhere")
    assert told in refused(capsys, "new", name)
    assert sorted(os.listdir()) == ["directory", "file", "link"]
    assert os.listdir("directory") == []


def test_a_full_disk_leaves_nothing_half_written(in_tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    perform, writes = disk.perform, []

    def full(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        writes.append(operation)
        if operation == "write" and writes.count("write") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return perform(operation, call, *arguments)

    monkeypatch.setattr(disk, "perform", full)
    assert "No space left" in refused(capsys, "new", "churn")
    assert os.listdir() == []
