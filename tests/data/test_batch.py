"""Streams say what a row is; batches hold rows of every stream and the cursor that follows them."""

from typing import Any

import pytest
import torch

import headrace as hr


class Graph:
    """A field that is not a tensor."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = torch.device(device)

    def to(self, device: Any, *, non_blocking: bool = False) -> "Graph":
        return Graph(device)


def make(rows: int = 10, **options: Any) -> hr.Batch:
    return hr.Batch({"x": torch.arange(2.0 * rows).reshape(rows, 2), "y": torch.arange(rows)}, **options)


# --- Batch -----------------------------------------------------------------------------------------------


def test_a_batch_counts_its_rows_and_names_its_streams() -> None:
    batch = make(10)
    assert (batch.rows, batch.total, batch.items("x")) == (10, 10, 10)
    assert (batch.cursor, batch.ends_epoch) == (None, False)
    assert list(batch.fields) == ["x", "y"]
    assert "x" in batch
    assert "z" not in batch
    assert repr(batch) == "Batch(10 rows, x=(10, 2), y=(10,))"


@pytest.mark.parametrize(("rows", "expected"), [(1, [1] * 10), (4, [4, 4, 2]), (5, [5, 5]), (9, [9, 1])])
def test_microbatches_are_views_that_keep_the_total(rows: int, expected: list[int]) -> None:
    batch = make(10, total=30)
    parts = batch.split(rows)
    assert [part.rows for part in parts] == expected
    assert all(part.total == 30 for part in parts)
    for name in batch.fields:
        assert torch.equal(torch.cat([part[name] for part in parts]), batch[name])
        assert {p[name].untyped_storage().data_ptr() for p in parts} == {batch[name].untyped_storage().data_ptr()}
    parts[-1]["y"][-1] = 77
    assert batch["y"][-1] == 77


def test_to_keeps_everything_but_the_device() -> None:
    batch = make(4, total=9, cursor={"at": 4}, ends_epoch=True)
    batch.fields["g"] = Graph()  # type: ignore[index]
    there = batch.to(torch.device("meta"))
    assert {field.device.type for field in there.fields.values()} == {"meta"}
    assert (there.rows, there.total, there.cursor, there.ends_epoch) == (4, 9, {"at": 4}, True)
    assert {field.device.type for field in batch.fields.values()} == {"cpu"}


def test_items_counts_what_a_field_says_and_rows_otherwise() -> None:
    class Ragged(Graph):
        items = 21

    class Mapping(Graph):
        def items(self) -> list[tuple[str, Any]]:
            return []

    batch = hr.Batch({"words": Ragged(), "graph": Mapping(), "y": torch.arange(4)})
    assert batch.items("words") == 21
    assert batch.items("graph") == batch.items("y") == 4


def test_a_size_may_differ_between_batches() -> None:
    padded = hr.Stream("ids", (-1, 3), "int64")
    assert str(padded) == "ids: int64[?, 3]"
    assert padded.varies
    for shape, fits in {
        (5, 3): True,
        (9, 3): True,
        (-1, -1): True,
        (5, 4): False,
        (5,): False,
        (5, 3, 1): False,
    }.items():
        assert padded.fits(hr.Stream("ids", shape, "int64")) == fits
        assert hr.Stream("ids", shape, "int64").fits(padded) == fits
    assert not padded.fits(hr.Stream("ids", (5, 3), "int32"))
    assert not padded.fits(hr.Stream("words", (5, 3), "int64"))
