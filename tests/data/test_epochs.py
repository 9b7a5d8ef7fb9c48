"""`head(source, n)`: epochs of n rows, each going on where the last one ended, resumed after any batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.own_data import Pulled, counted

import headrace as hr
from headrace.adapters import compose
from headrace.data.ragged import Ragged
from headrace.testing import check_source

ROWS = 35


class Endless(Pulled):
    """The numbers 0, 1, 2, and so on, for ever."""

    endless = True

    def __init__(self) -> None:
        super().__init__({"x": torch.arange(10_000)})


class Shares(Pulled):
    """Honours the shard."""

    shards = elastic = thread_safe = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is None:
            return None
        start, stop = shard.of(batch.rows)
        return hr.Batch({"x": batch["x"][start:stop]}, stop - start, total=batch.rows)


KINDS: dict[str, Callable[[], hr.Source]] = {
    "endless": Endless,
    "rewound": lambda: counted(ROWS),
    "marks ends": lambda: counted(ROWS, ends="flag"),
    "reader": lambda: hr.Reader(hr.ArrayTable({"x": torch.arange(ROWS)}), order="none"),
    "begins again": lambda: counted(ROWS, state=False),
    "shares": lambda: Shares({"x": torch.arange(ROWS)}),
}


def epoch(source: hr.Source, size: int, limit: int = 200) -> list[list[int]]:
    """The batches up to the one that ends an epoch."""
    found: list[list[int]] = []
    for _ in range(limit):
        batch = source.next_batch(size)
        if batch is None:
            return found
        found.append(batch["x"].tolist())
        if batch.ends_epoch:
            return found
    raise AssertionError("no end")


def flat(batches: list[list[int]]) -> list[int]:
    return [k for batch in batches for k in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_any_source_keep_the_promises_of_sources(kind: str) -> None:
    """Resumed after any batch, read in any macrobatches and shared by any workers: never across an epoch's end."""
    check_source(lambda: compose.head(KINDS[kind](), 22), sizes=(6,), workers=(1, 3))


@given(kind=st.sampled_from([*KINDS]), rows=st.integers(1, 120), size=st.integers(1, 50))
def test_every_epoch_has_so_many_rows_whatever_it_is_made_of(kind: str, rows: int, size: int) -> None:
    period = 10**9 if kind == "endless" else ROWS
    source = compose.head(KINDS[kind](), rows)
    said = source.batches(size)
    for k in range(4):
        found = epoch(source, size)
        assert flat(found) == [j % period for j in range(k * rows, (k + 1) * rows)]
        assert said in (None, len(found))


def test_a_source_that_ends_for_good_ends() -> None:
    class Ended(Pulled):
        def state_dict(self) -> None:
            return None

    source = compose.head(Ended({"x": torch.arange(ROWS)}), 20)
    assert [flat(epoch(source, 8)) for _ in range(3)] == [list(range(20)), list(range(20, 35)), []]
    assert source.next_batch(8) is None
    assert compose.head(counted(0), 5).next_batch(2) is None


def test_epochs_of_items_end_with_the_batch_that_has_the_last_row() -> None:
    words = hr.ArrayTable({"w": Ragged.of([torch.arange(k % 5) for k in range(40)]), "x": torch.arange(40)})
    source = compose.head(hr.Reader(words, "none", count="w"), 12)
    plain = hr.Reader(words, "none", count="w")
    first = epoch(source, 9)
    assert first == [plain.next_batch(9)["x"].tolist() for _ in first]
    assert len(flat(first[:-1])) < 12 <= len(flat(first))


@pytest.mark.parametrize("state", [{}, {"at": 3}, {"given": 1}, {"source": {"at": 1}}])
def test_the_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(hr.SourceError, match=r"not the state of epochs of a Pulled"):
        compose.head(counted(ROWS), 10).load_state_dict(state)


def test_the_state_of_epochs_of_another_length_is_refused() -> None:
    source = compose.head(counted(ROWS), 20)
    source.next_batch(15)
    with pytest.raises(hr.SourceError, match=r"20.*10"):
        compose.head(counted(ROWS), 10).load_state_dict(source.state_dict())
