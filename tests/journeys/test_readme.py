"""What the documents say is true: their programs run, and the tree they draw is the one there is."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SOURCE = Path(headrace.__file__).parent
LONG = (
    "loop.md",
    "guarantees.md",
    "around.md",
    "report.md",
    "strategies.md",
    "index.md",
    "callbacks.md",
)


def programs(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the line that each begins at."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text[: block.start(1)].count("\n"), block[1]) for block in blocks]


def marked(page: Path) -> Any:
    """Of the long ones, the README alone is run every day."""
    marks = [pytest.mark.slow] if page.name in LONG else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.filterwarnings("ignore:.* natively :DeprecationWarning")  # hints of the dialects
@pytest.mark.parametrize("page", [marked(page) for page in PAGES if programs(page)])
def test_the_programs_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__page__"}
    for line, program in programs(page):
        code = compile("\n" * line + program, str(page), "exec")
        exec(code, names)


@pytest.mark.slow
def test_the_first_program_of_several_workers_starts_two_processes(tmp_path: Path) -> None:
    """Its own interpreter, since the programs of a page are otherwise not run as the main one."""
    (_, program), *_ = programs(ROOT / "docs" / "workers.md")
    (tmp_path / "train.py").write_text(program)
    ended = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "(" in ended.stderr + ended.stdout  # the throughput of each of the two
    assert float(ended.stdout.splitlines()[-1]) < 1


def test_the_readme_has_programs_and_they_train() -> None:
    """The control: blocks are found, all of them."""
    text = (ROOT / "README.md").read_text()
    found = programs(ROOT / "README.md")
    assert len(found) == text.count("```python") >= 4
    assert sum(".fit(" in program for _, program in found) >= 3


def test_the_loop_of_the_readme_gives_the_weights_of_fit() -> None:
    (loop,) = (program for _, program in programs(ROOT / "README.md") if "def raw_loop" in program)
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn}
    exec(loop, names)
    x, y = torch.randn(300, 20), torch.randint(0, 3, (300,))
    models = []
    for way in ("raw", "fit"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        if way == "raw":
            names["raw_loop"](model, optimizer, x, y, headrace.Order(len(x), seed=0), epochs=3)
        else:
            headrace.Trainer(model, headrace.CrossEntropy(), optimizer).fit((x, y), epochs=3, progress=False)
        models.append(model.state_dict())
    assert all(map(torch.equal, models[0].values(), models[1].values()))


def test_the_tree_of_the_readme_names_every_room_and_no_other() -> None:
    text = (ROOT / "README.md").read_text()
    (tree,) = re.findall(r"^src/headrace/\n((?:  .*\n)+)", text, flags=re.MULTILINE)
    drawn = re.findall(r"^  (\w+)/ ", tree, flags=re.MULTILINE)
    assert sorted(drawn) == sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
