"""The tests that GUARANTEES.md, slow.txt and the faults name are there, and each fault has its place in the library."""

import re
from pathlib import Path

import pytest
from faults import FAULTS, Fault, applied

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
NAMED = re.findall(r"`(\w+/test_\w+\.py(?:::\w+)?)`", (TESTS / "GUARANTEES.md").read_text())


def is_there(test: str) -> bool:
    file, _, function = test.partition("[")[0].partition("::")
    return (TESTS / file).is_file() and (not function or f"\ndef {function}(" in (TESTS / file).read_text())


def test_every_test_that_holds_a_guarantee_or_is_slow_is_there() -> None:
    assert len(NAMED) > 60
    slow = (TESTS / "slow.txt").read_text().split()
    assert [test for test in (*NAMED, *slow) if not is_there(test)] == [], "rename it, or take it out"
    assert not is_there("store/test_power_loss.py::test_that_nobody_has_written")


def test_every_fault_has_one_place_and_tests_that_are_there() -> None:
    assert len(FAULTS) >= 60
    for fault in FAULTS:
        path, text = applied(fault, SOURCE)
        compile(text, str(path), "exec")
        assert text != path.read_text()
        assert [test for test in fault.tests if not is_there(test.removeprefix("tests/"))] == []


@pytest.mark.parametrize("old", ["no library has this text", "import"])
def test_a_fault_without_one_place_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match="not once"):
        applied(Fault("a fault", old, "", ()), SOURCE)
