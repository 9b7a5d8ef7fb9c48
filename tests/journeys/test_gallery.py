"""The gallery: each program has the weights of the loop beside it on the page, bit for bit."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "gallery.md").read_text()
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
PAIRS = re.findall(r"def (\w+)_by_hand\((\w+)=(\d+)\)", PAGE)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in BLOCK.finditer(PAGE):
        exec(textwrap.dedent(block[2]), names)
    return names


def test_the_page_has_seven_programs_beside_their_loops() -> None:
    assert [name for name, *_ in PAIRS] == ["gan", "vae", "diffusion", "contrast", "tasks", "dqn", "reinforce"]
    assert PAGE.count('=== "By hand"') == PAGE.count('=== "headrace"') == 7


@pytest.mark.parametrize(("name", "amount"), [(name, int(amount)) for name, _, amount in PAIRS])
def test_a_program_has_the_bits_of_its_loop(name: str, amount: int, names: dict[str, Any]) -> None:
    by_hand, ours, shorter = names[f"{name}_by_hand"](), names[name](), names[name](amount - 1)
    expected, found = by_hand.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert any(not torch.equal(expected[key], value) for key, value in shorter.state_dict().items()), "the control"
