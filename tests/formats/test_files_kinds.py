"""Files of every kind are read, in place where their bytes allow it, and damaged ones are refused."""

import gzip
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import torch
from kit.file_tables import every_row, mixed, numbers, text
from kit.late import pandas as pd

import headrace as hr
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
    before = len(os.listdir("/proc/self/fd"))
    table = open_table(name)
    ranges = mapped_ranges(name)
    assert ranges
    for address in addresses(table):
        assert any(start <= address < stop for start, stop in ranges)
    assert len(os.listdir("/proc/self/fd")) == before, "a mapped file needs no descriptor"


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
    np.save("f.npy", np.asfortranarray(array))
    batch = open_table("t.npz").take(torch.tensor([3, 0]))
    assert batch["f"].tolist() == batch["b"].tolist() == [[9, 10, 11], [0, 1, 2]]
    assert batch["z"].shape == (2, 0)
    assert batch["o"].tolist() == [True, False]
    assert open_table("f.npy").take(torch.tensor([3, 0]))["x"].tolist() == [[9, 10, 11], [0, 1, 2]]


def test_a_compressed_npz_and_compressed_arrow_files_are_read_as_well() -> None:
    table = mixed(100)
    batch = table.rows(0, 100)
    np.savez_compressed("t.npz", n=batch["n"].numpy())
    assert open_table("t.npz").rows(0, 100)["n"].tolist() == list(range(100))
    from headrace.formats.columns import record_batch_of
    from headrace.formats.schema import schema_of

    schema = schema_of(table.streams, categories=table.categories)
    record = record_batch_of(batch.fields, schema, table.categories)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile("t.arrow", "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for start in (0, 40):
            writer.write_batch(record.slice(start, 40 if not start else 60))
    found = open_table("t.arrow")
    assert every_row(found) == every_row(table)
    assert open_table("t.arrow", columns=["species", "n"]).rows(39, 41)["n"].tolist() == [39, 40]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("text", ["one\ntwo\nthree\nfour\nfive", 'a ""word"",\r\nand more'])
def test_a_line_break_in_quotes_is_a_part_of_its_text_in_a_file_of_any_size(name: str, text: str) -> None:
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


# --- damaged files --------------------------------------------------------------------------------------


def test_a_file_of_a_kind_that_its_name_does_not_tell_is_refused() -> None:
    for kind in ("npy", "npz", "arrow", "parquet"):
        text("t." + kind, "no such thing, but long enough to be looked at as if it were one")
        with pytest.raises(hr.DataError, match=rf"t\.{kind} cannot be read: .*check that its name tells"):
            open_table("t." + kind)


def test_objects_are_never_unpickled() -> None:
    np.save("t.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez("t.npz", x=np.array([{"a": 1}], object))
    for name in ("t.npy", "t.npz"):
        with pytest.raises(hr.DataError, match="has dtype object, which torch does not have"):
            open_table(name)


def test_a_zip_that_says_something_else_of_a_member_is_refused() -> None:
    with zipfile.ZipFile("t.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array at all")
    with pytest.raises(hr.DataError, match=r"t\.npz cannot be read: the magic string is not correct"):
        open_table("t.npz")
    np.save("x.npy", np.arange(100.0))
    Path("x.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
    with pytest.raises(hr.DataError, match=r"x\.npy is cut short: \[100\] of float64 take 800 bytes, 792 are there"):
        open_table("x.npy")


def test_a_small_array_in_a_large_member_is_not_unpacked() -> None:
    held = io.BytesIO()
    np.save(held, np.arange(3))
    with zipfile.ZipFile("t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", held.getvalue() + bytes(1000))
    with pytest.raises(hr.DataError, match=r"'x' of t\.npz is damaged: it has 1152 bytes, and its array 152"):
        open_table("t.npz")


def test_names_are_shown_as_they_are_in_the_file_and_encodings_are_named() -> None:
    text("t.csv", "Sepal.When", "2020-01-01")
    with pytest.raises(hr.DataError, match=r"column 'Sepal\.When' of t\.csv holds date32.*leave it out"):
        open_table("t.csv", columns={"x": "Sepal.When"})
    Path("l.csv").write_bytes("name\nJos\u00e9\n".encode("latin-1"))
    with pytest.raises(hr.DataError, match=r"UTF-8"):
        open_table("l.csv")
