"""How long and how often: one small type, with the unit in the text or in the name of the argument."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.length import Counters


@pytest.mark.parametrize(
    ("text", "count", "unit", "again"),
    [
        ("10 epochs", 10, "epochs", "10 epochs"),
        ("1 epoch", 1, "epochs", "1 epoch"),
        ("1 epochs", 1, "epochs", "1 epoch"),
        ("500 steps", 500, "steps", "500 steps"),
        ("1 Step", 1, "steps", "1 step"),
        ("100000 samples", 100_000, "samples", "100000 samples"),
        ("30 min", 30, "minutes", "30 minutes"),
        ("0.5 minutes", 0.5, "minutes", "0.5 minutes"),
        ("  7steps ", 7, "steps", "7 steps"),
        ("2.0 epochs", 2, "epochs", "2 epochs"),
    ],
)
def test_a_length_is_a_number_and_a_unit(text: str, count: float, unit: str, again: str) -> None:
    length = hr.Length.parse(text, "every")
    assert length == hr.Length(count, unit)
    assert str(length) == again
    assert hr.Length.parse(again, "every") == hr.Length.parse(length, "every") == length


# --- firing ----------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 120), st.booleans()), min_size=1, max_size=60))
def test_an_interval_fires_when_the_floor_of_count_by_n_changes(n: int, updates: list[tuple[int, bool]]) -> None:
    """Once per update, however many intervals it crosses; batches may be of any size, also empty."""
    counters = Counters()
    for rows, ends in updates:
        before = (counters.steps // n, counters.samples // n, counters.epochs // n)
        counters.steps, counters.samples, counters.epochs = (
            counters.steps + 1,
            counters.samples + rows,
            counters.epochs + ends,
        )
        counters.rows, counters.ends_epoch = rows, ends
        now = (counters.steps // n, counters.samples // n, counters.epochs // n)
        fired = [hr.Length(n, unit).fires(counters) for unit in ("steps", "samples", "epochs")]
        assert fired == [b != a for a, b in zip(before, now, strict=True)]


@pytest.mark.parametrize("unit", ["epochs", "steps", "samples", "minutes"])
def test_a_length_is_reached_at_its_count_and_ever_after(unit: str) -> None:
    others: dict[str, Any] = dict.fromkeys(("epochs", "steps", "samples", "minutes"), 99)
    reached = [hr.Length(3, unit).reached(Counters(**{**others, unit: count})) for count in range(6)]
    assert reached == [False, False, False, True, True, True]
