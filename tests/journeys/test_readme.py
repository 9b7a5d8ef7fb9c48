"""What the documents say is true: their programs and commands run."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import left_behind
from kit.forked import start
from kit.pages import Block, blocks, run_page
from kit.torch_workers import run_program

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES.remove(ROOT / "docs" / "gallery.md")  # whose programs test_gallery.py runs


def programs(page: Path) -> list[Block]:
    """The Python blocks of a page that are no files of their own."""
    return [block for block in blocks(page.read_text()) if block.language == "python" and not block.title]


def marked(page: Path) -> Any:
    """The README alone is run every day."""
    marks = [] if page.name == "README.md" else [pytest.mark.slow]
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.filterwarnings("ignore:SpikeGuard:UserWarning")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft, of transformers
@pytest.mark.parametrize("page", [marked(page) for page in PAGES if programs(page)])
def test_the_programs_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__page__"}
    for program in programs(page):
        exec(compile("\n" * program.line + program.text, str(page), "exec"), names)


@pytest.mark.parametrize("page", ["workers.md", "large_models.md"])
def test_the_first_program_of_several_workers_starts_two_processes(page: str, tmp_path: Path) -> None:
    """As the main program, which those of a page otherwise are not."""
    program, *_ = programs(ROOT / "docs" / page)
    (tmp_path / "train.py").write_text(program.text)
    with start(run_program, tmp_path, tmp_path / "train.py", tmp_path) as child:
        assert child.ending() == 0, child.output
        output = child.output
    assert "(" in output  # the throughput of each of the two
    assert float(output.splitlines()[-1]) < 1


def test_the_readme_has_programs_and_they_train() -> None:
    """The control: blocks are found, all of them."""
    text = (ROOT / "README.md").read_text()
    found = programs(ROOT / "README.md")
    assert len(found) == text.count("```python") >= 3
    assert sum(".fit(" in program.text for program in found) >= 2


def commands(page: Path) -> list[Block]:
    """The blocks of a page that are for a shell."""
    return [block for block in blocks(page.read_text()) if block.language == "bash"]


def installs(block: Block) -> bool:
    """Whether a block only calls pip, which needs the network."""
    return all(line.startswith("pip install ") for line in block.text.splitlines())


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the repository in a directory with a space and an umlaut, as its scripts leave it after they installed.

    The environment in `.venv` starts the interpreter of this test, so that nothing is installed.
    """
    place = tmp_path / "ä b" / "headrace"
    for name in ("scripts", "src", "tests", "recipes"):  # with what Python has compiled of them, which takes seconds
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("*.pyc.*"))  # being written now
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    python = place / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{place / 'src'}' exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    (place / ".venv" / ".extras").write_text("dev\nsklearn\n")
    stamp = "source scripts/lib.sh; stamp dev,sklearn >.venv/.stamp"
    subprocess.run(["bash", "-eo", "pipefail", "-c", stamp], cwd=place, check=True)
    return place


def test_the_commands_of_the_readme_and_the_tour_run_as_they_stand(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other. `scripts/test` runs a few of the tests, and must not take this process for its own."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", left_behind.MARK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", "tests/data/test_order.py")
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "0")  # each takes seconds to start
    shown = [block for block in commands(ROOT / "README.md") if not installs(block)]
    tour = next(block for block in commands(ROOT / "docs" / "index.md") if block.text.startswith("headrace new"))
    shown.append(tour)
    run_page("".join(f"```bash\n{block.text}```\n" for block in shown), clone)
    assert list(clone.glob("runs/digits/report.html"))
    last = json.loads((clone / "runs" / "digits" / "metrics.jsonl").read_text().splitlines()[-1])
    assert min(last["test/accuracy"], last["test/f1"]) >= 0.97, "the recipe reads digits that it has never seen"
    made = clone / "churn"
    assert (made / "answers.csv").read_text().splitlines()[0].endswith('"class","probability"')
    assert (made / "runs" / "one" / "report.html").is_file()


def test_the_page_of_installation_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`headrace\[.*?) \|", (ROOT / "docs" / "install.md").read_text(), flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\[(\w+)\]", row)}
    assert named == set(extras) - {"dev", "bench"}
