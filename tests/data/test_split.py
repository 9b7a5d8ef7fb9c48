"""Splits share out every row once, in these proportions, and stay the same for ever."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.composed import ids, named

from headrace.adapters import compose


@given(
    rows=st.integers(3, 400),
    fractions=st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.5), (1 / 3,) * 3, (0.7,), (1.0,), (0.2, 0.3), (0.1,) * 10]),
    seed=st.integers(0, 5),
)
def test_split_shares_out_rows_once_in_these_proportions(rows: int, fractions: tuple[float, ...], seed: int) -> None:
    whole = named(id=range(rows))
    if min(fractions) * rows < 1:
        return
    parts = [ids(part) for part in compose.split(whole, *fractions, seed=seed)]
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * rows) <= 1
        assert part == sorted(part)
    together = sorted(k for part in parts for k in part)
    assert len(together) == len(set(together)) == round(sum(fractions) * rows)
    assert parts == [ids(part) for part in compose.split(whole, *fractions, seed=seed)]


GOLDEN_SPLITS = [[5, 10, 11, 12, 14, 16], [1, 4, 5, 9, 10, 15], [3, 6, 8, 12, 15, 19]]


def test_split_is_shuffled_by_its_seed_and_never_changes() -> None:
    parts = [ids(compose.split(named(id=range(20)), 0.3, seed=seed)[0]) for seed in (0, 1, 2)]
    assert parts == GOLDEN_SPLITS


@given(labels=st.lists(st.integers(0, 3), min_size=20, max_size=300), seed=st.integers(0, 3))
def test_stratify_shares_out_every_class_to_within_one_row(labels: list[int], seed: int) -> None:
    fractions = (0.6, 0.3, 0.1)
    whole = named(id=range(len(labels)), y=labels)
    parts = [ids(part) for part in compose.split(whole, *fractions, seed=seed, stratify="y")]
    assert sorted(k for part in parts for k in part) == list(range(len(labels)))
    for label in set(labels):
        for part, fraction in zip(parts, fractions, strict=True):
            assert abs(sum(labels[k] == label for k in part) - fraction * labels.count(label)) <= 1


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.8, 0.2), (0.8, 0.1, 0.1)])
def test_many_tiny_classes_do_not_shift_the_proportions(fractions: tuple[float, ...]) -> None:
    classes = 40
    for size in range(1, 8):
        whole = named(id=range(size * classes), y=[k % classes for k in range(size * classes)])
        parts = compose.split(whole, *fractions, stratify="y")
        for part, fraction in zip(parts, fractions, strict=True):
            assert abs(len(part) - fraction * size * classes) <= 2, size


def test_stratify_takes_labels_of_any_number_and_kind() -> None:
    labels = torch.tensor([-7, 1000] * 20)
    for y in (labels, labels.int(), labels > 0):
        part = compose.split({"id": torch.arange(40), "y": y}, 0.5, stratify="y")[0]
        assert sum(k % 2 for k in ids(part)) == 10
