"""`headrace new`: names that cannot be, places that are taken, and nothing half-written."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.app.cli.new import make
from headrace.errors import ConfigError, RunError
from headrace.store import disk


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-model", "letters, digits and _"),
        ("2nd", "begin with a letter"),
        ("größe", "letters, digits and _"),
        ("class", "no word of Python"),
        ("print", "no word of Python"),
        ("json", "which json.py would hide. Try 'json_model'"),
        ("numpy", "which numpy.py would hide. Try 'numpy_model'"),
        ("samples", "a name that the recipe uses"),
        ("nn", "a name that the recipe uses"),
        ("headrace", "which headrace.py would hide. Try 'headrace_model'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path / name)
    assert repr(name) in str(refused.value)
    assert said in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path / f"{re.sub(r'[^a-z]', '', name)}_model")


@pytest.mark.parametrize("there", ["directory", "file", "link"])
def test_what_is_there_is_left_as_it_is(there: str, tmp_path: Path) -> None:
    target = tmp_path / "churn"
    {"directory": target.mkdir, "file": target.touch, "link": lambda: target.symlink_to("nowhere")}[there]()
    with pytest.raises(RunError, match=r"churn is there already.*choose another name"):
        make(target)
    assert os.listdir(tmp_path) == ["churn"]
    assert not target.is_dir() or os.listdir(target) == []


def test_a_place_that_is_not_there_is_made(tmp_path: Path) -> None:
    assert all(file.is_file() for file in make(tmp_path / "models" / "churn"))
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file"):
        make(tmp_path / "file" / "churn")
    with pytest.raises(ConfigError, match="cannot be the name of a recipe"):
        make(Path(""))


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform, writes = disk.perform, []

    def full(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        writes.append(operation)
        if operation == "write" and writes.count("write") == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return perform(operation, call, *arguments)

    monkeypatch.setattr(disk, "perform", full)
    with pytest.raises(RunError, match="No space left"):
        make(tmp_path / "churn")
    assert list(tmp_path.iterdir()) == []


def test_every_place_in_the_files_has_the_name(tmp_path: Path) -> None:
    files = make(tmp_path / "churn")
    assert [file.name for file in files] == ["churn.py", "test_churn.py", "README.md"]
    assert sorted(path.name for path in (tmp_path / "churn").iterdir()) == ["README.md", "churn.py", "test_churn.py"]
    for file in files:
        assert "NAME" not in file.read_text()
        assert "churn" in file.read_text()
