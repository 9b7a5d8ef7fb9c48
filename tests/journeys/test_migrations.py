"""The programs of those who come from other libraries run, learn the same, and are counted as the page says."""

import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest
from kit.forked import start_script
from kit.imports import module_at
from kit.sampled import sampled

import headrace

ROOT = Path(__file__).parents[2]
SWITCH = ROOT / "examples" / "switch"
NEEDS = {
    "with_keras": "keras",
    "with_skorch": "skorch",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
    "with_accelerate": "accelerate",
}


@pytest.mark.parametrize("name", ["with_headrace", "loop", *sampled(NEEDS, of=5)])
def test_a_program_learns_the_task_and_goes_on_when_it_is_started_again(name: str, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    for file in ("data.py", f"{name}.py"):
        shutil.copy(SWITCH / file, tmp_path)
    where = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    for _ in ("begins", "goes on"):
        with start_script(tmp_path / f"{name}.py", environment=where) as child:
            assert child.ending() == 0, child.output
        last = child.output.splitlines()[-1]
        found = re.fullmatch(r"test accuracy (\d\.\d+)", last)
        assert found is not None, last
        assert float(found[1]) > 0.95, "guessing gives 0.33"
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith("output-")}
    assert made - {"data.py", f"{name}.py", "__pycache__"}, "it has saved something to go on from"


def test_the_page_shows_the_program_and_the_lines_of_each() -> None:
    made, text = module_at(ROOT / "scripts" / "pages.py"), (ROOT / "docs" / "switch.md").read_text()
    assert (SWITCH / "with_headrace.py").read_text() + "```\n" in text
    assert made.with_lines(text) == text, "it is out of date: run scripts/docs"
    assert made.with_lines(re.sub(r"\| \d+ \|", "| 99 |", text)) == text, "the control"
