"""The order of an epoch is a bijection, looks random, and is the same for ever."""

import hashlib
import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.sampled import sampled
from numpy.typing import NDArray

import headrace as hr
from headrace.data import order as order_module
from headrace.data.order import VERSION, Permutation

KINDS = hr.Order.KINDS
SHUFFLED = [kind for kind in KINDS if kind != "none"]
Rows = NDArray[np.int64]
BY_BLOCKS = ["blocks", "blocks-only", "rows-only"]
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "order.json").read_text())


def whole(order: hr.Order, epoch: int = 0) -> Rows:
    return order.indices(epoch, 0, order.n)


# --- for ever --------------------------------------------------------------------------------------------


def test_outputs_are_those_of_the_first_release_of_this_version() -> None:
    """Outputs never change within one VERSION: a run that was saved must read on in the same order."""
    assert GOLDEN["version"] == VERSION
    assert {case["kind"] for case in GOLDEN["starts"]} == set(KINDS)
    for case in GOLDEN["starts"] + GOLDEN["mixed_starts"]:
        start = case["start"]
        rows = golden(case).indices(case["epoch"], start, start + len(case["rows"]))
        assert rows.tolist() == case["rows"], case
    for case in GOLDEN["wholes"] + GOLDEN["mixed_wholes"]:
        digest = hashlib.sha256(whole(golden(case), case["epoch"]).astype("<i8").tobytes()).hexdigest()
        assert digest == case["sha256"], case


def golden(case: Any) -> hr.Order:
    return order(case["n"], case.get("kind", "blocks"), case["block"], case.get("mix", 1), case["seed"])


# --- a bijection -----------------------------------------------------------------------------------------


EDGES = [*range(1, 67), *(k * k + d for k in (16, 31, 32, 44) for d in (-1, 0, 1))]


def test_permutation_is_a_bijection_for_every_n_up_to_2000() -> None:
    for n in sampled(range(1, 2001), keep=EDGES, of=8):
        permutation, positions = Permutation(n, "test"), np.arange(n)
        elements = permutation(positions)
        assert (np.bincount(elements, minlength=n) == 1).all(), n
        assert (permutation.inverse(elements) == positions).all(), n


@pytest.mark.parametrize("n", [10**9 + 7, 10**12, 2**62 - 1])
def test_permutation_of_a_huge_n_is_invertible_and_without_collisions(n: int) -> None:
    permutation = Permutation(n, "test")
    positions = np.unique(np.random.default_rng(0).integers(n, size=100_000))
    elements = permutation(positions)
    assert elements.min() >= 0
    assert elements.max() < n
    assert len(np.unique(elements)) == len(positions) > 99_000
    assert (permutation.inverse(elements) == positions).all()


sizes = {
    "n": st.integers(1, 400),
    "kind": st.sampled_from(KINDS),
    "block": st.none() | st.integers(1, 450),
    "mix": st.integers(1, 12),
    "seed": st.integers(0, 2**63),
    "epoch": st.integers(0, 10**6),
}


def order(n: int, kind: str, block: int | None = None, mix: int = 1, seed: int = 0) -> hr.Order:
    """With blocks that are mixed where the kind allows it."""
    return hr.Order(n, kind, seed=seed, block=block, mix=mix if kind == "blocks" and block else 1)


@given(**sizes, data=st.data())
def test_every_order_reads_every_row_exactly_once_and_any_slicing_gives_the_same(
    n: int, kind: str, block: int | None, mix: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    made = order(n, kind, block, mix, seed)
    rows = whole(made, epoch)
    assert rows.dtype == np.int64
    assert sorted(rows) == list(range(n))
    spans = list(pairwise([0, *sorted(data.draw(st.lists(st.integers(0, n), max_size=8))), n]))
    parts = {span: made.indices(epoch, *span) for span in data.draw(st.permutations(spans))}
    assert np.array_equal(np.concatenate([parts[span] for span in spans]), rows)


@pytest.mark.parametrize(("kind", "mix"), [*((kind, 1) for kind in KINDS), ("blocks", 64)])
def test_a_slice_of_a_huge_epoch_costs_only_its_length(kind: str, mix: int) -> None:
    """10**12 rows: whatever was stored per row or per block would not fit."""
    made = order(10**12, kind, 1000, mix)
    middle = made.indices(3, 5 * 10**11, 5 * 10**11 + 20_000)
    assert len(np.unique(middle)) == 20_000
    assert np.array_equal(middle[9_999:12_345], made.indices(3, 5 * 10**11 + 9_999, 5 * 10**11 + 12_345))


# --- blocks ----------------------------------------------------------------------------------------------


@given(n=sizes["n"], block=st.integers(1, 60), seed=sizes["seed"], epoch=sizes["epoch"])
@pytest.mark.parametrize("kind", BY_BLOCKS)
def test_blocks_stay_contiguous(kind: str, n: int, block: int, seed: int, epoch: int) -> None:
    rows = whole(hr.Order(n, kind, seed=seed, block=block), epoch)
    ids = rows // block
    runs = np.flatnonzero(np.diff(ids, prepend=-1))  # where another block begins
    assert len(runs) == -(-n // block)
    if kind == "rows-only":
        assert (ids == np.arange(n) // block).all()
    if kind == "blocks-only":
        assert (np.delete(np.diff(rows), runs[1:] - 1) == 1).all()


def test_each_kind_shuffles_what_its_name_says() -> None:
    rows = {kind: whole(hr.Order(1000, kind, block=100)).reshape(10, 100) for kind in KINDS}
    stored = np.arange(1000).reshape(10, 100)
    assert (rows["none"] == stored).all()
    for kind in SHUFFLED:
        blocks_moved = (rows[kind][:, 0] // 100 != stored[:, 0] // 100).any()
        inside = rows[kind] % 100
        assert blocks_moved == (kind != "rows-only")
        assert (inside != stored % 100).any() == (kind != "blocks-only")
        if kind in ("blocks", "rows-only"):
            assert len({block.tobytes() for block in inside}) == 10, "every block has an order of its own"
    assert len(set(rows["full"][0] // 100)) > 1, "a full shuffle mixes blocks"


# --- keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHUFFLED)
def test_every_seed_epoch_and_mix_has_an_order_of_its_own(kind: str) -> None:
    """Among them (seed, epoch + 1) and (seed + 1, epoch), which a key of seed + epoch would confuse."""
    mixes = (1, 2, 3, 50) if kind == "blocks" else (1,)
    orders = [order(1000, kind, 20, mix, seed) for seed in range(8) for mix in mixes]
    assert len({whole(each, epoch).tobytes() for each in orders for epoch in range(8)}) == 8 * len(orders)


# --- looks random ----------------------------------------------------------------------------------------

N, BINS = 300_000, 64


def adjacent_difference_sigmas(rows: Rows) -> float:
    """How far the steps between neighbours are from uniform: χ² over 64 bins, in standard deviations."""
    steps = np.diff(rows) % len(rows)
    counts = np.bincount(steps * BINS // len(rows), minlength=BINS)
    expected = len(steps) / BINS
    chi2 = ((counts - expected) ** 2 / expected).sum()
    return float((chi2 - (BINS - 1)) / np.sqrt(2 * (BINS - 1)))


def correlation_sigmas(rows: Rows) -> float:
    return float(np.corrcoef(np.arange(len(rows)), rows)[0, 1] * np.sqrt(len(rows)))


@pytest.mark.parametrize("seed", range(4))
def test_a_full_shuffle_is_indistinguishable_from_random(seed: int) -> None:
    rows = whole(hr.Order(N, "full", seed=seed))
    assert abs(adjacent_difference_sigmas(rows)) < 5
    assert abs(correlation_sigmas(rows)) < 5


def test_the_statistics_know_a_bad_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, generator = np.arange(N), np.random.default_rng(0)
    assert abs(adjacent_difference_sigmas(generator.permutation(N))) < 5
    assert correlation_sigmas(stored) > 100
    assert adjacent_difference_sigmas(stored) > 1000
    assert adjacent_difference_sigmas(stored * 123_457 % N) > 1000, "an affine shuffle"
    monkeypatch.setattr(order_module, "ROUNDS", 2)
    assert adjacent_difference_sigmas(whole(hr.Order(N, "full"))) > 100


# --- blocks mixed with each other ------------------------------------------------------------------------


def slots(n: int, block: int, seed: int, epoch: int) -> list[int]:
    """The blocks in their shuffled order."""
    return blocks_of(whole(hr.Order(n, "blocks", seed=seed, block=block), epoch), min(block, n))


def blocks_of(rows: Rows, block: int) -> list[int]:
    """The blocks of these rows, in the order in which they come up."""
    return list(dict.fromkeys((rows // block).tolist()))


def groups(n: int, block: int, mix: int, seed: int, epoch: int) -> list[list[int]]:
    """The rows of the blocks that are shuffled together, group after group."""
    block, order = min(block, n), slots(n, block, seed, epoch)
    runs = [list(range(k * block, min(n, (k + 1) * block))) for k in order]
    return [list(chain(*runs[k : k + mix])) for k in range(0, len(runs), mix)]


@given(**{**sizes, "kind": st.just("blocks"), "block": st.integers(1, 60), "epoch": st.integers(0, 9)})
def test_mixed_blocks_are_shuffled_within_groups_of_so_many(
    n: int, kind: str, block: int, mix: int, seed: int, epoch: int
) -> None:
    """The groups, and their order, are those of the blocks without mix."""
    rows, start = whole(hr.Order(n, "blocks", seed=seed, block=block, mix=mix), epoch).tolist(), 0
    for group in groups(n, block, mix, seed, epoch):
        assert sorted(rows[start : start + len(group)]) == sorted(group)
        start += len(group)
    assert start == n
