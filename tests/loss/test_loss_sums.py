"""A tally divides sums by weights once, whether they are numbers or still on a device."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.loss.tally import LossSums

PARTS = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(0.1, 1e3), st.booleans(), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(parts=PARTS)
def test_numbers_and_tensors_add_up_alike(parts: list[tuple[float, float, bool, bool]]) -> None:
    tally = LossSums()
    for total, weight, total_on_device, weight_on_device in parts:
        tally.add(
            "far",
            torch.tensor(total, dtype=torch.float64) if total_on_device else total,
            torch.tensor(weight, dtype=torch.float64) if weight_on_device else weight,
            0.5,
        )
    scale = math.fsum(abs(part[0]) for part in parts) / math.fsum(part[1] for part in parts)
    mean = math.fsum(part[0] for part in parts) / math.fsum(part[1] for part in parts)
    assert tally.read() == pytest.approx({"": 0.5 * mean, "far": mean}, rel=0, abs=1e-12 * scale)


def test_single_precision_sums_are_added_in_double() -> None:
    tally = LossSums()
    for _ in range(3000):  # more than wait on the device at once
        tally.add("mse", torch.tensor(1e6 + 0.0625), torch.tensor(1), 1.0)
    tally.add("mse", 0.0, 1, 1.0)
    assert tally.read()["mse"] == pytest.approx(3000 * (1e6 + 0.0625) / 3001, rel=1e-12)


def test_the_total_adds_means_by_coefficient_and_leaves_out_what_only_logs() -> None:
    tally = LossSums()
    tally.add("a", 6.0, 2.0, 1.0)
    tally.add("b", torch.tensor(8.0), 2.0, 0.25)
    tally.add("c", math.nan, 1.0, 0.0)
    tally.add("none", 0.0, 0.0, 1.0)
    scores = tally.read()
    assert tally.read().keys() == scores.keys(), "reading forgets nothing"
    assert math.isnan(scores.pop("c"))
    assert math.isnan(scores.pop("none")), "no row counted"
    assert scores == {"": 4.0, "a": 3.0, "b": 4.0}
    tally.add("a", 6.0, 1.0, 1.0)
    assert tally.read()["a"] == 4.0
    tally.add("b", torch.tensor(1.0), 1.0, 1.0)
    tally.reset()
    assert tally.read() == {}
