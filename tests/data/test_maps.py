"""Augmentation: what is drawn for a row is the same however the row is read, and other numbers in every epoch."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.own_data import Elsewhere
from kit.small import same, trainer

import headrace as hr
from headrace.data.draws import Draws
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

Fields = dict[str, Any]
ROWS = 43
LENGTHS = torch.arange(ROWS) * 5 % 4
WORDS = Ragged(torch.arange(int(LENGTHS.sum())), torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)]))
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
COLUMNS = {"id": torch.arange(ROWS), "x": X, "words": WORDS, "bag": Sparse.one_hot(torch.arange(ROWS) % 9, 9)}


def noisy(fields: Fields, draws: Draws) -> Fields:
    """Adds numbers of every kind, and changes sequences as their rows say."""
    fields["x"] = fields["x"] + draws.normal(6)
    fields["u"], fields["n"], fields["c"] = draws.uniform(), draws.integers(0, 1000), draws.chance(0.5, 3)
    words = fields["words"]
    shift = draws.integers(1, 100).repeat_interleave(words.lengths)
    return {**fields, "words": words.with_values(words.values + shift)}


def rows_of(batch: hr.Batch) -> list[tuple[Any, ...]]:
    """Every row as a value."""
    columns = [batch[name].tolist() for name in ("id", "x", "u", "n", "c")]
    return list(zip(*columns, [one.tolist() for one in batch["words"]], batch["bag"].ids.tolist(), strict=True))


def read(source: hr.Source, size: int, macrobatch: int = 1, rows: int = 2 * ROWS) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    with hr.Feed(source, batch_size=size, macrobatch=macrobatch) as feed:
        while len(found) < rows:
            for batch in feed:
                found += rows_of(batch)
    return found[:rows]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("where", ["map", "augment", "augment with draws"])
def test_a_function_is_called_by_the_thread_that_trains_unless_it_says_that_others_may(
    where: str, declared: bool
) -> None:
    seen = set[threading.Thread]()

    def fields_only(fields: Fields) -> Fields:
        seen.add(threading.current_thread())
        return fields

    def with_draws(fields: Fields, draws: Draws) -> Fields:
        return fields_only(fields)

    change: Any = with_draws if where == "augment with draws" else fields_only
    change.thread_safe = declared
    table = hr.map(Elsewhere(COLUMNS), change) if where == "map" else Elsewhere(COLUMNS)
    source = hr.Reader(table, augment=None if where == "map" else change)
    seen.clear()
    with hr.Feed(source, batch_size=8) as feed:
        assert sum(batch.rows for batch in feed) == ROWS
    assert seen
    assert (threading.current_thread() in seen) != declared


def test_a_table_of_ones_own_is_read_by_the_thread_that_trains_unless_it_says_that_others_may() -> None:
    seen = set[threading.Thread]()

    class Own(Elsewhere):
        thread_safe = False

    own = Own(COLUMNS, lambda rows: seen.add(threading.current_thread()))
    others = Elsewhere(COLUMNS)
    tables = [own, hr.head(own, 40), hr.concat(others, own), hr.filter(own, lambda fields: fields["id"] > 3)]
    for table in [*tables, hr.zip(hr.map(others, lambda fields: {"z": fields["x"]}), own)]:
        with hr.Feed(hr.Reader(table), batch_size=8) as feed:
            assert sum(batch.rows for batch in feed) == len(table)
    assert seen == {threading.current_thread()}
    assert hr.Reader(hr.concat(others, others)).thread_safe


def reader(table: hr.Table | None = None, order: str = "full", seed: int = 3, **options: Any) -> hr.Reader:
    table = hr.ArrayTable(COLUMNS) if table is None else table
    return hr.Reader(table, order, seed, **{"block": 8, "augment": noisy, **options})


# --- the same however it is read ---------------------------------------------------------------------------


READINGS: dict[str, Callable[[str], hr.Reader]] = {
    "as ever": lambda order: reader(order=order),
    "across epochs": lambda order: reader(order=order, cross_epochs=True),
    "elsewhere": lambda order: reader(Elsewhere(COLUMNS), order),
    "by items": lambda order: reader(order=order, count="words"),
}


@cache
def in_one_batch(order: str) -> list[tuple[Any, ...]]:
    return read(reader(order=order), ROWS)


@given(
    reading=st.sampled_from([*READINGS]),
    order=st.sampled_from(hr.Order.KINDS),
    size=st.integers(1, 60),
    macrobatch=st.integers(1, 200),
)
def test_a_row_is_the_same_in_any_batch_and_any_macrobatch(
    reading: str, order: str, size: int, macrobatch: int
) -> None:
    assert read(READINGS[reading](order), size, macrobatch) == in_one_batch(order)


def test_rows_are_changed_after_they_were_copied_to_the_device() -> None:
    staged = reader().next_macrobatch(7, 20)
    assert staged is not None
    assert staged.finish is not None
    assert "u" not in staged.fields
    assert "u" in staged.finish(staged.fields)


def test_reading_changes_no_generator_and_depends_on_none() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()
    first = read(reader(), 7)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state(legacy=False)["state"]["key"] == before[1]).all()
    torch.manual_seed(5)
    assert read(reader(), 7) == first


# --- another where it should be another --------------------------------------------------------------------


def test_rows_are_augmented_after_a_map_has_changed_them() -> None:
    noise = torch.tensor([row[1] for row in read(reader(), 7)]) - X[[row[0] for row in read(reader(), 7)]]
    for mapped in (reader(hr.map(COLUMNS, without_x)), hr.map(reader(), without_x)):
        found = torch.tensor([row[1] for row in read(mapped, 7)])
        torch.testing.assert_close(found, noise)


def without_x(fields: Fields) -> Fields:
    return {**fields, "x": fields["x"] * 0}


# --- errors ------------------------------------------------------------------------------------------------


def test_a_map_with_draws_names_where_the_function_belongs() -> None:
    with pytest.raises(hr.ConfigError, match=r"noisy takes draws.*hr\.Trainer\(\.\.\., augment=f\).*hr\.Reader"):
        hr.map(COLUMNS, noisy)


def test_an_augmentation_that_breaks_its_promise_in_the_middle_is_named() -> None:
    late = False

    def drops(fields: Fields, draws: Draws) -> Fields:
        return {"id": fields["id"][:4]} if late else fields

    def turns(fields: Fields, draws: Draws) -> Fields:
        return {"id": fields["id"] * 1.0} if late else fields

    for change, error in ((drops, r"augment=.*drops made 4 rows of 7.*filter"), (turns, r"expected stream id: int64")):
        late = False
        source = hr.Reader(hr.ArrayTable({"id": torch.arange(ROWS)}), augment=change)
        late = True
        with pytest.raises(hr.DataError, match=error):
            list(hr.Feed(source, batch_size=7, macrobatch=7))


# --- training ----------------------------------------------------------------------------------------------


def shaken(fields: Fields, draws: Draws) -> Fields:
    return {"x": fields["x"] + 0.3 * draws.normal(6), "y": fields["y"]}


LABELLED = {"x": X, "y": X[:, :3].argmax(dim=1)}


def test_who_is_given_the_function_and_what_reads_the_rows_changes_no_weight() -> None:
    found = []
    arrays = hr.ArrayTable(LABELLED)
    for table in (arrays, Elsewhere(LABELLED)):
        for data, augment in ((table, shaken), (hr.Reader(table, augment=shaken), None)):
            trained = trainer(macrobatch=16, augment=augment)
            trained.fit(data, epochs=2, progress=False)
            found.append(trained)
    plain = trainer(macrobatch=16)
    plain.fit(arrays, epochs=2, progress=False)
    assert all(same(found[0], each) for each in found)
    assert not same(found[0], plain)
