"""How long and how often: one small type, with the unit in the text or in the name of the argument."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.length import Counters, interval, limits

# --- reading ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5 epoks", r"every='5 epoks': unknown unit 'epoks'. Did you mean 'epochs'\?"),
        ("5 smaples", r"Did you mean 'samples'\?"),
        ("5 fortnights", "Choose one of: epoch, epochs, min"),
        ("0 epochs", "every= is greater than 0, got 0"),
        ("1.5 epochs", "every= counts whole epochs, got 1.5"),
        ("0.5 steps", "every= counts whole steps, got 0.5"),
        ("-1 epochs", "every= is a number and a unit, as in \"1 epoch\" .*got '-1 epochs'"),
        ("5", "number and a unit"),
        ("epochs", "number and a unit"),
        ("", "number and a unit"),
        ("1 epoch 5 steps", "number and a unit"),
        (5, "number and a unit, .* got 5"),
        (None, "number and a unit, .* got None"),
        (True, "number and a unit, .* got True"),
    ],
)
def test_what_is_no_length_is_refused_by_the_name_of_its_argument(text: Any, message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        hr.Length.parse(text, "every")


@pytest.mark.parametrize("count", [0, -1, -0.5, True, False, float("nan"), float("inf"), "10", [1]])
def test_a_count_is_a_number_greater_than_0(count: Any) -> None:
    with pytest.raises(hr.ConfigError, match="epochs="):
        hr.Length.of(count, "epochs", "epochs")


def test_an_integer_of_another_library_is_a_count() -> None:
    assert hr.Length.of(np.int64(3), "epochs", "epochs") == hr.Length(3, "epochs")


@pytest.mark.parametrize(("count", "unit"), [(0, "steps"), (-1, "epochs"), (5, "fortnights"), (1.5, "samples")])
def test_a_length_that_is_made_directly_is_checked_too(count: float, unit: str) -> None:
    with pytest.raises(hr.ConfigError):
        hr.Length(count, unit)


def test_an_interval_within_a_loop_is_not_measured_in_minutes() -> None:
    assert interval("500 steps", "log_every") == hr.Length(500, "steps")
    with pytest.raises(hr.ConfigError, match="log_every='30 min': minutes differ from run to run"):
        interval("30 min", "log_every")


# --- reaching --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["epochs", "steps", "samples", "minutes"])
def test_a_length_is_reached_at_its_count_and_ever_after(unit: str) -> None:
    others = dict.fromkeys(("epochs", "steps", "samples", "minutes"), 99)
    reached = [hr.Length(3, unit).reached(Counters(**{**others, unit: count})) for count in range(6)]
    assert reached == [False, False, False, True, True, True]


def test_the_limits_are_those_that_are_given_and_ten_epochs_without_any() -> None:
    assert limits(None, None, None, None) == [hr.Length(10, "epochs")]
    assert limits(None, None, None, None, default=3) == [hr.Length(3, "epochs")]
    assert limits(2, 500, 10_000, 0.5) == [
        hr.Length(2, "epochs"),
        hr.Length(500, "steps"),
        hr.Length(10_000, "samples"),
        hr.Length(0.5, "minutes"),
    ]


@pytest.mark.parametrize("unit", ["epochs", "steps", "samples", "minutes"])
@pytest.mark.parametrize("count", [0, -1, True])
def test_a_limit_that_cannot_be_is_refused_by_its_name(unit: str, count: Any) -> None:
    given = {"epochs": None, "steps": None, "samples": None, "minutes": None} | {unit: count}
    with pytest.raises(hr.ConfigError, match=f"^{unit}= is greater than 0, got {count}"):
        limits(**given)


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


def test_an_interval_in_samples_fires_once_for_a_batch_that_crosses_several() -> None:
    length, counters, fired = hr.Length(10, "samples"), Counters(), []
    for rows in (4, 4, 4, 35, 3, 0):
        counters.samples, counters.rows = counters.samples + rows, rows
        fired.append(length.fires(counters))
    assert fired == [False, False, True, True, True, False]
