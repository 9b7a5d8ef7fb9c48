"""Tables made of tables hold the rows that they say, whatever they are made of, and name what does not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.composed import ids, named, negated, odd, plain, row, same, table
from kit.own_data import counted
from torch import Tensor

import headrace as hr
from headrace.adapters import compose
from headrace.data.sparse import Sparse


class Spy(hr.Table):
    """A table of the user's, with blocks."""

    def __init__(self, rows: int) -> None:
        self._rows, self.block = rows, 4

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("id", (), "int64")]

    def __len__(self) -> int:
        return self._rows

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"id": indices})


# --- views of views ----------------------------------------------------------------------------------------


@st.composite
def views(draw: Callable[[Any], Any], depth: int = 3) -> tuple[hr.Table, list[tuple[int, int]]]:
    """A table made of tables in any way, and what its rows are: (id, sign) of each."""
    kind = draw(st.sampled_from(["plain", "concat", "head", "skip", "filter", "map", "split"])) if depth else "plain"
    if kind == "plain":
        first, rows = draw(st.integers(0, 30)), draw(st.integers(0, 12))
        return table(range(first, first + rows)), [(k, 1) for k in range(first, first + rows)]
    if kind == "concat":
        parts = draw(st.lists(views(depth=depth - 1), min_size=1, max_size=3))
        return compose.concat(*(part for part, _ in parts)), [each for _, rows in parts for each in rows]
    inner, rows = draw(views(depth=depth - 1))
    if kind in ("head", "skip"):
        n = draw(st.integers(1, 15))
        return getattr(compose, kind)(inner, n), rows[:n] if kind == "head" else rows[n:]
    if kind == "filter":
        divisor = draw(st.integers(1, 4))
        kept = [each for each in rows if each[0] % divisor == 0]
        return compose.filter(inner, lambda fields: fields["id"] % divisor == 0), kept
    if kind == "split" and len(rows) > 1:
        part = compose.split(inner, 0.5, 0.5)[draw(st.integers(0, 1))]
        left = [(each["id"].item(), -1 if each["x"][0, 0] < 0 else 1) for each in by_one(part)]
        return part, left
    if kind == "map" and rows:
        return compose.map(inner, negated), [(k, -sign) for k, sign in rows]
    return inner, rows


def by_one(view: hr.Table) -> list[hr.Batch]:
    return [view.rows(k, k + 1) for k in range(len(view))]


@given(view=views(), data=st.data())
def test_views_of_views_hold_the_rows_that_plain_lists_say(
    view: tuple[hr.Table, list[tuple[int, int]]], data: st.DataObject
) -> None:
    made, rows = view
    expected = [row(k, sign if k else 1) for k, sign in rows]
    n = len(rows)
    assert len(made) == n
    assert plain(made.rows(0, n)) == expected
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    batch = made.rows(start, stop)
    assert (plain(batch), batch.rows) == (expected[start:stop], stop - start)
    wanted = data.draw(st.lists(st.integers(0, n - 1), max_size=20)) if n else []
    batch = made.take(torch.tensor(wanted, dtype=torch.int64))
    assert (plain(batch), batch.rows) == ([expected[k] for k in wanted], len(wanted))
    assert [hr.Stream.of(*item) for item in batch.fields.items()] == list(made.streams)
    for name, place in (("words", 2), ("steps", 4)):
        lengths = made.lengths(name)
        assert lengths.dtype == torch.int64
        assert lengths.tolist() == [len(each[place]) for each in expected]
    assert made.fingerprint() == made.fingerprint()


def test_tables_larger_than_what_is_looked_at_together_are_filtered_and_split() -> None:
    numbers = torch.arange(150_000)
    large = named(id=numbers, y=numbers % 3)
    assert ids(compose.filter(large, odd)) == numbers[1::2].tolist()
    parts = compose.split(large, 0.5, 0.5, stratify="y")
    assert sorted(ids(parts[0]) + ids(parts[1])) == numbers.tolist()


# --- zip ---------------------------------------------------------------------------------------------------


def test_zip_puts_row_beside_row() -> None:
    made = compose.zip(table(range(8)), named(y=range(8)), {"z": torch.arange(8.0)})
    assert [stream.name for stream in made.streams] == ["id", "x", "words", "bag", "steps", "y", "z"]
    batch = made.take(torch.tensor([5, 0, 5]))
    assert plain(batch) == [row(5), row(0), row(5)]
    assert batch["y"].tolist() == batch["z"].tolist() == [5, 0, 5]
    assert made.rows(2, 4)["y"].tolist() == made.rows(2, 4)["id"].tolist() == [2, 3]
    assert made.lengths("words").tolist() == [k % 4 for k in range(8)]
    assert made.row_bytes == pytest.approx(table(range(8)).row_bytes + 12)


def test_zip_finds_the_lengths_of_a_stream_of_any_of_its_tables() -> None:
    made = compose.zip(named(y=range(5)), table(range(5)))
    assert made.lengths("steps").tolist() == [-k % 3 for k in range(5)]
    with pytest.raises(hr.SourceError, match="Did you mean 'steps'"):
        made.lengths("step")
    with pytest.raises(hr.SourceError, match="'y' has no sequences"):
        made.lengths("y")


@pytest.mark.parametrize(
    ("tables", "error"),
    [
        ([named(a=range(3)), named(b=range(4))], r"row i beside row i.*3, 4 rows.*pandas.merge"),
        ([named(a=range(3)), named(a=range(3))], r"table 0 and table 1 both have a stream 'a'.*columns="),
        ([], r"zip\(\)"),
    ],
)
def test_tables_that_cannot_stand_side_by_side_are_told_why(tables: list[Any], error: str) -> None:
    with pytest.raises(hr.HeadraceError, match=error):
        compose.zip(*tables)


# --- concat ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "error"),
    [
        ([], r"at least one table"),
        ([named(a=[1]), named(a=[1.0])], r"table 0 has the streams a: int64\[\]; table 1 has a: float32\[\]"),
        ([named(a=[1]), named(a=[[1, 2]])], r"table 1 has a: int64\[2\]"),
        ([named(a=[1]), named(a=[1]), named(a=[1], b=[1])], r"table 2 has a: int64\[\], b: int64\[\]"),
        ([{"s": Sparse.one_hot(torch.arange(2), 2)}, {"s": torch.eye(2)}], r"table 0 has the streams s: sparse"),
        ([{"s": Sparse.one_hot(torch.arange(2), d)} for d in (2, 3)], r"float32\[2\]; table 1 .*float32\[3\]"),
    ],
)
def test_tables_that_cannot_follow_one_another_are_told_why(tables: list[Any], error: str) -> None:
    with pytest.raises(hr.HeadraceError, match=error):
        compose.concat(*tables)


def test_concat_refuses_tables_whose_numbers_stand_for_other_strings() -> None:
    one, two, same = (
        hr.ArrayTable({"who": torch.tensor([0, 1])}, categories={"who": names})
        for names in (["ann", "bob"], ["bob", "ann"], ["ann", "bob"])
    )
    with pytest.raises(hr.DataError, match=r"table 1 has other categories.*categories="):
        compose.concat(one, two)
    assert compose.concat(one, same).categories == {"who": ["ann", "bob"]}
    assert compose.head(compose.concat(one, same), 3).categories == {"who": ["ann", "bob"]}


def test_every_view_knows_what_a_row_takes_and_what_lies_together() -> None:
    small, large = table(range(4)), table([11] * 8)
    both = compose.concat(small, large)
    assert both.row_bytes == pytest.approx((4 * small.row_bytes + 8 * large.row_bytes) / 12)
    made = compose.concat(Spy(10), Spy(10))
    for view in (made, compose.head(made, 5), compose.split(made, 0.5)[0], compose.map(made, same)):
        assert (view.block, view.row_bytes) == (4, 8)
    assert compose.zip(made, named(a=range(20))).block == 4
    assert both.block is None


# --- take, skip, filter ------------------------------------------------------------------------------------


def test_filter_looks_at_sequences_and_takes_numpy_for_an_answer() -> None:
    assert ids(compose.filter(table(range(9)), lambda fields: fields["words"].lengths > 2)) == [3, 7]
    assert ids(compose.filter(table(range(5)), lambda fields: np.array([True, False, False, True, False]))) == [0, 3]


@pytest.mark.parametrize(
    ("keep", "got"),
    [
        (lambda fields: fields["id"], r"int64\[5\] for 5 rows"),
        (lambda fields: fields["x"] > 0, r"bool\[5, 2\] for 5 rows"),
        (lambda fields: (fields["id"] > 0).any(), r"bool\[\] for 5 rows"),
        (lambda fields: fields["id"][:3] > 0, r"bool\[3\] for 5 rows"),
    ],
)
def test_filter_wants_one_truth_value_for_each_row(keep: Any, got: str) -> None:
    with pytest.raises(hr.DataError, match=rf"filter\(\): .*lambda.* gave torch.{got}.*one truth value"):
        compose.filter(table(range(5)), keep)


def test_what_keeps_no_row_is_empty_and_refused_by_a_reader() -> None:
    none = compose.filter(table(range(5)), lambda fields: fields["id"] > 9)
    assert (len(none), list(none.streams), ids(none)) == (0, list(table(range(5)).streams), [])
    assert ids(compose.concat(none, table(range(2)))) == [0, 1]
    with pytest.raises(hr.DataError, match="no rows"):
        hr.Reader(none)


# --- fingerprints ------------------------------------------------------------------------------------------

BUILDS: dict[str, Callable[[hr.Table], hr.Table]] = {
    "itself": lambda base: base,
    "twice": lambda base: compose.concat(base, base),
    "head": lambda base: compose.head(base, 5),
    "take more": lambda base: compose.head(base, 6),
    "skip": lambda base: compose.skip(base, 5),
    "filter": lambda base: compose.filter(base, odd),
    "filter others": lambda base: compose.filter(base, lambda fields: ~odd(fields)),
    "split": lambda base: compose.split(base, 0.5, 0.5)[0],
    "other half": lambda base: compose.split(base, 0.5, 0.5)[1],
    "another split": lambda base: compose.split(base, 0.5, 0.5, seed=1)[0],
    "map": lambda base: compose.map(base, negated),
    "another map": lambda base: compose.map(base, same),
    "zip": lambda base: compose.zip(base, named(y=range(20))),
    "concat": lambda base: compose.concat(base, compose.head(base, 3)),
    "concat the other way round": lambda base: compose.concat(compose.head(base, 3), base),
}


def test_a_fingerprint_is_that_of_the_rows_however_often_they_are_put_together() -> None:
    first = {name: build(table(range(20))).fingerprint() for name, build in BUILDS.items()}
    again = {name: build(table(range(20))).fingerprint() for name, build in BUILDS.items()}
    assert first == again
    assert len(set(first.values())) == len(first)


# --- what is no table --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        lambda source: compose.concat(source),
        lambda source: compose.zip(source, table(range(3))),
        lambda source: compose.skip(source, 1),
        lambda source: compose.filter(source, odd),
        lambda source: compose.split(source, 0.5),
        lambda source: compose.map(source, same),
        lambda source: compose.mix([source, source], [1, 1]),
    ],
)
def test_a_source_has_no_rows_by_number_and_is_refused(made: Callable[[hr.Source], Any]) -> None:
    with pytest.raises(hr.HeadraceError, match=r"rows by number"):
        made(counted(3))
