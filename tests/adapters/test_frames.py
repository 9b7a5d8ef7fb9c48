"""What pandas, Arrow and scipy hold is a table: numbers in place, strings as codes, and clear words for the rest."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.late import pandas as pd

import headrace as hr


def open_table(frame: Any) -> hr.ArrayTable:
    found = hr.open_table(frame)
    assert isinstance(found, hr.ArrayTable)
    return found


def test_the_columns_of_a_frame_are_streams_and_its_numbers_are_used_in_place() -> None:
    frame = pd.DataFrame({"a": np.arange(3.0), "b": np.arange(3, dtype=np.int16), "c": [True, False, True]})
    table = open_table(frame)
    assert [str(stream) for stream in table.streams] == ["a: float64[]", "b: int16[]", "c: bool[]"]
    assert table.take(torch.tensor([2, 0]))["a"].tolist() == [2, 0]
    assert table.columns["a"].data_ptr() == frame["a"].to_numpy().ctypes.data


@pytest.mark.parametrize("dtype", [lambda: None, lambda: object, lambda: "string", lambda: pd.ArrowDtype(pa.string())])
def test_strings_are_codes_in_sorted_order(dtype: Callable[[], Any]) -> None:
    table = open_table(pd.DataFrame({"s": pd.Series(["b", "a", "b"], dtype=dtype())}))
    assert table.columns["s"].tolist() == [1, 0, 1]
    assert table.categories == {"s": ["a", "b"]}


def test_a_categorical_keeps_its_order() -> None:
    column = pd.Categorical(["low", "high", "low"], categories=["low", "high", "unused"])
    table = open_table(pd.DataFrame({"s": column, "n": pd.Categorical([3, 5, 3])}))
    assert table.columns["s"].tolist() == [0, 1, 0]
    assert table.categories == {"s": ["low", "high", "unused"]}
    assert table.columns["n"].tolist() == [3, 5, 3]


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "Float32", "boolean", "int32[pyarrow]", "bool[pyarrow]"])
def test_nullable_numbers_without_nulls_are_numbers(dtype: str) -> None:
    table = open_table(pd.DataFrame({"x": pd.array([1, 0, 1], dtype=dtype)}))
    assert table.columns["x"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "column",
    [
        lambda: pd.array([1, None, None], dtype="Int64"),
        lambda: np.array([1.0, np.nan, np.nan]),
        lambda: pd.Series(["a", None, None]),
        lambda: pd.Categorical(["a", None, None]),
        lambda: pd.array([1, None, None], dtype="int64[pyarrow]"),
    ],
)
def test_nulls_of_a_frame_are_counted_and_the_first_is_named(column: Callable[[], Any]) -> None:
    with pytest.raises(hr.DataError, match=r"column 'x' of this frame has 2 nulls, the first in row 1\. .*fill them"):
        open_table(pd.DataFrame({"x": column()}))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            lambda: pd.DataFrame({"x": [object()]}),
            "column 'x' of this frame, of dtype object, cannot be read: .*object.*Make numbers",
        ),
        (lambda: pd.DataFrame({"x": [1j]}), "column 'x' of this frame, of dtype complex128, cannot be read"),
        (lambda: pd.DataFrame({"x": pd.arrays.SparseArray([0, 1])}), r"of dtype Sparse\[int64, 0\], cannot be read"),
        (lambda: pd.DataFrame({"x": ["a", 1]}), "column 'x' of this frame, of dtype object, cannot be read: .*int"),
        (
            lambda: pd.DataFrame({"x": [datetime.datetime(2020, 1, 1)]}),
            "column 'x' of this frame holds timestamp.*Cast it",
        ),
        (lambda: pd.DataFrame([[1, 2]]), "a column is called 0; a stream has a string for its name"),
        (lambda: pd.DataFrame([[1, 2]], columns=["x", "x"]), "this frame has 2 columns 'x'"),
    ],
)
def test_what_a_frame_cannot_give_is_refused(frame: Callable[[], Any], message: str) -> None:
    with pytest.raises(hr.DataError, match=message):
        open_table(frame())


def test_chunks_of_an_arrow_table_are_joined_and_so_are_their_dictionaries() -> None:
    chunks = pa.chunked_array([pa.array(["b", "c"]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()])
    table = open_table(pa.table({"s": chunks, "n": pa.chunked_array([[1], [2, 3, 4]])}))
    assert table.columns["s"].tolist() == [1, 2, 0, 1]
    assert table.columns["n"].tolist() == [1, 2, 3, 4]
    assert table.categories == {"s": ["a", "b", "c"]}


def test_batches_readers_and_tables_without_rows_are_arrow_tables_too() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    assert len(open_table(batch)) == 2
    assert len(open_table(pa.RecordBatchReader.from_batches(batch.schema, [batch, batch]))) == 4
    assert len(open_table(pa.table({"n": pa.array([], pa.int64()), "s": pa.array([], pa.string())}))) == 0
    with pytest.raises(hr.DataError, match="expected a path, a list of paths or a frame, got a Int64Array"):
        open_table(pa.array([1]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a", "a"], "this table has 3 columns 'a'"),
        (["a", ""], "this table has a column without a name"),
        (["a.b", "c"], "column 'a.b' has a dot in its name"),
    ],
)
def test_names_that_streams_cannot_have_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(hr.DataError, match=message):
        open_table(pa.Table.from_arrays([pa.array([1])] * len(names), names=names))
    with pytest.raises(hr.DataError, match=message.replace("table", "frame")):
        open_table(pd.DataFrame([[1] * len(names)], columns=names))
