"""Batch sizes: one number, or one from each point of a training on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.data.staging import Sizes
from headrace.length import Counters


def at(sizes: Sizes, samples: int = 0, epochs: int = 0) -> int:
    return sizes.at(Counters(samples=samples, epochs=epochs))


def left(sizes: Sizes, samples: int = 0, epochs: int = 0) -> int | None:
    return sizes.left(Counters(samples=samples, epochs=epochs))


# --- one size ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [32, {0: 32}])
def test_one_size_holds_for_ever(given: Any) -> None:
    sizes = Sizes(given)
    assert sizes.constant
    assert sizes.first == at(sizes) == at(sizes, samples=10**9, epochs=99) == 32
    assert left(sizes) is None


# --- several -----------------------------------------------------------------------------------------------


def test_the_schedule_of_another_toolkit_in_samples_changes_where_that_one_changes() -> None:
    """CNTK's [(12, 32), (15, 64), (1, 128)] with an epoch size of 100: 12 such epochs, then 15, then on."""
    sizes = Sizes({0: 32, "1200 samples": 64, "2700 samples": 128})
    assert not sizes.constant
    for samples, size in [(0, 32), (1199, 32), (1200, 64), (2699, 64), (2700, 128), (10**6, 128)]:
        assert at(sizes, samples) == size
        assert at(sizes, samples, epochs=50) == size


def test_a_point_in_epochs_is_reached_with_the_epoch() -> None:
    sizes = Sizes({0: 4, "1 epoch": 8, "3 epochs": 16})
    assert [at(sizes, samples=999, epochs=k) for k in range(5)] == [4, 8, 8, 16, 16]
    assert left(sizes, epochs=1) is None


def test_of_points_that_are_reached_the_last_one_given_counts() -> None:
    sizes = Sizes({0: 4, "100 samples": 8, "2 epochs": 2})
    assert at(sizes, 99) == 4
    assert at(sizes, 100) == 8
    assert at(sizes, 100, epochs=2) == at(sizes, 50, epochs=2) == 2
    turned = Sizes({0: 4, "2 epochs": 2, "100 samples": 8})
    assert at(turned, 100, epochs=2) == 8


def test_what_is_left_is_up_to_the_next_point_in_samples() -> None:
    sizes = Sizes({0: 32, "1200 samples": 64, "5 epochs": 1, "2700 samples": 128})
    assert [left(sizes, k) for k in (0, 1199, 1200, 2699, 2700, 9999)] == [1200, 1, 1500, 1, None, None]


@given(points=st.dictionaries(st.integers(1, 500), st.integers(1, 99), max_size=5), samples=st.integers(0, 600))
def test_a_size_holds_for_all_that_is_left(points: dict[int, int], samples: int) -> None:
    sizes = Sizes({0: 7} | {f"{k} samples": size for k, size in sorted(points.items())})
    expected = next((points[k] for k in sorted(points, reverse=True) if k <= samples), 7)
    assert at(sizes, samples) == expected
    ahead = left(sizes, samples)
    if ahead is None:
        assert at(sizes, 10**9) == expected
        return
    assert ahead > 0
    assert at(sizes, samples + ahead - 1) == expected
    assert samples + ahead in points


def test_the_schedule_given_is_not_kept_by_reference() -> None:
    given = {0: 4, "5 epochs": 8}
    sizes = Sizes(given)
    given[0] = 99
    given.clear()
    assert (at(sizes), at(sizes, epochs=5)) == (4, 8)


# --- errors ------------------------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    (0, r"batch_size= is a whole number greater than 0, got 0"),
    (-3, "got -3"),
    (2.0, r"got 2\.0"),
    (True, "got True"),
    ("32", "got '32'"),
    ({}, r"begins with a value for 0"),
    ({"5 epochs": 64}, r"begins with a value for 0, as in .*got \{'5 epochs': 64\}"),
    ({0: 32, "5 epochs": 0}, "greater than 0, got 0"),
    ({0: 32, "10 epochs": 128, "5 epochs": 64}, "batch_size= has '5 epochs' after a later point"),
    (
        {0: 32, "1 epoch": 128, "9 samples": 1, "1 epochs": 64},
        "batch_size= has '1 epoch' after a later point, or twice",
    ),
    ({0: 32, "5 epochs": 64.0}, "got 64.0"),
    ({0: 32, "5 epochs": None}, "got None"),
    ({0: 32, 5: 64}, r"number and a unit.*got 5"),
    ({0: 32, "5": 64}, r"number and a unit.*got '5'"),
    ({0: 32, "5 eposch": 64}, r"unknown unit 'eposch'"),
    ({0: 32, "0 epochs": 64}, r"batch_size= is greater than 0"),
    ({0: 32, "1.5 epochs": 64}, r"batch_size= counts whole epochs"),
    ({0: 32, "5 steps": 64}, r"changes after epochs or samples, got '5 steps': steps depend on the size itself"),
    ({0: 32, "5 min": 64}, r"minutes differ from run to run"),
    ([(0, 32)], "got"),
]


@pytest.mark.parametrize(("given", "error"), WRONG)
def test_a_size_that_cannot_be_is_told_why(given: Any, error: str) -> None:
    with pytest.raises(hr.ConfigError, match=error):
        Sizes(given)


def test_a_trainer_refuses_it_before_anything_else(subtests: pytest.Subtests) -> None:
    from torch import nn, optim

    model = nn.Linear(2, 2)
    for size, error in WRONG:
        with subtests.test(size=size), pytest.raises(hr.ConfigError, match=error):
            hr.Trainer(model, hr.MSE(), optim.SGD(model.parameters(), lr=0.1), batch_size=size)


def test_an_error_names_the_argument_that_it_is_about() -> None:
    with pytest.raises(hr.ConfigError, match="minibatch= is a whole number"):
        Sizes(0, "minibatch")
