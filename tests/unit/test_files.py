"""A table of files has the rows that were written, whatever their kind, and reads them where they lie."""

import gzip
import os
import pickle
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.any_rows import columns, contents

import headrace as hr
from headrace.data.fields import tensors_of
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.formats import paths
from headrace.formats.blocks import Block
from headrace.formats.table import FileTable, open_table
from headrace.formats.write import write_table
from headrace.testing import check_table

KINDS = (".arrow", ".parquet")


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are named as a user would name them, relative to where they are."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def memory() -> Iterator[Any]:
    """A remote file system, empty."""
    import fsspec

    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()


def mixed(rows: int = 7) -> hr.ArrayTable:
    """A stream of every kind, and one of strings; `n` is the number of the row."""
    lengths = torch.arange(rows) % 3
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(bounds[-1])
    ids = torch.arange(count) * 7 % 50
    return hr.ArrayTable(
        {
            "n": torch.arange(rows),
            "image": torch.arange(rows * 6).view(rows, 2, 3).to(torch.uint8),
            "flag": torch.arange(rows) % 2 == 0,
            "words": Sparse(ids, torch.rand(count), bounds, 50),
            "bag": Sparse(ids, None, bounds, 50),
            "tokens": Ragged(ids, bounds),
            "frames": Ragged(torch.rand(count, 4), bounds),
            "tagged": Ragged(Sparse.one_hot(ids, 50), bounds),
            "species": torch.arange(rows) % 2,
        },
        categories={"species": ["virginica", "setosa"]},
    )


def numbers(rows: int = 10) -> hr.ArrayTable:
    return hr.ArrayTable({"n": torch.arange(rows), "x": torch.arange(rows * 2.0).view(rows, 2)})


def every_row(table: hr.Table) -> dict[str, Any]:
    return contents(table.rows(0, len(table)))


def text(name: str, *lines: str) -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return name


# --- there and back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows_per_block", [1, 3, 100])
def test_a_table_that_is_written_is_read_with_all_that_belongs_to_it(kind: str, rows_per_block: int) -> None:
    table = mixed()
    write_table(table, "t" + kind, rows_per_block=rows_per_block)
    found = open_table("t" + kind)
    assert list(found.streams) == list(table.streams)
    assert found.categories == table.categories
    assert found.block == min(rows_per_block, 7)
    assert found.row_bytes > 0
    assert every_row(found) == every_row(table)
    for indices in ([6, 0, 0, 3], [2], []):
        assert contents(found.take(torch.tensor(indices, dtype=torch.int64))) == contents(
            table.take(torch.tensor(indices, dtype=torch.int64))
        )
    assert contents(found.rows(2, 5)) == contents(table.rows(2, 5))
    assert torch.equal(found.lengths("tokens"), table.lengths("tokens"))
    assert os.listdir() == ["t" + kind]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows_come_back_from_a_file(data: st.DataObject) -> None:
    rows, kind = data.draw(st.integers(1, 6)), data.draw(st.sampled_from(KINDS))
    table = hr.ArrayTable(data.draw(columns(rows)))
    write_table(table, "t" + kind, rows_per_block=data.draw(st.integers(1, 6)))
    found = open_table("t" + kind)
    assert every_row(found) == every_row(table)
    indices = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1))), dtype=torch.int64)
    assert contents(found.take(indices)) == contents(table.take(indices))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_dense_rows_come_back_from_an_npz(data: st.DataObject) -> None:
    names = ("float32", "float64", "float16", "int8", "uint8", "int16", "int64", "uint32", "bool")
    table = hr.ArrayTable({name: data.draw(_dense(5, names)) for name in "abc"})
    write_table(table, "t.npz", rows_per_block=2)
    assert every_row(open_table("t.npz")) == every_row(table)
    with np.load("t.npz") as loaded:
        assert loaded["a"].tolist() == table.columns["a"].tolist()


def _dense(rows: int, dtypes: tuple[str, ...]) -> Any:
    from kit.any_rows import items

    return items(rows, dtypes, sparse=False)


def test_batches_of_a_source_are_written_in_blocks_of_their_own_size() -> None:
    reader = hr.Reader(numbers(), "none", max_epochs=1)
    write_table(iter(lambda: reader.next_batch(3), None), "t.arrow", rows_per_block=4)
    found = open_table("t.arrow")
    assert every_row(found) == every_row(numbers())
    assert found.block == 4


def test_sparse_rows_that_turn_out_to_have_values_are_written_with_all_of_them() -> None:
    class Turning(hr.Table):
        streams = (hr.Stream("w", (5,), layout="sparse"),)

        def __len__(self) -> int:
            return 4

        def take(self, indices: torch.Tensor) -> hr.Batch:
            values = None if int(indices[0]) < 2 else torch.full((len(indices),), 3.0)
            return hr.Batch({"w": Sparse(indices, values, torch.arange(len(indices) + 1), 5)})

    write_table(Turning(), "t.arrow", rows_per_block=2)
    assert open_table("t.arrow").rows(0, 4)["w"].values.tolist() == [1, 1, 3, 3]


def test_a_file_that_cannot_be_written_leaves_what_was_there() -> None:
    write_table(numbers(3), "t.arrow")

    def failing() -> Iterator[hr.Batch]:
        yield numbers(5).rows(0, 5)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write_table(failing(), "t.arrow", rows_per_block=2)
    assert len(open_table("t.arrow")) == 3
    assert os.listdir() == ["t.arrow"]


def test_what_a_kind_of_file_does_not_hold_is_refused() -> None:
    with pytest.raises(hr.DataError, match=r"NumPy has no array for stream words: sparse"):
        write_table(mixed(), "t.npz")
    with pytest.raises(hr.ConfigError, match=r"cannot write t\.pt\. Name a local file that ends in \.arrow"):
        write_table(mixed(), "t.pt")
    assert os.listdir() == []


def test_nothing_and_codes_without_a_string_are_not_written() -> None:
    with pytest.raises(hr.DataError, match="there are no batches to write"):
        write_table([], "t.arrow")
    with pytest.raises(hr.DataError, match="codes from 0 to 3 are not all among 2 categories"):
        write_table(hr.ArrayTable({"s": torch.tensor([0, 3])}, categories={"s": ["a", "b"]}), "t.arrow")
    assert os.listdir() == []


@pytest.mark.takes_turns
@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_tables_of_files_keep_the_contract_of_tables(kind: str) -> None:
    write_table(numbers(20) if kind == ".npz" else mixed(20), "t" + kind, rows_per_block=6)
    check_table(lambda: open_table("t" + kind))


# --- in place --------------------------------------------------------------------------------------------


def mapped_ranges(name: str) -> list[tuple[int, int]]:
    """The addresses at which a file is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if line.endswith("/" + name)]
    return [(int(start, 16), int(stop, 16)) for start, stop in spans]


def addresses(table: Any) -> list[int]:
    """Where the tensors are that rows of a single block are taken from."""
    fields = table.table._fields(0).values()
    return [tensor.data_ptr() for field in fields for tensor in tensors_of(field) if tensor.numel()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", [".arrow", ".npz", ".npy", "stream.arrow"])
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
    write_table(numbers(), "t.parquet")
    for name in ("t.arrow", "t.parquet"):
        table = open_table(name)
        table.rows(0, 5)["x"].fill_(-1)
        table.take(torch.arange(5))["x"].fill_(-1)
        assert every_row(table) == every_row(numbers())


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
    from headrace.data.arrow import record_batch_of, schema_of

    schema = schema_of(table.streams, categories=table.categories)
    record = record_batch_of(batch.fields, schema, table.categories)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile("t.arrow", "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for start in (0, 40):
            writer.write_batch(record.slice(start, 40 if not start else 60))
    found = open_table("t.arrow")
    assert found.block == 60
    assert every_row(found) == every_row(table)
    assert open_table("t.arrow", columns=["species", "n"]).rows(39, 41)["n"].tolist() == [39, 40]


def test_many_small_record_batches_are_gathered_from_one_piece_and_stay_blocks() -> None:
    written = mixed(100)
    write_table(written, "t.arrow", rows_per_block=7)
    table = open_table("t.arrow")
    assert isinstance(table, FileTable)
    assert isinstance(table.table, Block)
    assert table.block == 7
    assert every_row(table) == every_row(written)


def test_packed_csv_and_tabs_are_read() -> None:
    Path("t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    Path("t.tsv").write_text("a\tb\n1\t2\n")
    for name in ("t.csv.gz", "t.tsv"):
        assert open_table(name).rows(0, 1)["b"].tolist() == [2]


def test_text_of_cntk_is_written_and_read_by_its_streams() -> None:
    write_table(numbers(), "t.ctf")
    streams = [hr.Stream("n", (), "int64"), hr.Stream("x", (2,))]
    assert every_row(open_table("t.ctf", streams=streams)) == every_row(numbers())
    with pytest.raises(hr.ConfigError, match=r"t\.ctf does not say what its streams are\. Declare them: streams="):
        open_table("t.ctf")
    with pytest.raises(hr.ConfigError, match=r"is read by streams= alone, without columns="):
        open_table("t.ctf", streams=streams, columns=["n"])
    text("bad.ctf", "0 |n 1 |m 1 2", "1 |n q |m 1 2")
    with pytest.warns(UserWarning, match="1 of 2 sequences were dropped"):
        assert len(open_table("bad.ctf", streams=streams, fields={"x": "m"}, bad_rows="skip")) == 1


# --- which files -----------------------------------------------------------------------------------------


def parts(suffix: str = ".arrow") -> list[str]:
    """Ten rows in three files, one of them empty, written in another order than that of their names."""
    names = [f"part-{k}{suffix}" for k in range(3)]
    table = numbers()
    for k, (start, stop) in [(2, (4, 10)), (0, (0, 4)), (1, (4, 4))]:
        write_table(hr.ArrayTable({n: column[start:stop] for n, column in table.columns.items()}), names[k])
    return names


@pytest.mark.parametrize("suffix", [".arrow", ".parquet", ".npz"])
def test_many_files_are_read_one_after_the_other_in_the_order_of_their_names(suffix: str) -> None:
    names = parts(suffix)
    text("notes.md", "no data")
    text("_SUCCESS.csv", "no data")
    for path in ("part-*" + suffix, names, Path.cwd(), f"file://{Path.cwd()}/part-?{suffix}"):
        table = open_table(path)
        assert every_row(table) == every_row(numbers())
        assert table.take(torch.tensor([9, 0, 5]))["n"].tolist() == [9, 0, 5]
    assert open_table(names[::-1]).rows(0, 10)["n"].tolist() == [*range(4, 10), *range(4)], "a list keeps its order"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("part-9.arrow", r"there is no file part-9\.arrow\. In \. there are: .*part-0\.arrow, part-1\.arrow"),
        ("*.parquet", r"no file matches '\*\.parquet'\. In \. there are: "),
        ("nowhere/a.arrow", r"There is no directory nowhere either"),
        (".", r"the directory \. has files of several kinds, .* for example\. Name one"),
        (["part-0.arrow", "t.csv"], r"this list has files of several kinds"),
        ("empty", r"the directory empty has no data files\. Known are: \.npy"),
        ("notes.md", r"notes\.md is of no known kind"),
        ([], "an empty list of files"),
        ("s3://bucket/t.parquet", r"cannot read s3://bucket/t\.parquet: Install s3fs"),
        ("nix://t.parquet", r"cannot read nix://t\.parquet: Protocol not known"),
        ("memory://none.parquet", r"there is no file memory://none\.parquet"),
        ("zero.arrow", r"zero\.arrow is empty"),
        ("part-1.arrow", r"part-1\.arrow has no rows"),
    ],
)
def test_a_path_that_means_no_data_says_what_there_is(path: Any, message: str) -> None:
    parts()
    text("t.csv", "a", "1")
    text("notes.md", "nothing")
    Path("zero.arrow").touch()
    Path("empty").mkdir()
    with pytest.raises((hr.ConfigError, hr.DataError), match=message):
        open_table(path)


def test_files_with_other_streams_are_refused_by_file_stream_and_type() -> None:
    np.savez("a.npz", x=np.zeros(3, np.float32))
    np.savez("b.npz", x=np.zeros(3, np.float64))
    np.savez("c.npz", y=np.zeros(3, np.float32))
    with pytest.raises(hr.DataError, match=r"'x' is float32\[\] in a\.npz and float64\[\] in b\.npz\. .*dtypes="):
        open_table(["a.npz", "b.npz"])
    with pytest.raises(hr.DataError, match=r"a\.npz has a stream 'x' and c\.npz has not"):
        open_table(["a.npz", "c.npz"])
    assert open_table(["a.npz", "b.npz"], dtypes={"x": "float32"}).rows(0, 6)["x"].dtype == torch.float32


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


# --- what of them ----------------------------------------------------------------------------------------

IRIS = ("Sepal.Length,width,species", "5.1,3,setosa", "6.5,3,virginica", "4.9,2,setosa")


def test_columns_side_by_side_make_one_stream_and_strings_become_codes() -> None:
    table = open_table(text("iris.csv", *IRIS), columns={"x": ["Sepal.Length", "width"], "y": "species"})
    assert [str(stream) for stream in table.streams] == ["x: float64[2]", "y: int64[]"]
    batch = table.take(torch.tensor([2, 1]))
    assert batch["x"].tolist() == [[4.9, 2], [6.5, 3]]
    assert batch["y"].tolist() == [0, 1]
    assert table.categories == {"y": ["setosa", "virginica"]}


def test_codes_do_not_depend_on_the_order_of_rows_or_files() -> None:
    text("a.csv", "s", "b", "c")
    text("b.csv", "s", "a", "b")
    for names in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        table = open_table(names)
        assert table.categories == {"s": ["a", "b", "c"]}
        assert sorted(table.rows(0, 4)["s"].tolist()) == [0, 1, 1, 2]


def test_other_data_take_the_categories_of_the_training_data() -> None:
    train = open_table(text("iris.csv", *IRIS), columns=["species"])
    val = open_table(text("val.csv", "species", "virginica"), categories=train.categories)
    assert val.rows(0, 1)["species"].tolist() == [1]
    wrong = open_table(text("wrong.csv", "species", "setosa", "virgincia"), categories=train.categories)
    with pytest.raises(hr.DataError, match=r"'species' of wrong\.csv, row 1: unknown string 'virgincia'.*'virginica'"):
        wrong.rows(0, 2)
    with pytest.raises(hr.ConfigError, match=r"categories=: unknown column of strings 'sort'"):
        open_table("val.csv", categories={"sort": ["a"]})


def test_numbers_may_be_categories() -> None:
    table = open_table(text("t.csv", "digit", "7", "3"), categories={"digit": ["3", "7"]})
    assert table.rows(0, 2)["digit"].tolist() == [1, 0]


def test_strings_of_many_parquet_files_are_collected_over_all_of_them() -> None:
    for k, strings in enumerate((["b", "d"], ["a", "b"])):
        pq.write_table(pa.table({"s": strings, "n": [1, 2]}), f"{k}.parquet", row_group_size=1)
    table = open_table("*.parquet")
    assert table.categories == {"s": ["a", "b", "d"]}
    assert table.rows(0, 4)["s"].tolist() == [1, 2, 0, 1]


def test_only_the_wanted_columns_need_to_be_readable() -> None:
    pq.write_table(pa.table({"when": pa.array([0, 1], pa.timestamp("s")), "n": [1, 2]}), "t.parquet")
    assert open_table("t.parquet", columns=["n"]).rows(0, 2)["n"].tolist() == [1, 2]
    with pytest.raises(hr.DataError, match=r"column 'when' of t\.parquet holds timestamp.*Cast it to int64"):
        open_table("t.parquet")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["widht"]}, r"iris\.csv: unknown column 'widht'\. Did you mean 'width'\?"),
        ({"columns": ["Sepal.Length"]}, r"'Sepal.Length' has a dot in its name"),
        ({"columns": {"": "width"}}, r"a stream needs a name"),
        ({"columns": "width"}, r"columns= is a list of names .* Write \['width'\]"),
        ({"columns": []}, r"columns= is empty"),
        ({"columns": {"x": []}}, r"stream 'x' has no columns"),
        ({"columns": {"x": ["width", "species"]}}, r"'species' cannot stand beside others .*: it holds strings"),
        ({"columns": ["width"], "dtypes": {"width": "flot"}}, r"'flot' is not a torch dtype"),
        ({"columns": ["width"], "dtypes": {"widht": "int8"}}, r"dtypes=: unknown stream 'widht'. Did you mean"),
        ({}, r"'Sepal.Length' has a dot in its name.*columns=\{'Sepal_Length': 'Sepal.Length'\}"),
        ({"columns": ["width"], "streams": [hr.Stream("z")]}, r"streams=: iris\.csv: unknown column 'z'"),
    ],
)
def test_what_cannot_be_wanted_is_said_when_the_table_is_opened(options: dict[str, Any], message: str) -> None:
    text("iris.csv", *IRIS)
    with pytest.raises((hr.ConfigError, hr.DataError), match=message):
        open_table("iris.csv", **options)


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
    table = open_table("t.npz", dtypes={"x": dtype})
    assert table.streams[0].dtype == dtype
    if refused is None:
        assert str(table.rows(0, len(values))["x"].dtype) == f"torch.{dtype}"
        return
    with pytest.raises(
        hr.DataError, match=rf"stream 'x', t\.npz, row 1: {refused} is not a number".replace("+", r"\+")
    ):
        table.rows(0, len(values))
    with pytest.raises(hr.DataError, match="row 1"):
        table.take(torch.tensor([0, 0, 1]))


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
    assert batch["tokens"].values.tolist() == table.columns["tokens"].values.tolist()  # type: ignore[union-attr]
    assert batch["words"].values.dtype == torch.float64
    longer = hr.ArrayTable({"t": Ragged(torch.tensor([1, 2, 300]), torch.tensor([0, 1, 1, 3]))})
    write_table(longer, "l.arrow")
    with pytest.raises(hr.DataError, match=r"stream 't', l\.arrow, row 2: 300 is not"):
        open_table("l.arrow", dtypes={"t": "int8"}).rows(0, 3)


def test_nulls_are_refused_by_column_number_and_row() -> None:
    table = pa.table({"x": [1, 2, None], "y": [1, 2, 3]})
    pq.write_table(table, "t.parquet")
    with pa.OSFile("t.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    text("t.csv", "x,y", "1,1", "2,2", ",3")
    for name in ("t.parquet", "t.arrow", "t.csv"):
        with pytest.raises(hr.DataError, match=rf"column 'x' of {name} has 1 nulls, the first in row 2\. .*fill them"):
            open_table(name).rows(0, 3)  # of Parquet it is known when a row group is read, of others at once
        assert len(open_table(name, columns=["y"])) == 3


def test_a_stream_that_a_file_does_not_describe_is_declared() -> None:
    pq.write_table(pa.table({"w": [[1, 2], [3]]}), "t.parquet")
    table = open_table("t.parquet", streams=[hr.Stream("w", (5,), layout="sparse")])
    assert table.rows(0, 2)["w"].to_dense().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(hr.DataError, match=r"column 'w' of t\.parquet: index 3 is out of range"):
        open_table("t.parquet", streams=[hr.Stream("w", (3,), layout="sparse")]).rows(0, 2)


# --- from elsewhere --------------------------------------------------------------------------------------


def test_remote_files_are_read_like_local_ones(memory: Any) -> None:
    for kind in KINDS:
        write_table(mixed(), "t" + kind, rows_per_block=3)
        memory.pipe(f"/d/t{kind}", Path("t" + kind).read_bytes())
        local, remote = open_table("t" + kind), open_table(f"memory://d/*{kind}")
        assert every_row(remote) == every_row(local)
        assert every_row(pickle.loads(pickle.dumps(remote))) == every_row(local)
        assert remote.fingerprint() == local.fingerprint()
    write_table(numbers(), "n.npz")
    memory.pipe("/n/n.npz", Path("n.npz").read_bytes())
    memory.pipe("/n/n2.npz", Path("n.npz").read_bytes())
    assert len(open_table("memory://n")) == 20
    memory.pipe("/c/t.csv", b"a,b\n1,2\n")
    assert open_table("memory://c/t.csv").rows(0, 1)["b"].tolist() == [2]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(hr.ConfigError, match=r"reading memory://t\.npy needs fsspec\. Install it"):
        open_table("memory://t.npy")


# --- while they are read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_a_table_travels_to_another_process_by_the_names_of_its_files(kind: str) -> None:
    table = numbers(1000)
    write_table(table, "t" + kind)
    found = open_table("t" + kind, columns={"z": "x"}, dtypes={"z": "float64"})
    sent = pickle.dumps(found)
    assert len(sent) < 2000, "no rows travel"
    assert every_row(pickle.loads(sent)) == every_row(found)
    write_table(numbers(999), "t" + kind)
    with pytest.raises(hr.DataError, match=rf"t{kind} has changed"):
        pickle.loads(sent)


@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_a_file_that_is_cut_while_it_is_mapped_gives_an_error_and_no_crash(kind: str) -> None:
    write_table(numbers(10000), "t" + kind)
    table = open_table("t" + kind)
    os.truncate("t" + kind, 1000)
    with pytest.raises(hr.DataError, match=rf"t{kind} has changed while it was being read: it had \d+ bytes, now 1000"):
        table.take(torch.tensor([9999]))


@pytest.mark.parametrize("kind", [*KINDS, ".npz"])
def test_a_file_that_is_replaced_by_another_does_no_harm(kind: str) -> None:
    write_table(numbers(10), "t" + kind)
    table = open_table("t" + kind)
    write_table(numbers(3), "t" + kind)
    assert every_row(table) == every_row(numbers(10))


def test_the_fingerprint_is_that_of_the_rows_and_not_of_the_place_or_the_time(tmp_path: Path) -> None:
    parts()
    first = open_table("part-*.arrow")
    assert isinstance(first, FileTable)
    Path("moved").mkdir()
    for name in ("part-0.arrow", "part-1.arrow", "part-2.arrow"):
        Path("moved", name).write_bytes(Path(name).read_bytes())
    os.utime("moved/part-0.arrow", (1, 1))
    moved = open_table("moved")
    assert moved.fingerprint() == first.fingerprint()
    assert first.changed_files(moved.fingerprint()) == []
    raw = bytearray(Path("part-2.arrow").read_bytes())
    raw[raw.index(np.arange(4, 10).tobytes())] ^= 1
    Path("part-2.arrow").write_bytes(raw)
    changed = open_table("part-*.arrow")
    assert changed.fingerprint() != first.fingerprint()
    assert isinstance(changed, FileTable)
    assert changed.changed_files(first.fingerprint()) == ["part-2.arrow"]


def test_a_reader_resumes_on_files_and_refuses_others() -> None:
    write_table(numbers(100), "t.parquet", rows_per_block=10)
    reader = hr.Reader(open_table("t.parquet"), "blocks")
    reader.next_batch(30)
    state = reader.state_dict()
    expected = reader.next_batch(30)["n"].tolist()
    again = hr.Reader(open_table("t.parquet"), "blocks")
    again.load_state_dict(state)
    assert again.next_batch(30)["n"].tolist() == expected
    write_table(hr.ArrayTable({n: c.flip(0) for n, c in numbers(100).columns.items()}), "t.parquet", rows_per_block=10)
    with pytest.raises(hr.SourceError, match="fingerprint"):
        hr.Reader(open_table("t.parquet"), "blocks").load_state_dict(state)


def test_rows_from_all_over_a_parquet_file_are_given_and_talked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(numbers(3000), "t.parquet", rows_per_block=100)
    table = open_table("t.parquet")
    monkeypatch.setattr(table.table.tables[0]._cache, "budget_bytes", 5000)  # type: ignore[attr-defined]
    draws = torch.Generator().manual_seed(0)
    with pytest.warns(UserWarning, match=r"rows are taken from all over .*order='blocks'.*headrace convert") as said:
        for _ in range(10):
            indices = torch.randint(0, 3000, (64,), generator=draws)
            assert torch.equal(table.take(indices)["n"], indices)
    assert len(said) == 1


def test_rows_in_an_order_by_blocks_are_not_talked_about() -> None:
    write_table(numbers(3000), "t.parquet", rows_per_block=100)
    table = open_table("t.parquet")
    table.table.tables[0]._cache.budget_bytes = 5000  # type: ignore[attr-defined]
    reader = hr.Reader(table, "blocks", max_epochs=2)
    rows = torch.cat([batch["n"] for batch in iter(lambda: reader.next_batch(32), None)])
    assert sorted(rows.tolist()) == sorted([*range(3000)] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_read_from_several_threads(kind: str) -> None:
    write_table(numbers(2000), "t" + kind, rows_per_block=50)
    table = open_table("t" + kind)
    if kind == ".parquet":
        table.table.tables[0]._cache.budget_bytes = 20000  # type: ignore[attr-defined]
    wrong: list[Any] = []

    def read(seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        for _ in range(20):
            start = int(torch.randint(0, 1900, (1,), generator=draws))
            indices = start + torch.randint(0, 100, (50,), generator=draws)
            batch = table.take(indices)
            if not torch.equal(batch["n"], indices) or not torch.equal(batch["x"][:, 0], 2.0 * indices):
                wrong.append(indices)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_loader_reads_a_table_in_a_worker() -> None:
    write_table(numbers(20), "t.parquet", rows_per_block=5)

    loader = torch.utils.data.DataLoader(Rows(open_table("t.parquet")), batch_size=None, num_workers=1)
    assert [n.tolist() for n in loader] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
        [15, 16, 17, 18, 19],
    ]


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Five rows of a table for every item."""

    def __init__(self, table: hr.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table) // 5

    def __getitem__(self, item: int) -> torch.Tensor:
        if item >= len(self):
            raise IndexError
        found: torch.Tensor = self.table.rows(5 * item, 5 * item + 5)["n"]
        return found


def test_a_zip_that_says_something_else_of_a_member_is_refused() -> None:
    with zipfile.ZipFile("t.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array at all")
    with pytest.raises(hr.DataError, match=r"t\.npz cannot be read: the magic string is not correct"):
        open_table("t.npz")
    np.save("x.npy", np.arange(100.0))
    Path("x.npy").write_bytes(Path("x.npy").read_bytes()[:-8])
    with pytest.raises(hr.DataError, match=r"x\.npy is cut short: \[100\] of float64 take 800 bytes, 792 are there"):
        open_table("x.npy")


def test_the_suffixes_are_those_that_the_message_names() -> None:
    assert set(paths.SUFFIXES) >= {".npy", ".npz", ".arrow", ".feather", ".parquet", ".csv", ".ctf"}


# --- what is kept in memory, and what is said --------------------------------------------------------------


def test_small_record_batches_are_gathered_up_to_a_budget_for_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.formats import table as module

    for k in range(4):
        write_table(numbers(1000), f"{k}.arrow", rows_per_block=10)
    monkeypatch.setattr(module, "JOINED_BYTES", 40_000)  # a file has 16 kB
    blocks = open_table([f"{k}.arrow" for k in range(4)]).table.tables  # type: ignore[attr-defined]
    assert [len(block) for block in blocks] == [1000, 1000, *[10] * 200]


def test_columns_that_are_decoded_are_let_go_again_and_those_in_place_are_not_kept_twice() -> None:
    write_table(mixed(9000), "t.arrow", rows_per_block=9000)
    table = open_table("t.arrow", columns=["n", "species", "flag"])
    block = table.table  # type: ignore[attr-defined]
    before = every_row(table)
    assert set(block._in_place()) == {"n"}
    assert block._cache._bytes == 9000 * 9, "codes of eight bytes, and flags of one"
    block._cache._held.clear()
    assert every_row(table) == before


@pytest.mark.parametrize("name", ["none/t.arrow", "none/t.npz", "none/t.ctf", "t" * 300 + ".arrow", "dir.parquet"])
def test_a_place_that_cannot_be_written_is_told_by_its_name_alone(name: str) -> None:
    os.mkdir("dir.parquet")
    with pytest.raises(hr.ConfigError, match=f"^cannot write {name}: ") as told:
        write_table(numbers(), name)
    assert ".tmp" not in str(told.value)
    assert os.listdir() == ["dir.parquet"]


def test_what_is_no_table_and_no_batches_is_not_written() -> None:
    import pandas as pd

    reader = hr.Reader(numbers())
    for suffix in (".arrow", ".ctf"):
        for data in ({"x": torch.ones(2)}, pd.DataFrame({"x": [1]}), reader, 3):
            with pytest.raises(
                (hr.ConfigError, hr.DataError), match="expected a Table, or Batches one after the other"
            ):
                write_table(data, "t" + suffix)  # type: ignore[arg-type]
    assert os.listdir() == []


def test_batches_of_other_streams_are_not_written_into_one_file() -> None:
    batches = [numbers().rows(0, 2), hr.Batch({"n": torch.arange(2)})]
    with pytest.raises(hr.DataError, match="a later one n: int64"):
        write_table(batches, "t.arrow", rows_per_block=1)


def test_a_suffix_in_capitals_means_the_same() -> None:
    write_table(numbers(), "T.CTF.GZ")
    assert Path("T.CTF.GZ").read_bytes()[:2] == b"\x1f\x8b"
    streams = [hr.Stream("n", (), "int64"), hr.Stream("x", (2,))]
    assert every_row(open_table("T.CTF.GZ", streams=streams)) == every_row(numbers())


@pytest.mark.parametrize("suffix", [".npz", ".ctf"])
def test_categories_that_a_file_does_not_hold_are_talked_about(suffix: str) -> None:
    with pytest.warns(UserWarning, match="holds the codes of s, and not the strings"):
        write_table(hr.ArrayTable({"s": torch.arange(2)}, categories={"s": ["a", "b"]}), "t" + suffix)


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, np.dtype("float32"), "float32"])
def test_a_dtype_is_one_of_torch_or_numpy_or_a_name(dtype: Any) -> None:
    text("t.csv", "a,b", "1,2")
    assert open_table("t.csv", dtypes={"a": dtype}).rows(0, 1)["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": "float32"}, r"dtypes= is \{stream: dtype\}, got 'float32'"),
        ({"dtypes": {"a": [1]}}, r"dtypes=: \[1\] is not a dtype"),
        ({"streams": hr.Stream("a")}, r"streams= is a list of Streams"),
        ({"streams": ["a"]}, r"streams= takes Streams, got 'a'"),
        ({"categories": ["u"]}, r"categories= is \{stream: strings\}"),
        ({"categories": {"y": [1, 2]}}, r"stream 'y' takes strings, got 1, a int"),
        ({"categories": {"y": "u"}}, r"stream 'y' takes a list of strings, got 'u'"),
        ({"categories": {"y": ["u", "v", "u"]}}, r"stream 'y' has 'u' twice"),
        ({"bad_rows": "skip"}, r"bad_rows= and cache= are for \.ctf files"),
    ],
)
def test_an_argument_of_another_kind_is_refused(options: dict[str, Any], message: str) -> None:
    text("t.csv", "a,y", "1,u")
    with pytest.raises(hr.ConfigError, match=message):
        open_table("t.csv", **options)


def test_codes_take_a_dtype_whatever_the_kind_of_file() -> None:
    pq.write_table(pa.table({"y": ["v", "u", "v"]}), "t.parquet")
    text("t.csv", "y", "v", "u", "v")
    for name in ("t.parquet", "t.csv"):
        table = open_table(name, dtypes={"y": "float32"})
        assert table.rows(0, 3)["y"].tolist() == [1.0, 0.0, 1.0]
        assert table.streams[0].dtype == "float32"
    text("t.csv", "y", "1", "l", "3")
    with pytest.raises(hr.DataError, match=r"t\.csv: .*invalid value 'l'.*in column 'y'\. Correct it"):
        open_table("t.csv", dtypes={"y": "float32"})


def test_the_index_of_a_frame_is_no_stream_unless_it_is_named() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 7])
    frame.to_parquet("t.parquet")
    pa.feather.write_feather(pa.Table.from_pandas(frame), "t.feather", compression="uncompressed")
    for name in ("t.parquet", "t.feather"):
        assert list(open_table(name).rows(0, 2)) == ["a"]
        assert open_table(name, columns=["__index_level_0__"]).rows(0, 2)["__index_level_0__"].tolist() == [5, 7]


def test_directories_that_say_what_a_column_is_are_not_passed_over_in_silence() -> None:
    for year in (2023, 2024):
        os.makedirs(f"parted/year={year}")
        write_table(numbers(), f"parted/year={year}/t.arrow")
    names = [f"parted/year={year}/t.arrow" for year in (2023, 2024)]
    for path in ("parted/*/*.arrow", names):
        with pytest.raises(hr.ConfigError, match=r"is parted by year=2023"):
            open_table(path)
    with pytest.raises(hr.DataError, match=r"There are directories in it, year=2023/ for example"):
        open_table("parted")
    assert len(open_table(names[0])) == len(open_table("parted/year=2024/*.arrow")) == 10


def test_text_of_no_known_kind_is_read_only_where_it_is_named() -> None:
    write_table(numbers(), "t.arrow")
    text("readme.txt", "hello")
    assert len(open_table(".")) == 10


def test_a_small_array_in_a_large_member_is_not_unpacked() -> None:
    import io

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
