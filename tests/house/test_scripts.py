"""The scripts that run every night, as far as they can be looked at in a moment."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the scripts, where the tests are a stub that fails under Python 3.13, and where 3.12 does not work."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for version, status in (("3.11", 0), ("3.12", 127), ("3.13", 0)):
        stub(tmp_path / "bin" / f"python{version}", f"exit {status}")
    stub(tmp_path / "scripts" / "test", 'echo "$HEADRACE_PYTHON: $*"; [[ $HEADRACE_PYTHON != 3.13 ]]')
    return tmp_path


def stub(path: Path, program: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{program}\n")
    path.chmod(0o755)


def versions(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    found = f"{tree / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": found, "PYENV_ROOT": str(tree / "none")}
    command = [str(tree / "scripts" / "versions"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_each_version_that_there_is_runs_the_tests_and_the_others_are_named(tree: Path) -> None:
    ended = versions(tree, "-k", "arena")
    assert ended.returncode == 1
    assert ended.stdout == "3.11: -k arena\n3.13: -k arena\n"
    results = ("3.11: passed", "3.12: SKIPPED, not on this machine", "3.13: FAILED")
    assert ended.stderr.splitlines() == [f"headrace: Python {result}" for result in results]


def test_a_machine_without_any_of_the_versions_does_not_pass(tree: Path) -> None:
    for version in ("3.11", "3.13"):
        stub(tree / "bin" / f"python{version}", "exit 127")
    ended = versions(tree)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("SKIPPED") == 3
