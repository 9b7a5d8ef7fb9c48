"""Arrow's columns as streams: in place where the types allow it, and clear words where they do not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def opened(column: Any, **options: Any) -> hr.ArrayTable:
    """A table of one column, called x."""
    table = hr.open_table(pa.table({"x": column}), **options)
    assert isinstance(table, hr.ArrayTable)
    return table


def read(column: Any, stream: hr.Stream | None = None, **options: Any) -> Any:
    """What is made of one column, by the stream that its type says, or by this one, which a file may have."""
    if stream is None:
        return opened(column, **options).columns["x"]
    table = pa.table({"x": column})
    with pa.OSFile("t.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return hr.open_table("t.arrow", streams=[stream]).rows(0, len(table))["x"]


def pointers(array: Any) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


# --- in place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_numbers_are_read_in_place_behind_an_offset_too(dtype: str) -> None:
    column = pa.array(np.arange(10), dtype)
    found = read(column[3:7])
    assert found.tolist() == [3, 4, 5, 6]
    assert found.data_ptr() == pointers(column)[0] + 3 * found.element_size()


def test_lists_of_either_size_are_read_in_place_and_sparse_rows_are_lists_of_pairs() -> None:
    values = pa.array(np.arange(6.0))
    fixed = pa.FixedSizeListArray.from_arrays(values, 2)
    assert read(fixed[1:]).data_ptr() == pointers(values)[0] + 16
    for kind, exact in ((pa.ListArray, False), (pa.LargeListArray, True)):
        lists = kind.from_arrays(pa.array([0, 1, 1, 6], pa.int64() if exact else pa.int32()), values)
        found = read(lists)
        assert [row.tolist() for row in found] == [[0], [], [1, 2, 3, 4, 5]]
        assert found.values.data_ptr() == pointers(values)[0]
        assert (found.offsets.data_ptr() == pointers(lists)[0]) == exact
        assert [row.tolist() for row in read(lists[2:])] == [[1, 2, 3, 4, 5]]
    pairs = pa.StructArray.from_arrays([pa.array([3, 1], pa.int32()), pa.array([0.5, 2.0])], ["index", "value"])
    words = read(pa.LargeListArray.from_arrays([0, 1, 2], pairs), hr.Stream("x", (4,), "float64", "sparse"))
    assert words.to_dense().tolist() == [[0, 0, 0, 0.5], [0, 2, 0, 0]]


def test_numbers_at_an_odd_address_are_copied_and_right() -> None:
    raw = pa.py_buffer(bytes(1) + np.arange(5, dtype=np.int32).tobytes())
    column = pa.Array.from_buffers(pa.int32(), 5, [None, raw.slice(1)])
    assert read(column[2:]).tolist() == [2, 3, 4]


# --- what others write -----------------------------------------------------------------------------------


def test_a_type_says_what_a_stream_is() -> None:
    schema = pa.schema(
        {
            "a": pa.int32(),
            "b": pa.list_(pa.float32(), 3),
            "c": pa.list_(pa.int64()),
            "d": pa.large_list(pa.list_(pa.float16(), 2)),
            "e": pa.string(),
            "f": pa.list_(pa.dictionary(pa.int8(), pa.string())),
            "g": pa.dictionary(pa.int32(), pa.float32()),
            "h": pa.fixed_shape_tensor(pa.uint8(), [2, 4]),
        }
    )
    assert [str(stream) for stream in hr.open_table(schema.empty_table()).streams] == [
        "a: int32[]",
        "b: float32[3]",
        "c: sequences of int64[]",
        "d: sequences of float16[2]",
        "e: int64[]",
        "f: sequences of int64[]",
        "g: float32[]",
        "h: uint8[2, 4]",
    ]


@pytest.mark.parametrize("permutation", [None, [0, 1, 2], [2, 0, 1]])
def test_tensors_of_a_fixed_shape_keep_their_shape(permutation: Sequence[int] | None) -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), [2, 3, 4], permutation=permutation)
    column = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(np.arange(72), 24))
    expected = torch.arange(72).view(3, 2, 3, 4)
    if permutation == [2, 0, 1]:
        with pytest.raises(hr.DataError, match="holds tensors with permuted dimensions"):
            read(column)
        return
    assert torch.equal(read(column), expected)
    assert torch.equal(read(column[1:]), expected[1:])


def test_strings_are_their_places_among_the_categories_however_they_are_stored() -> None:
    plain_strings = pa.array(["b", "a", "b"])
    known = {"x": ["a", "b", "c"]}
    for column in (plain_strings, plain_strings.cast(pa.large_string()), plain_strings.dictionary_encode()):
        assert read(column, categories=known).tolist() == [1, 0, 1]
        assert read(column[1:], categories=known).tolist() == [0, 1]
    lists = pa.array([["b"], [], ["a", "b"]])
    assert [row.tolist() for row in read(lists, categories=known)] == [[1], [], [0, 1]]
    turned = pa.DictionaryArray.from_arrays([1, 0], ["b", "a"])
    assert opened(turned).categories == {"x": ["b", "a"]}, "a dictionary has an order"
    unused = pa.DictionaryArray.from_arrays([0, 0], ["a", "unknown"])
    assert read(unused, categories={"x": ["a"]}).tolist() == [0, 0]


def test_sparse_rows_of_ones_are_written_without_values(tmp_path: Path) -> None:
    ones = Sparse.one_hot(torch.tensor([3, 1, 4]), 7)
    table = hr.ArrayTable({"w": ones, "s": Ragged(ones, torch.tensor([0, 1, 2, 3]))})
    hr.write_table(table, tmp_path / "t.parquet")
    assert "value" not in str(pq.read_schema(tmp_path / "t.parquet").types)
    batch = hr.open_table(tmp_path / "t.parquet").rows(0, 3)
    for items in (batch["w"], batch["s"].values):
        assert items.values is None
        assert items.ids.tolist() == [3, 1, 4]
