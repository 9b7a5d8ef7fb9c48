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
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)


def test_each_version_that_there_is_runs_the_tests_and_the_others_are_named(tree: Path) -> None:
    ended = versions(tree, "-k", "arena")
    assert ended.returncode == 1
    assert ended.stdout == "3.11: -k arena\n3.13: -k arena\n"
    results = ("3.11: passed", "3.12: SKIPPED, not on this machine", "3.13: FAILED")
    assert ended.stderr.splitlines() == [f"headrace: Python {result}" for result in results]
    for version in ("3.11", "3.13"):
        stub(tree / "bin" / f"python{version}", "exit 127")
    ended = versions(tree)
    assert (ended.returncode, ended.stdout, ended.stderr.count("SKIPPED")) == (1, "", 3)


@pytest.fixture
def checkout(tree: Path) -> Path:
    """A repository of the scripts in which packages can be built, and version 7.8.9 is to be released."""
    stub(tree / "scripts" / "package", 'echo "packages"')
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    stub(tree / ".ci" / "nightly", 'echo "nightly"')
    (tree / "src" / "headrace").mkdir(parents=True)
    (tree / "src" / "headrace" / "__init__.py").write_text('__version__ = "7.8.9"\n')
    (tree / "CITATION.cff").write_text("version: 7.8.9\n")
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- New.\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    return tree


def git(at: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=at, check=True, capture_output=True, text=True).stdout


def release(at: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(at / "scripts" / "release"), *words], capture_output=True, text=True, timeout=400)


def test_a_trial_of_a_release_builds_the_packages_and_changes_nothing(checkout: Path) -> None:
    ended = release(checkout, "--dry-run")
    assert (ended.returncode, ended.stdout) == (0, "packages\n")
    assert "v7.8.9 can be released" in ended.stderr
    assert (git(checkout, "status", "--porcelain"), git(checkout, "tag")) == ("", "")
    git(checkout, "tag", "v7.8.9")
    assert "v7.8.9 is tagged already" in release(checkout).stderr


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (".ci/nightly", "#!/bin/sh\nexit 3\n", "the nightly tests failed"),
        ("new.txt", "", "the tree has changes"),
        ("CITATION.cff", "version: 7.8.8\n", "CITATION.cff names another version"),
        ("CHANGELOG.md", "# Changelog\n", "no section [Unreleased]"),
    ],
)
def test_a_tree_that_is_not_ready_is_not_released(checkout: Path, file: str, text: str, reason: str) -> None:
    (checkout / file).write_text(text)
    if file != "new.txt":
        git(checkout, "commit", "-q", "-a", "-m", "changed")
    ended = release(checkout)
    assert (ended.returncode, ended.stdout, git(checkout, "tag")) == (1, "", "")
    assert reason in ended.stderr
