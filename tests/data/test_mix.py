"""A mix keeps its proportions in every round, gives every table's rows in turn, and is the same however it is read."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.adapters import compose
from headrace.data.orders import ROUND, MixOrder


def numbered(rows: int, first: int) -> hr.ArrayTable:
    return hr.ArrayTable({"id": torch.arange(first, first + rows)})


def mixed(*sizes: int, weights: Any, **options: Any) -> hr.Reader:
    """Table k has the ids from 10_000 k on."""
    return compose.mix([numbered(n, 10_000 * k) for k, n in enumerate(sizes)], weights, **options)


def read(source: hr.Source, rows: int, size: int = ROUND) -> list[int]:
    """The ids of the next rows."""
    found: list[int] = []
    while len(found) < rows:
        batch = source.next_batch(min(size, rows - len(found)))
        assert batch is not None
        found += batch["id"].tolist()
    return found


def shares(ids: list[int], tables: int) -> list[int]:
    return [sum(k // 10_000 == table for k in ids) for table in range(tables)]


WEIGHTS = st.lists(st.floats(0.02, 1.0), min_size=2, max_size=5)


# --- proportions -------------------------------------------------------------------------------------------


@given(weights=WEIGHTS, seed=st.integers(0, 9), data=st.data())
def test_every_round_has_the_same_rows_of_each_table(weights: list[float], seed: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(100, 3000), min_size=len(weights), max_size=len(weights)))
    ids = read(mixed(*sizes, weights=weights, seed=seed), 3 * ROUND)
    rounds = [shares(ids[start : start + ROUND], len(sizes)) for start in range(0, len(ids), ROUND)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert sum(rounds[0]) == ROUND
    for share, weight in zip(rounds[0], weights, strict=True):
        assert abs(share - weight / sum(weights) * ROUND) < 1


# --- weights that change -----------------------------------------------------------------------------------


def test_weights_change_at_their_points_and_each_table_goes_on_where_it_was() -> None:
    sizes, weights = (700, 500), {0: [3, 1], "1500 samples": [1, 1], "1 epoch": [0, 1]}
    ids = read(mixed(*sizes, weights=weights, rows=4000), 6000)
    assert shares(ids[:1024], 2) == [768, 256]
    assert shares(ids[1500 : 1500 + 1024], 2) == [512, 512]
    assert shares(ids[4000:], 2) == [0, 2000]
    for table, size in enumerate(sizes):
        given = [each % 10_000 for each in ids if each // 10_000 == table]
        whole = [given[start : start + size] for start in range(0, len(given) - size + 1, size)]
        assert whole
        assert all(sorted(part) == list(range(size)) for part in whole), "no row comes again before all have"


def test_a_mix_is_the_same_until_its_weights_change_and_however_it_is_read() -> None:
    weights = {0: [3, 1], "1500 samples": [1, 1], "3000 samples": [1, 5]}
    ids = read(mixed(700, 500, weights=weights), 5000)
    assert ids[:1500] == read(mixed(700, 500, weights=[3, 1]), 1500)
    for size in (1, 7, 1025):
        assert read(mixed(700, 500, weights=weights), 3300, size) == ids[:3300]
    for at in (0, 1, 1499, 1500, 1501, 2999, 3001):
        saved, resumed = mixed(700, 500, weights=weights), mixed(700, 500, weights=weights)
        read(saved, at)
        resumed.load_state_dict(saved.state_dict())
        assert read(resumed, 900) == ids[at : at + 900]


def test_every_place_of_a_row_is_found_under_weights_that_change() -> None:
    order = MixOrder([7, 300], [3, 1], rows=2500, seed=4, later=[(1100, [0, 1]), (2200, [1, 1])])
    for epoch in (0, 1):
        rows = order.indices(epoch, 0, 2500)
        for row in (0, 6, 7, 150, 306):
            assert order.positions(epoch, row) == [k for k, each in enumerate(rows) if each == row]


@pytest.mark.parametrize("cross", [False, True])
def test_points_in_steps_are_those_of_the_trainer(cross: bool) -> None:
    """The last of three batches of an epoch is small, unless it goes on in the next epoch."""
    options = {"rows": 90, "batch_size": 32, "cross_epochs": cross}
    source = mixed(50, 40, weights={0: [1, 0], "5 steps": [0, 1]}, **options)
    batches = [source.next_batch(32) for _ in range(8)]
    tables = [set((batch["id"] // 10_000).tolist()) for batch in batches if batch is not None]
    assert tables == [{0}] * 5 + [{1}] * 3
    with pytest.raises(hr.ConfigError, match="batch_size=32 rows, and is read in batches of 16 rows"):
        source.next_batch(16)


# --- the same for ever -------------------------------------------------------------------------------------

GOLDEN = {
    (0, 0): [891, 6, 2, 1045, 485, 1029, 1, 781],
    (3, 0): [82, 166, 1018, 688, 1033, 984, 1010, 591],
    (3, 1020): [5, 4, 455, 3, 1, 981, 2, 0],  # from one round into the next
    (3, 5000): [4, 120, 3, 6, 932, 4, 5, 3],  # the second epoch
    (3, 12000): [2, 4, 5, 4, 924, 0, 1035, 1],
}


def test_what_stands_where_never_changes() -> None:
    for (seed, start), expected in GOLDEN.items():
        order = MixOrder([7, 1000, 40], [0.5, 0.3, 0.2], rows=5000, seed=seed)
        epoch, at = divmod(start, 5000)
        assert order.indices(epoch, at, at + len(expected)).tolist() == expected
    assert order.kind == "mix 512:307:205"


# --- epochs ------------------------------------------------------------------------------------------------


def test_an_epoch_has_the_rows_of_all_tables_or_as_many_as_are_wanted() -> None:
    for options, rows in (({}, 120), ({"rows": 50}, 50), ({"rows": 3000}, 3000)):
        source = mixed(90, 30, weights=[1, 1], **options)
        assert source.batches(16) == -(-rows // 16)
        batch, found = None, 0
        while batch is None or not batch.ends_epoch:
            batch = source.next_batch(16)
            assert batch is not None
            found += batch.rows
        assert found == rows


def test_epochs_go_on_where_the_last_one_ended() -> None:
    short, long = mixed(900, 300, weights=[1, 1], rows=100), mixed(900, 300, weights=[1, 1], rows=1000)
    assert read(short, 3000, 10) == read(long, 3000, 10)
    source = mixed(900, 300, weights=[1, 1], rows=100)
    epochs = [tuple(read(source, 100)) for _ in range(20)]
    assert len(set(epochs)) == 20
    assert source.epoch == 20


@pytest.mark.parametrize(
    ("sizes", "options", "differs"),
    [
        ((90, 30), {"weights": [1, 1]}, "order: saved 'mix 683:341', now 'mix 512:512'"),
        ((90, 30), {"weights": [2, 1], "seed": 1}, "seed"),
        ((90, 30), {"weights": [2, 1], "rows": 100}, "rows: saved 120, now 100"),
        ((30, 90), {"weights": [2, 1]}, "fingerprint"),
    ],
)
def test_the_cursor_of_another_mix_is_refused(sizes: tuple[int, int], options: Any, differs: str) -> None:
    cursor = mixed(90, 30, weights=[2, 1]).state_dict()
    with pytest.raises(hr.SourceError, match=differs):
        mixed(*sizes, **options).load_state_dict(cursor)
