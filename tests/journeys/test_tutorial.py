"""The tutorial is true: its files are written, its commands run one after the other, and they print what it shows."""

from pathlib import Path

import pytest
from kit.pages import blocks, difference, run_page

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    assert run_page(PAGE.read_text(), tmp_path) >= 7
    for made in ("runs/first/report.html", "answers.csv", "runs/first/model.pt2"):
        assert (tmp_path / made).is_file()


def test_another_output_is_noticed() -> None:
    """The control: words, numbers and missing lines count; times and what stands for three dots do not."""
    shown = "epoch 1  val/loss 0.21  9,000 samples/s\n...\nended: 10 epochs\n"
    printed = "epoch 1  val/loss 0.211  300 samples/s\nepoch 2\nepoch 3\nended: 10 epochs\n"
    assert difference(shown, printed) == ""
    assert "expected 'ended" in difference(shown, printed.replace("ended: 10", "ended: 20"))
    assert "expected 'epoch 1" in difference(shown, printed.replace("0.211", "0.311"))
    assert "expected 'epoch 1" in difference(shown, printed.replace("val/", "test/"))
    assert "no more lines" in difference(shown, printed + "and more\n")
    assert "got 'epoch 2'" in difference(shown.replace("...\n", ""), printed)


def test_the_blocks_of_the_tutorial_are_found() -> None:
    found = blocks(PAGE.read_text())
    assert len(found) == PAGE.read_text().count("\n```") // 2 >= 15
    assert {block.title for block in found if block.language == "python"} == {"make_data.py", "churn.py", "serve.py"}
