"""The pictures of the documentation: each shows what there is now, none is large, and pages name those there are."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kit.imports import module_at

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
RENEW = "it is out of date: run .venv/bin/python scripts/pictures.py"


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """The script that makes the pictures."""
    return module_at(ROOT / "scripts" / "pictures.py")


def test_what_is_drawn_from_results_is_what_the_script_draws_now(pictures: ModuleType) -> None:
    for name, text in pictures.drawn().items():
        assert (PICTURES / f"{name}.svg").read_text() == text, f"{name}.svg: {RENEW}"


def test_pictures_of_a_training_show_the_code_that_there_is(pictures: ModuleType) -> None:
    known = json.loads((PICTURES / "digests.json").read_text())
    assert known == {name: pictures.digest(name) for name in pictures.MADE}, RENEW


def test_a_changed_file_changes_the_digest(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    monkeypatch.setitem(pictures.SHOWN, "some", ("*.py",))
    (tmp_path / "one.py").write_text("a")
    before = pictures.digest("some")
    (tmp_path / "one.py").write_text("b")
    assert pictures.digest("some") != before


def test_the_figures_of_the_pages_are_those_that_were_measured(pictures: ModuleType) -> None:
    for page in pictures.FIGURES:
        text = page.read_text()
        assert pictures.with_figures(text) == text, RENEW
    changed = re.sub(r"\| [0-9.]+ \|", "| 9.99 |", text)
    assert "| 9.99 |" in changed, "the control"
    assert pictures.with_figures(changed) == text


def test_speeds_are_shown_with_the_processor_the_threads_and_the_builds(pictures: ModuleType) -> None:
    record = {"cpu": "AMD EPYC", "threads": 1, "libraries": {"torch": "2.13.0+cpu"}, "python": "3", "system": "Linux"}
    described = pictures.where(
        {"machine": record | {"date": "2026-11-23T13:02:15", "cores": 2, "instructions": "AVX2"}}
    )
    assert described == "AMD EPYC, 2 cores, 1 thread; torch 2.13.0+cpu (AVX2), Python 3, Linux; 2026-11-23"
    workers = json.loads((ROOT / "benchmarks" / "results" / "workers.json").read_text())
    shown = {
        ROOT / "README.md": pictures.results(),
        PICTURES / "overhead.svg": pictures.results(),
        ROOT / "docs" / "strategies.md": workers,
    }
    for file, measured in shown.items():
        assert pictures.where(measured) in " ".join(file.read_text().split()), file.name


def test_the_readme_says_where_headrace_is_not_the_fastest(pictures: ModuleType) -> None:
    record = pictures.results()
    for ours, others, said in (
        (0.5, 0.6, []),
        (1.2, 1.3, ["not faster than the loop in “one”"]),
        (0.5, 0.4, ["Ignite 0.40"]),
    ):
        ratios = {"raw": 1.0, "raw-again": 1.0, "headrace": ours, "ignite": others}
        peers = {peer: {"to_raw": {"median": ratio}} for peer, ratio in ratios.items()}
        _, caption = pictures.figures(record | {"parts": {"a": {"title": "fit, one", "peers": peers}}})
        assert caption.count("none of these") == 2 - len(said)
        assert all(each in " ".join(caption.split()) for each in said)


def test_a_benchmark_records_the_processor_the_threads_and_the_builds() -> None:
    found = module_at(ROOT / "benchmarks" / "machine.py").machine()
    assert found["libraries"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert found["instructions"] in torch.__config__.show()
    assert found["cpu"]


def test_pictures_are_small_and_each_is_shown_by_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    shown = {Path(link).name for page in pages for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())}
    files = {path.name: path.stat().st_size for path in PICTURES.iterdir() if path.suffix in (".svg", ".png")}
    assert set(files) == shown
    assert max(files.values()) < 200_000
