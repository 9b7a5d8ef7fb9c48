"""The directory where tests of the command line run: a plugin, which their files name in `pytest_plugins`."""

import os
from pathlib import Path

import pytest

from kit import left_behind
from kit.cli_parts import RECIPE


@pytest.fixture
def place(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the recipes of `cli_parts` in sines.py, and an environment that gives no option a value."""
    for name in [*os.environ]:
        if name.startswith("HEADRACE_") and name != left_behind.MARK:
            monkeypatch.delenv(name)
    (in_tmp_path / "sines.py").write_text(RECIPE)
    return in_tmp_path
