"""The columns of a file as streams: which are read, as which dtype, and how strings and nulls are treated."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kit.file_tables import mixed, text

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.formats.table import open_table
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


# --- which columns --------------------------------------------------------------------------------------

IRIS = ("Sepal.Length,width,species", "5.1,3,setosa", "6.5,3,virginica", "4.9,2,setosa")


def test_columns_side_by_side_make_one_stream_and_strings_become_codes() -> None:
    table = open_table(text("iris.csv", *IRIS), columns={"x": ["Sepal.Length", "width"], "y": "species"})
    assert [str(stream) for stream in table.streams] == ["x: float64[2]", "y: int64[]"]
    batch = table.take(torch.tensor([2, 1]))
    assert batch["x"].tolist() == [[4.9, 2], [6.5, 3]]
    assert batch["y"].tolist() == [0, 1]
    assert table.categories == {"y": ["setosa", "virginica"]}


def test_only_the_wanted_columns_need_to_be_readable() -> None:
    pq.write_table(pa.table({"when": pa.array([0, 1], pa.timestamp("s")), "n": [1, 2]}), "t.parquet")
    assert open_table("t.parquet", columns=["n"]).rows(0, 2)["n"].tolist() == [1, 2]


def test_a_stream_that_a_file_does_not_describe_is_declared() -> None:
    pq.write_table(pa.table({"w": [[1, 2], [3]]}), "t.parquet")
    table = open_table("t.parquet", streams=[hr.Stream("w", (5,), layout="sparse")])
    assert table.rows(0, 2)["w"].to_dense().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(hr.DataError, match=r"column 'w' of t\.parquet: index 3 is out of range"):
        open_table("t.parquet", streams=[hr.Stream("w", (3,), layout="sparse")]).rows(0, 2)


# --- strings --------------------------------------------------------------------------------------------


def test_codes_do_not_depend_on_the_order_of_rows_or_files() -> None:
    text("a.csv", "s", "b", "c")
    text("b.csv", "s", "a", "b")
    for names in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        table = open_table(names)
        assert table.categories == {"s": ["a", "b", "c"]}
        assert sorted(table.rows(0, 4)["s"].tolist()) == [0, 1, 1, 2]


def test_numbers_may_be_categories() -> None:
    table = open_table(text("t.csv", "digit", "7", "3"), categories={"digit": ["3", "7"]})
    assert table.rows(0, 2)["digit"].tolist() == [1, 0]


# --- dtypes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, np.dtype("float32"), "float32"])
def test_a_dtype_is_one_of_torch_or_numpy_or_a_name(dtype: Any) -> None:
    text("t.csv", "a,b", "1,2")
    assert open_table("t.csv", dtypes={"a": dtype}).rows(0, 1)["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "dtype", "refused"),
    [
        (np.array([1.0, 2.5]), "float32", None),
        (np.array([1.0, 1e300]), "float32", "1e+300"),
        (np.array([1.0, np.inf, np.nan]), "float32", None),
        (np.array([1.0, 2.5]), "int32", "2.5"),
        (np.array([1.0, np.nan]), "int64", "nan"),
        (np.array([1.0, 2.0**63]), "int64", "9.223372036854776e+18"),
        (np.array([1, 300]), "uint8", "300"),
        (np.array([1, -1]), "uint32", "-1"),
        (np.array([1, 2**63], np.uint64), "int64", "9223372036854775808"),
        (np.array([1, 2**24 + 1]), "float32", "16777217"),
        (np.array([1, -(2**24) - 1], np.int32), "float32", "-16777217"),
        (np.array([2**24, -(2**63), 5 << 40]), "float32", None),
        (np.array([1, 70000]), "float16", "70000"),
        (np.array([1, 2**16], np.uint32), "float16", "65536"),
        (np.array([2048, -2050]), "float16", None),
        (np.array([256, 257], np.uint16), "bfloat16", "257"),
        (np.array([2**53, 2**53 + 1]), "float64", "9007199254740993"),
        (np.array([2**63, 2**64 - 1], np.uint64), "float64", "18446744073709551615"),
        (np.array([0.1, 1 / 3]), "float32", None),
        (np.array([1, 2**24 + 1]), "complex64", "16777217"),
        (np.array([1, 1e300]), "complex64", "1e+300"),
        (np.array([1, 1e300 + 1j]), "complex64", r"\(1e+300+1j\)"),
        (np.array([1, 1 + 2j]), "complex64", None),
        (np.array([1, 1 + 2j]), "float32", r"\(1+2j\)"),
        (np.array([1, 1 + 2j]), "bool", r"\(1+2j\)"),
        (np.array([1 + 0j, 300]), "int8", r"\(300+0j\)"),
        (np.array([1 + 0j, 3]), "int8", None),
        (np.array([0, 1]), "bool", None),
        (np.array([0, 2]), "bool", "2"),
        (np.array([True, False]), "float32", None),
        (np.array([[1, 2], [3, 400]]), "int8", "400"),
    ],
)
def test_a_dtype_that_does_not_hold_a_number_is_refused(values: Any, dtype: str, refused: str | None) -> None:
    np.savez("t.npz", x=values)
    if refused is None:
        table = open_table("t.npz", dtypes={"x": dtype})
        assert table.streams[0].dtype == dtype
        assert str(table.rows(0, len(values))["x"].dtype) == f"torch.{dtype}"
        return
    with pytest.raises(
        hr.DataError, match=rf"stream 'x', t\.npz, row 1: {refused} is not a number".replace("+", r"\+")
    ):
        open_table("t.npz", dtypes={"x": dtype})


def test_a_whole_number_of_a_text_that_is_no_int64_is_read_as_what_is_said_and_one_with_an_exponent_is_a_fraction() -> (
    None
):
    text("t.csv", "id,far", "7,1e23", "18446744073709551615,100000000000000000000")
    text("t.jsonl", '{"id": 7, "far": 1e23}', '{"id": 18446744073709551615, "far": 100000000000000000000}')
    for name in ("t.csv", "t.jsonl"):
        found = open_table(name, dtypes={"id": "uint64"}).rows(0, 2)
        assert found["id"].tolist() == [7, 2**64 - 1]
        assert found["far"].tolist() == [1e23, 1e20]
    text("lists.jsonl", '{"id": [7]}', '{"id": [1, 18446744073709551615]}')
    found = open_table("lists.jsonl", dtypes={"id": "uint64"}).rows(0, 2)
    assert [row.tolist() for row in found["id"]] == [[7], [1, 2**64 - 1]]


def test_sequences_and_sparse_rows_are_cast_as_well() -> None:
    table = mixed()
    write_table(table, "t.arrow", rows_per_block=3)
    found = open_table("t.arrow", dtypes={"tokens": "int8", "words": "float64", "tagged": "float64"})
    batch = found.rows(0, 7)
    assert (batch["tokens"].dtype, batch["words"].dtype, batch["tagged"].dtype) == (
        torch.int8,
        torch.float64,
        torch.float64,
    )
    assert batch["tokens"].values.tolist() == table.columns["tokens"].values.tolist()
    assert batch["words"].values.dtype == torch.float64
    longer = hr.ArrayTable({"t": Ragged(torch.tensor([1, 2, 300]), torch.tensor([0, 1, 1, 3]))})
    write_table(longer, "l.arrow")
    with pytest.raises(hr.DataError, match=r"stream 't', l\.arrow, row 2: 300 is not"):
        open_table("l.arrow", dtypes={"t": "int8"}).rows(0, 3)
