"""The types that a user's program sees, by mypy and, where it is installed, by pyright."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "scripts" / "smoke.py"
WRONG = {
    'epochs="three", run=run': "arg-type|reportArgumentType",
    "epoch=epochs, run=run": "call-arg|reportCallIssue",
}
"""Mistakes in the place of `epochs=epochs, run=run`, and what they are called by mypy and by pyright."""
MYPY = [sys.executable, "-m", "mypy", "--cache-dir", ".mypy_cache"]  # as scripts/check: what it knows is not found anew


@pytest.fixture
def programs(tmp_path: Path) -> dict[Path, str]:
    """Programs with a mistake each; what the mistake is called."""
    text, made = PROGRAM.read_text(), {}
    for k, (mistake, called) in enumerate(WRONG.items()):
        assert "epochs=epochs, run=run" in text
        path = tmp_path / f"wrong_{k}.py"
        path.write_text(text.replace("epochs=epochs, run=run", mistake))
        made[path] = called
    return made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_accepts_a_program_of_a_user_and_finds_its_mistakes(tmp_path: Path, programs: dict[Path, str]) -> None:
    shutil.copy(PROGRAM, right := tmp_path / "right.py")
    checked = subprocess.run([*MYPY, str(right), *map(str, programs)], capture_output=True, text=True, cwd=ROOT)
    lines = checked.stdout.splitlines()  # of a mistake that mypy knows from another time, they name the folder of then
    assert [line for line in lines if f"/{right.name}:" in line] == [], checked.stdout + checked.stderr
    for path, called in programs.items():
        assert [line for line in lines if f"/{path.name}:" in line and f"[{called.partition('|')[0]}]" in line], lines


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed; scripts/package installs it")
def test_pyright_accepts_a_program_of_a_user_and_finds_its_mistakes(tmp_path: Path, programs: dict[Path, str]) -> None:
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}')
    shutil.copy(PROGRAM, tmp_path)

    def found(path: Path) -> subprocess.CompletedProcess[str]:
        command = ["pyright", "--pythonpath", sys.executable, path.name]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    checked = found(PROGRAM)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for path, called in programs.items():
        assert called.partition("|")[2] in found(path).stdout
