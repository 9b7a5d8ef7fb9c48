"""Random numbers of rows: the same however the rows are read, unlike each other in every other way."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headrace as hr
from headrace.data import draws as draws_module
from headrace.data.draws import Draws

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "draws.json").read_text())

KINDS: dict[str, Callable[[Draws], Tensor]] = {
    "uniform": lambda draws: draws.uniform(3, 2),
    "uniform of one": lambda draws: draws.uniform(),
    "uniform between": lambda draws: draws.uniform(2, low=-3.0, high=5.0),
    "normal": lambda draws: draws.normal(3),
    "integers": lambda draws: draws.integers(-5, 1000, 2),
    "chance": lambda draws: draws.chance(0.3, 4),
}


def draws(rows: int = 100, seed: int = 0, epoch: int = 0, start: int = 0) -> Draws:
    return Draws.at(seed, [(epoch, start, start + rows)])


def several(held: Draws) -> dict[str, Tensor]:
    """One number of every kind, one after the other."""
    return {name: draw(held) for name, draw in KINDS.items()}


# --- the same --------------------------------------------------------------------------------------------


@given(n=st.integers(1, 60), seed=st.integers(-(2**63), 2**64), epoch=st.integers(0, 10**6), data=st.data())
def test_a_row_has_the_same_numbers_in_any_split(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 10**12))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, n), max_size=5))), n]
    whole = several(Draws.at(seed, [(epoch, start, start + n)]))
    parts = [several(Draws.at(seed, [(epoch, start + a, start + b)])) for a, b in pairwise(cuts)]
    for name, numbers in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), numbers), name


@given(pieces=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=6))
def test_a_row_has_the_same_numbers_among_any_others(pieces: list[tuple[int, int, int]]) -> None:
    """In any order, with rows of other epochs, or twice."""
    runs = [(epoch, start, start + rows) for epoch, start, rows in pieces]
    together = several(Draws.at(7, runs))
    apart = [several(Draws.at(7, [run])) for run in runs]
    for name, numbers in together.items():
        assert torch.equal(numbers, torch.cat([part[name] for part in apart])), name


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_how_many_are_made_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    expected = several(draws())
    monkeypatch.setattr(draws_module, "CHUNK", chunk)
    assert all(torch.equal(numbers, expected[name]) for name, numbers in several(draws()).items())


def test_numbers_are_those_of_the_first_release() -> None:
    """They belong to a run: what was augmented before a resume is augmented the same after it."""
    for case in GOLDEN:
        held = Draws.at(case["seed"], [tuple(piece) for piece in case["pieces"]])
        for _ in range(case["calls"]):
            held.uniform()
        assert held.integers(0, 2**62, 2).tolist() == case["integers"]
        assert held.uniform(2).tolist() == case["uniform"]
        torch.testing.assert_close(held.normal().tolist(), case["normal"], rtol=1e-5, atol=1e-6)


# --- unlike each other -----------------------------------------------------------------------------------

N, BINS = 100_000, 64


def uniform_sigmas(numbers: Tensor) -> float:
    """How far numbers from 0 to 1 are from evenly spread: χ² over the bins, in standard deviations."""
    counts = np.bincount((numbers.flatten().double().numpy() * BINS).astype(int), minlength=BINS)
    expected = counts.sum() / BINS
    return float((((counts - expected) ** 2 / expected).sum() - (BINS - 1)) / math.sqrt(2 * (BINS - 1)))


def pair_sigmas(one: Tensor, other: Tensor) -> float:
    """The same for pairs, over 8 by 8 bins: what is unlike a product of two even spreads."""
    cells = (one.flatten() * 8).long() * 8 + (other.flatten() * 8).long()
    return uniform_sigmas((cells.double() + 0.5) / 64)


def correlation_sigmas(one: Tensor, other: Tensor) -> float:
    return float(np.corrcoef(one.flatten().numpy(), other.flatten().numpy())[0, 1] * math.sqrt(one.numel()))


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_spread_evenly(seed: int) -> None:
    held = draws(N, seed)
    assert abs(uniform_sigmas(held.uniform())) < 5
    assert abs(uniform_sigmas(held.uniform(3)[:, 2])) < 5
    assert abs(uniform_sigmas((held.integers(0, BINS).double() + 0.5) / BINS)) < 5
    assert abs(float(held.chance(0.3).float().mean()) - 0.3) < 5 * math.sqrt(0.21 / N)
    one_row = Draws.at(seed, [(0, 5, 6)]).uniform(N)
    assert abs(uniform_sigmas(one_row)) < 5, "the many numbers of one row too"


@pytest.mark.parametrize(
    "other",
    [
        lambda: draws(N, start=1).uniform(),
        lambda: draws(N, start=2).uniform(),
        lambda: draws(N, start=1 << 20).uniform(),
        lambda: draws(N, epoch=1).uniform(),
        lambda: draws(N, epoch=1, start=1).uniform(),
        lambda: draws(N, seed=1).uniform(),
        lambda: draws(N, seed=2**63).uniform(),
        lambda: draws(N, seed=1, epoch=1).uniform(),
        lambda: draws(N).uniform(2)[:, 1],
        lambda: [held := draws(N), held.uniform(), held.uniform()][2],
    ],
    ids=["next row", "row after", "far row", "epoch", "epoch and row", "seed", "far seed", "both", "place", "call"],
)
def test_other_rows_epochs_seeds_places_and_calls_are_independent(other: Callable[[], Any]) -> None:
    one, two = draws(N).uniform(), other()
    assert abs(correlation_sigmas(one, two)) < 5
    assert abs(pair_sigmas(one, two)) < 5


def test_the_statistics_know_bad_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.rand(N, generator=torch.Generator().manual_seed(0))
    assert abs(uniform_sigmas(good)) < 5
    assert abs(pair_sigmas(good[1:], good[:-1])) < 5
    assert uniform_sigmas(good**1.05) > 20
    assert pair_sigmas(good, good) > 1000
    assert correlation_sigmas(good[1:], good[1:] + good[:-1]) > 100
    monkeypatch.setattr(draws_module, "_mix_", lambda z: z)
    assert pair_sigmas(draws(N).uniform(), draws(N, start=1).uniform()) > 100


# --- the distributions -----------------------------------------------------------------------------------


def test_normal_numbers_have_the_moments_and_the_tails_of_a_normal_distribution() -> None:
    numbers = draws(N).normal().double()
    assert abs(numbers.mean()) < 5 / math.sqrt(N)
    assert abs(numbers.var() - 1) < 5 * math.sqrt(2 / N)
    assert abs((numbers**4).mean() - 3) < 5 * math.sqrt(96 / N)
    for bound in (0.5, 1.0, 2.0, 3.0):
        share = 0.5 * (1 + math.erf(bound / math.sqrt(2)))
        assert abs((numbers < bound).double().mean() - share) < 5 * math.sqrt(share * (1 - share) / N)
    assert numbers.isfinite().all()
    assert abs(uniform_sigmas(0.5 * (1 + torch.erf(numbers / math.sqrt(2))))) < 5


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (5.0, 5.5), (1000.0, 1001.0), (-2001.0, -2000.0)])
def test_uniform_numbers_lie_from_low_up_to_not_including_high(low: float, high: float) -> None:
    numbers = draws(200_000).uniform(low=low, high=high)
    assert numbers.min() >= low
    assert numbers.max() < high


@given(low=st.integers(-1000, 1000), span=st.integers(1, 50))
def test_integers_lie_from_low_up_to_not_including_high(low: int, span: int) -> None:
    numbers = draws(2000).integers(low, low + span)
    assert numbers.dtype == torch.int64
    assert set(numbers.tolist()) == set(range(low, low + span))


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (0,), (2, 0, 3)])
def test_numbers_are_of_the_shape_that_was_asked_for_every_row(shape: tuple[int, ...]) -> None:
    for rows in (0, 1, 5):
        held = draws(rows)
        assert len(held) == rows
        assert held.uniform(*shape).shape == held.normal(*shape).shape == (rows, *shape)
        assert held.integers(0, 9, *shape).shape == held.chance(0.5, *shape).shape == (rows, *shape)
    assert draws().uniform().dtype == draws().normal().dtype == torch.float32


def test_numbers_are_made_on_the_device_of_the_rows() -> None:
    held = draws().to(torch.device("meta"))
    assert {numbers.device.type for numbers in several(held).values()} == {"meta"}
    assert torch.equal(draws().to(torch.device("cpu")).uniform(), draws().uniform())


def test_a_mask_gives_the_items_of_sequences_numbers_that_do_not_depend_on_the_longest_row() -> None:
    words = hr.Ragged.of([torch.zeros(n) for n in (40, 0, 60)])
    found = Draws.at(3, [(1, 5, 8)]).normal(words.longest)[words.mask]
    assert len(found) == words.items
    assert torch.equal(found[:40], Draws.at(3, [(1, 5, 6)]).normal(40)[0])
