"""The kit for tables finds nothing to say of good ones, and names the promise that a bad one breaks."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kit.good_sources import MAKERS
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.testing import tables
from headrace.testing.tables import check_table

# --- the small tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_the_small_tables_keep_their_promises(name: str) -> None:
    report = check_table(MAKERS[name])
    assert report.subject == "ArrayTable"
    assert {"take", "rows", "same", "fingerprint", "threads", "value"} <= set(report.checked)
    assert set(report.skipped) == {"categories"}
    assert ("lengths" in report.checked) == (name in ("ragged", "sparse sequences"))


# --- bad tables ------------------------------------------------------------------------------------------


class Squares(hr.Table):
    """Sequences and numbers, by hand; each bad one below differs in one thing."""

    thread_safe = True
    n = 9

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return [hr.Stream("x", (2,)), hr.Stream("s", dtype="int64", sequence=True)]

    def __len__(self) -> int:
        return self.n

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch(self.fields(indices), len(indices))

    def fields(self, indices: Tensor) -> dict[str, Any]:
        counts = indices % 3
        values = indices.repeat_interleave(counts)
        return {
            "x": torch.stack([indices, indices**2], 1).float(),
            "s": Ragged(values, torch.cat([counts[:0], torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])),
        }

    def lengths(self, stream: str) -> Tensor:
        return torch.arange(self.n) % 3


def other(name: str, base: type[Squares] = Squares, **members: Any) -> type[Squares]:
    """The same table with other members."""
    return type(name, (base,), members)


def take(change: Any) -> Any:
    """A `take` of indices that were changed."""
    return lambda self, indices: Squares.take(self, change(indices))


def x_of(make: Any) -> Any:
    """Fields of which `x` is another one."""
    return lambda self, indices: {**Squares.fields(self, indices), "x": make(self, indices)}


LengthsUnknown = other("LengthsUnknown", lengths=hr.Table.lengths)
NoRows = other("NoRows", n=0)
Coded = other("Coded", categories={"s": [str(k) for k in range(9)]})


@pytest.mark.parametrize("make", [Squares, LengthsUnknown, NoRows, Coded])
def test_a_table_of_any_kind_keeps_its_promises(make: type[Squares]) -> None:
    report = check_table(make)
    assert ("lengths" in report.skipped) == (make is LengthsUnknown)
    assert ("categories" in report.checked) == (make is Coded)


class OfTheMaker(Squares):
    """Another table has other rows."""

    made = iter(range(1000))

    def __init__(self) -> None:
        self.number = next(self.made)

    def fields(self, indices: Tensor) -> dict[str, Any]:
        return {**super().fields(indices), "x": torch.full((len(indices), 2), float(self.number))}


class OneBuffer(Squares):
    def __init__(self) -> None:
        self.buffer = torch.empty(100, 2)

    def fields(self, indices: Tensor) -> dict[str, Any]:
        fields = super().fields(indices)
        return {**fields, "x": self.buffer[: len(indices)].copy_(fields["x"])}


class Grows(Squares):
    def __len__(self) -> int:
        self.n += 1
        return self.n


class OfOneThreadOnly(Squares):
    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def take(self, indices: Tensor) -> hr.Batch:
        if threading.get_ident() != self.thread:
            raise RuntimeError("made in another thread")
        return super().take(indices)


class Hangs(Squares):
    def take(self, indices: Tensor) -> hr.Batch:
        while len(indices) == 3:
            time.sleep(0.01)
        return super().take(indices)


MOMENTS = iter(range(100_000))
BAD_TABLES: list[tuple[str, type[Squares], str]] = [
    (
        "take",  # as a file is read best, and never put back in order
        other("Sorts", take=take(lambda indices: indices.sort().values)),
        "take of all rows backwards: expected row 8, got another row at place 0",
    ),
    (
        "take",
        other("Unique", take=take(Tensor.unique_consecutive)),
        "one row thrice, number of rows: expected 3, got 1",
    ),
    (
        "take",
        other("NoneFails", take=take(lambda indices: indices[indices >= indices.min()])),
        "take of no rows raised RuntimeError",
    ),
    (
        "rows",
        other("SlicesShort", rows=lambda self, a, b: self.take(torch.arange(a, max(a, b - 1)))),
        r"rows\(\d+, \d+\), number of rows: expected \d, got \d",
    ),
    (
        "rows",
        other("SlicesElsewhere", rows=lambda self, a, b: self.take(torch.arange(a, b).flip(0))),
        r"rows\(\d+, \d+\): expected row \d, got another",
    ),
    (
        "lengths",
        other("LengthsOfFloats", lengths=lambda self, stream: Squares.lengths(self, stream).int()),
        "expected torch.int64, got torch.int32",
    ),
    (
        "lengths",
        other("LengthsWrong", lengths=lambda self, stream: Squares.lengths(self, stream).flip(0)),
        r"lengths\('s'\): expected \[0, 1, 2.*, got \[2, 1, 0",
    ),
    (
        "same",
        other("OfChance", fields=x_of(lambda self, rows: torch.full((len(rows), 2), float(next(MOMENTS))))),
        "all rows of another table|take of all rows",
    ),
    ("same", OfTheMaker, "all rows of another table"),
    ("value", OneBuffer, "all rows, after another take"),
    ("fingerprint", other("OfTheObject", fingerprint=lambda self: str(id(self))), "of another table"),
    ("fingerprint", other("OfTheMoment", fingerprint=lambda self: str(next(MOMENTS))), "asked again"),
    (
        "streams",
        other("DoublesOfFloats", fields=x_of(lambda self, rows: torch.zeros(len(rows), 2).double())),
        r"expected stream x: float32\[2\], got x: float64\[2\]",
    ),
    (
        "streams",
        other("ExtraStream", fields=lambda self, rows: {**Squares.fields(self, rows), "z": rows}),
        r"got \['z'\] beside them",
    ),
    ("declared", Grows, "len, asked again: expected 10, got 11"),
    (
        "categories",
        other("CodedTooHigh", categories={"s": ["a", "b"]}),
        r"categories\['s'\]: expected 9 at least, got 2",
    ),
    ("categories", other("CodedElsewhere", categories={"z": ["a", "b"]}), r"expected streams of \['x', 's'\], got z"),
    ("threads", OfOneThreadOnly, "raised RuntimeError: made in another thread"),
    ("calls", Hangs, "take of one row thrice has not come back for 3 s"),
]


@pytest.mark.parametrize(("promise", "make", "told"), BAD_TABLES, ids=[f"{b[0]}-{b[1].__name__}" for b in BAD_TABLES])
def test_a_table_that_breaks_a_promise_is_told_which(promise: str, make: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{make.__name__} broke the promise '{promise}': .*\n.*({told})"):
        check_table(make, limit_s=3 if make is Hangs else 10)


def test_every_promise_is_broken_by_a_table_here() -> None:
    """So that no check can be lost unseen."""
    assert {promise for promise, *_ in BAD_TABLES} == set(tables.PROMISES)
