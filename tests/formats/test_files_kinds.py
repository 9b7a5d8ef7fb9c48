"""Files of every kind are read, in place where their bytes allow it, and damaged ones are refused."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from kit.fault_harness import open_files
from kit.file_tables import every_row, numbers
from kit.late import pandas as pd

from headrace.data.fields import tensors_of
from headrace.formats.table import open_table
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


# --- in place -------------------------------------------------------------------------------------------


def mapped_ranges(name: str) -> list[tuple[int, int]]:
    """The addresses at which a file is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if line.endswith("/" + name)]
    return [(int(start, 16), int(stop, 16)) for start, stop in spans]


def addresses(table: Any) -> list[int]:
    """Where the tensors are that rows of a single record batch are taken from."""
    fields = table.table.columns.values()
    return [tensor.data_ptr() for field in fields for tensor in tensors_of(field) if tensor.numel()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", [".arrow", ".npy", "stream.arrow"])
def test_rows_are_taken_from_the_mapped_file_itself(kind: str) -> None:
    name = "mapped" + kind
    if kind == ".npy":
        np.save(name, np.arange(4000.0).reshape(1000, 4))
    elif kind == "stream.arrow":
        batch = pa.record_batch({"x": np.arange(1000)})
        with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_batch(batch)
    else:
        write_table(numbers(1000), name)
    before = open_files()
    table = open_table(name)
    ranges = mapped_ranges(name)
    assert ranges
    for address in addresses(table):
        assert any(start <= address < stop for start, stop in ranges)
    assert open_files() == before, "a mapped file needs no descriptor"


def test_nobody_writes_into_a_file_through_its_rows() -> None:
    write_table(numbers(), "t.arrow")
    table = open_table("t.arrow")
    table.rows(0, 5)["x"].fill_(-1)
    table.take(torch.arange(5))["x"].fill_(-1)
    assert every_row(table) == every_row(numbers())


# --- variants of a kind ---------------------------------------------------------------------------------


def test_arrays_in_columns_and_of_another_byte_order_are_read_too() -> None:
    array = np.arange(12.0).reshape(4, 3)
    np.savez("t.npz", f=np.asfortranarray(array), b=array.astype(">f4"), z=np.zeros((4, 0)), o=array[:, 1] > 4)
    np.savez_compressed("c.npz", f=array)
    np.save("f.npy", np.asfortranarray(array))
    batch = open_table("t.npz").take(torch.tensor([3, 0]))
    assert batch["f"].tolist() == batch["b"].tolist() == [[9, 10, 11], [0, 1, 2]]
    assert batch["z"].shape == (2, 0)
    assert batch["o"].tolist() == [True, False]
    for name, column in (("f.npy", "x"), ("c.npz", "f")):
        assert open_table(name).take(torch.tensor([3, 0]))[column].equal(batch["f"])


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_line_break_in_quotes_is_a_part_of_its_text_in_a_file_of_any_size(name: str) -> None:
    text = 'a ""word"",\r\nand more\nfour\nfive'
    rows = 1_000_000  # more than is read at once
    raw = ("name,y\n" + f'"{text}",1\n"plain",2\n' * (rows // 2)).encode()
    Path(name).write_bytes(gzip.compress(raw, 1) if name.endswith(".gz") else raw)
    table = open_table(name)
    assert sorted(table.categories["name"]) == sorted([text.replace('""', '"'), "plain"])
    found = table.rows(0, len(table))
    assert found["y"].tolist() == [1, 2] * (rows // 2)
    assert found["name"].unique().tolist() == found["name"][:2].sort().values.tolist() == [0, 1]
    assert (found["name"].diff().abs() == 1).all()


def test_packed_csv_and_tabs_are_read() -> None:
    Path("t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    Path("t.tsv").write_text("a\tb\n1\t2\n")
    for name in ("t.csv.gz", "t.tsv"):
        assert open_table(name).rows(0, 1)["b"].tolist() == [2]


def test_the_index_of_a_frame_is_no_stream_unless_it_is_named() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 7])
    frame.to_parquet("t.parquet")
    pa.feather.write_feather(pa.Table.from_pandas(frame), "t.feather", compression="uncompressed")
    for name in ("t.parquet", "t.feather"):
        assert list(open_table(name).rows(0, 2).fields) == ["a"]
        assert open_table(name, columns=["__index_level_0__"]).rows(0, 2)["__index_level_0__"].tolist() == [5, 7]
