"""What cannot be read or written is refused in a sentence that says what there is, and what to do instead."""

import datetime
import decimal
import gzip
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from kit.file_tables import mixed, numbers, parts, text
from kit.late import pandas as pd

import headrace as hr

Case = tuple[Callable[[], object], str]
SPARSE = pa.list_(pa.struct({"index": pa.int32(), "value": pa.float32()}))
NINE = hr.Stream("x", (9,), layout="sparse")
COLUMNS = {"age": pa.array([22, None, 38]), "home": ["york", None, "leeds"], "a.b": [1, 2, 3]}


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files that the rows below name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("refused"))
        Path("sets").mkdir()
        os.chdir("sets")
        parts()
        text("t.csv", "a,y", "1,u")
        text("notes.md", "nothing")
        Path("zero.arrow").touch()
        Path("empty").mkdir()
        os.chdir("..")
        text("iris.csv", "Sepal.Length,width,species", "5.1,3,setosa", "6.5,3,virginica")
        text("when.csv", "Sepal.When", "2020-01-01")
        text("mixed.csv", "y", "1", "l", "3")
        text("null.csv", "x,y", "1,1", "2,2", ",3")
        text("empty.csv", "a,b", ",1", ",2")
        text("age.csv", "age,age_null", "1,2", ",2")
        text("ids.csv", "id,far", "7,1e23", "18446744073709551615,100000000000000000000")
        Path("late.csv").write_text("id,x\n" + 300_000 * "7,1\n" + "18446744073709551615,1\n")
        text("lists.jsonl", '{"id": [0.5, 7]}', '{"id": [1, 18446744073709551615]}')
        text("escaped.jsonl", '{"\\u00efd": 7}', '{"\\u00efd": 18446744073709551615}')
        text("ids.jsonl", '{"id": 7, "far": 1e23}', '{"id": 18446744073709551615, "far": 100000000000000000000}')
        Path("end.csv").write_text("\nid,note\r\n7,a\r\n1.5,b\r\n" + 400 * "9" + ",c")
        Path("quote.csv").write_text('x,name\n1,"b"\n2,"a\n3,c\n')
        Path("quote.csv.gz").write_bytes(gzip.compress(Path("quote.csv").read_bytes()))
        Path("latin.csv").write_bytes("name\nJos\u00e9\n".encode("latin-1"))
        pq.write_table(pa.table({"x": [1, 2, None], "y": [1, 2, 3]}), "null.parquet")
        pq.write_table(pa.table({"when": pa.array([0, 1], pa.timestamp("s")), "n": [1, 2]}), "when.parquet")
        for kind in ("npy", "npz", "arrow", "parquet"):
            text("no." + kind, "no such thing, but long enough to be looked at as if it were one")
        np.save("object.npy", np.array([{"a": 1}]), allow_pickle=True)
        np.savez("object.npz", x=np.array([{"a": 1}], object))
        np.save("cut.npy", np.arange(100.0))
        os.truncate("cut.npy", os.path.getsize("cut.npy") - 8)
        np.save(held := io.BytesIO(), np.arange(3))
        for name, data in (("zip", b"not an array at all"), ("bomb", held.getvalue() + bytes(1000))):
            with zipfile.ZipFile(f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("x.npy", data)
        np.savez("f32.npz", x=np.zeros(3, np.float32))
        np.savez("f64.npz", x=np.zeros(3, np.float64))
        np.savez("other.npz", y=np.zeros(3, np.float32))
        for year in (2023, 2024):
            os.makedirs(f"parted/year={year}")
            hr.write_table(numbers(), f"parted/year={year}/t.arrow")
        text("one.ctf", "0 |x 1")
        os.mkdir("dir.parquet")
        yield


def of(data: Any, **options: Any) -> Callable[[], object]:
    """Opens a path, or what a function makes."""
    return lambda: hr.open_table(data() if callable(data) else data, **options)


def column(values: Any, stream: hr.Stream | None = None, **options: Any) -> Callable[[], object]:
    """Opens a table of a column x; with a stream, a file that has it."""

    def read() -> object:
        table = pa.table({"x": values})
        if stream is None:
            return hr.open_table(table, **options)
        with pa.OSFile("t.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        found = hr.open_table("t.arrow", streams=[stream], **options)
        return found.rows(0, len(found))

    return read


def lines(*of_json: str, x: hr.Stream | None = None) -> Callable[[], object]:
    def read() -> object:
        table = hr.open_table(text("t.jsonl", *of_json), streams=[x] if x else None)
        return table.rows(0, len(table))

    return read


def damaged_offsets(offsets: list[int]) -> Callable[[], object]:
    """Arrow looks at offsets when a column is made, and a file that is mapped may say anything later."""

    def read() -> object:
        bounds = np.arange(4)
        raw = pa.py_buffer(bounds)
        children = [pa.array([1, 2, 3])]
        table = pa.table({"x": pa.Array.from_buffers(pa.large_list(pa.int64()), 3, [None, raw], children=children)})
        bounds[:] = offsets
        return hr.open_table(table)

    return read


def said(metadata: bytes) -> Any:
    return pa.schema([pa.field("x", pa.int64(), metadata={b"headrace": metadata})]).empty_table()


def outside(index: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0, index], pa.int32()), ["a", "b"], safe=False)


def filled(nulls: Any, **options: Any) -> Callable[[], object]:
    return of(lambda: pa.table(COLUMNS), columns=["age", "home"], nulls=nulls, **options)


def write(data: Any, path: str, **options: Any) -> Callable[[], object]:
    return lambda: hr.write_table(data() if callable(data) else data, path, **options)


NULLS = r"column 'x' of (this table|t\.arrow) has 2 nulls, the first in row {}\. .*fill"
TYPES: list[Case] = [
    (column(pa.array([datetime.datetime(2020, 1, 1)])), "column 'x'.*timestamp.*Cast it to int64"),
    (column(pa.array([decimal.Decimal("1.5")])), "column 'x'.*decimal.*Cast it to float64"),
    (column(pa.array([{"a": 1}])), "column 'x'.*struct.*Make a column of each of its fields"),
    (column(pa.nulls(2)), "column 'x'.*empty in every row. Fill it, or leave it out"),
    (column(pa.array([[[1]]])), "column 'x'.*whether that is sparse"),
    (column(pa.array([[]], SPARSE)), r"'x'.* holds list.*Declare it: streams=\[Stream\('x', \(1000,\)"),
    (column(pa.array([[]], SPARSE), hr.Stream("x", (9,))), r"expected x: float32\[9\], got list"),
    (column(pa.array([1, None, 3, None])), NULLS.format(1)),
    (column(pa.array([[1.0, 2.0], [None, None]], pa.list_(pa.float64(), 2))), NULLS.format(1)),
    (column(pa.array([[1], [], [2, None, None]])), NULLS.format(2)),
    (column(pa.array(["a", None, None]).dictionary_encode()), NULLS.format(1)),
    (column(pa.array([[], [{"index": 1, "value": None}, {"index": 2, "value": None}]], SPARSE), NINE), NULLS.format(1)),
    *[(column(pa.array([[1, n]], pa.list_(pa.uint64())), NINE), "column 'x'.*out of range") for n in (9, 2**63 + 1)],
    *[(damaged_offsets(bad), "damaged") for bad in ([0, 5, 2, 3], [1, 0, 0, 0], [0, 1, 2, 9], [-2, 0, 1, 2])],
    *[(column(outside(index), categories={"x": ["a", "b"]}), "damaged") for index in (-1, 2)],
    *[(of(said(bad)), "column 'x' of this table") for bad in (b"{", b"[]", b'{"layout": "dense"}')],
    (of(said(b'{"layout": "round", "shape": [], "dtype": 1}')), "column 'x' of this table"),
    (lines('{"x": 1}', '{"x": }'), r"t\.jsonl cannot be read: JSON parse error"),
    (lines('{"x": 1}', "{}"), r"column 'x' of t\.jsonl has 1 nulls, the first in row 1"),
    (
        lines('{"x": [1, 2]}', '{"x": [1]}', x=hr.Stream("x", (2,), "int64")),
        r"column 'x' of t\.jsonl, row 1: a list of 1 items, expected x: int64\[2\]",
    ),
    (
        lines('{"x": {"a": 1}}', x=hr.Stream("x", (2,), "int64")),
        r"column 'x' of t\.jsonl: expected x: int64\[2\], got struct",
    ),
]
ARGUMENTS: list[Case] = [
    (of("iris.csv", columns=["widht"]), r"iris\.csv: unknown column 'widht'\. Did you mean 'width'\?"),
    (of("iris.csv", columns=["Sepal.Length"]), r"'Sepal.Length' has a dot in its name"),
    (of("iris.csv", columns="width"), r"columns= is a list of names .* Write \['width'\]"),
    (of("iris.csv", columns={"x": []}), r"stream 'x' has no columns"),
    (of("iris.csv", columns={"x": ["width", "species"]}), r"'species' cannot stand beside others .*: it holds strings"),
    (of("iris.csv", columns=["width"], dtypes={"width": "flot"}), r"'flot' is not a torch dtype"),
    (of("iris.csv", columns=["width"], dtypes={"widht": "int8"}), r"dtypes=: unknown stream 'widht'. Did you mean"),
    (of("iris.csv"), r"'Sepal.Length' has a dot in its name.*columns=\{'Sepal_Length': 'Sepal.Length'\}"),
    (of("iris.csv", columns=["width"], streams=[hr.Stream("z")]), r"streams=: iris\.csv: unknown column 'z'"),
    (of("sets/t.csv", dtypes="float32"), r"dtypes= is \{stream: dtype\}, got 'float32'"),
    (of("sets/t.csv", streams=["a"]), r"streams= takes Streams, got 'a'"),
    (of("sets/t.csv", categories=["u"]), r"categories= is \{stream: strings\}"),
    (of("sets/t.csv", categories={"y": [1, 2]}), r"stream 'y' takes strings, got 1, a int"),
    (of("sets/t.csv", categories={"y": ["u", "v", "u"]}), r"stream 'y' has 'u' twice"),
    (of("sets/t.csv", categories={"sort": ["a"]}), r"categories=: unknown column of strings 'sort'"),
    *[
        (lambda suffix=suffix: hr.add_format(suffix, pyarrow.csv.read_csv), r"add_format\(\)")
        for suffix in ("events", ".a.b", ".csv")
    ],
    (filled("mean"), r"nulls= is \{stream: what stands for its nulls\}, got 'mean'. Write \{'age': 'mean'"),
    (filled({"age": None}), "stream 'age' takes 'mean', 'median', a number or a category, got None"),
    (filled({"age": [1, 2]}), "stream 'age' is made of 1 columns, and 2 values are to stand for its nulls"),
    (filled({"age": "unknown"}), "column 'age' .*holds int64, and 'unknown' is no number. Write 'mean'"),
    (filled({"home": "mean"}), r"column 'home' .*holds strings. Name the category .* \{'home': 'unknown'\}"),
    (of(lambda: pa.table(COLUMNS), nulls={"aeg": "mean"}), "unknown column 'aeg'. Did you mean 'age'"),
    (
        filled({"age": 0, "home": "unknown"}, categories={"home": ["leeds", "york"]}),
        "'unknown' stands for nulls of 'home', and is not among its categories=. Add it",
    ),
    (filled({"age": 0}), r"column 'home' of .* has 1 nulls, .*nulls=\{'home': ...\}"),
    (of("empty.csv", nulls={"a": "mean"}), r"column 'a' of empty.csv is empty in every row, and has no mean"),
    (
        of(lambda: pd.DataFrame({"a": [np.inf, None]}), nulls={"a": "mean"}),
        "column 'a' of this frame holds infinite numbers, and its mean is inf",
    ),
    (
        of(lambda: pd.DataFrame({"a": ["p", None, 3]}), nulls={"a": "none"}),
        "column .a. of this frame, of dtype object, cannot be read: .*int",
    ),
    (
        of(lambda: pd.DataFrame({"a": [{"p", "q"}, {"q"}]})),
        "column 'a' of this frame, of dtype object, cannot be read: a set has no order",
    ),
    (of("f32.npz", nulls={"x": 0}), r"f32.npz holds arrays, which have no nulls"),
]
PATHS: list[Case] = [
    (of("sets/part-9.arrow"), r"there is no file sets/part-9\.arrow\. In sets there are: part-0\.arrow, part-1\.arrow"),
    (of("nowhere/a.arrow"), r"There is no directory nowhere either"),
    (of("sets"), r"the directory sets has files of several kinds, .* for example\. Name one"),
    (of(["sets/part-0.arrow", "sets/t.csv"]), r"this list has files of several kinds"),
    (of("sets/empty"), r"the directory sets/empty has no data files\. Known are: \.npy"),
    (of("sets/notes.md"), r"notes\.md is of no known kind"),
    (of([]), "an empty list of files"),
    (of("gs://bucket/t.parquet"), r"cannot read gs://bucket/t\.parquet: .*gcsfs"),
    (of("memory://none.parquet"), r"there is no file memory://none\.parquet"),
    (of("sets/zero.arrow"), r"zero\.arrow is empty"),
    (of("sets/part-1.arrow"), r"part-1\.arrow has no rows"),
    (of(["f32.npz", "f64.npz"]), r"'x' is float32\[\] in f32\.npz and float64\[\] in f64\.npz\. .*dtypes="),
    (of(["f32.npz", "other.npz"]), r"f32\.npz has a stream 'x' and other\.npz has not"),
    (of("parted/*/*.arrow"), r"is parted by year=202[34]"),
    (of([f"parted/year={year}/t.arrow" for year in (2023, 2024)]), r"is parted by year=202[34]"),
    (of("parted"), r"There are directories in it, year=2023/ for example"),
    (of("one.ctf"), r"one\.ctf is in CNTK's text format\. Open it with hr\.open_ctf"),
    *[
        (of("no." + kind), rf"no\.{kind} cannot be read: .*check that its name tells")
        for kind in ("npy", "npz", "arrow", "parquet")
    ],
    *[(of("object." + kind), "has dtype object, which torch does not have") for kind in ("npy", "npz")],
    (of("zip.npz"), r"zip\.npz cannot be read: the magic string is not correct"),
    (of("cut.npy"), r"cut\.npy is cut short: \[100\] of float64 take 800 bytes, 792 are there"),
    (of("bomb.npz"), r"'x' of bomb\.npz is damaged: it has 1152 bytes, and its array 152"),
    (of("when.csv", columns={"x": "Sepal.When"}), r"column 'Sepal\.When' of when\.csv holds date32.*leave it out"),
    (of("latin.csv"), r"UTF-8"),
    (of("ids.csv"), r"ids\.csv: 18446744073709551615 does not fit int64, and would be rounded.* 'uint64'"),
    *[
        (of(name), r"18446744073709551615 does not fit int64")
        for name in ("late.csv", "ids.jsonl", "lists.jsonl", "escaped.jsonl")
    ],
    (of("end.csv"), r"end\.csv: 9{40} does not fit int64"),
    *[(of(name), rf"{name}, line 3: a quote is opened and never closed") for name in ("quote.csv", "quote.csv.gz")],
    (of("mixed.csv", dtypes={"y": "float32"}), r"mixed\.csv: .*invalid value 'l'.*in column 'y'\. Correct it"),
    *[
        (of(f"null.{kind}"), rf"column 'x' of null\.{kind} has 1 nulls, the first in row 2\. .*fill them")
        for kind in ("csv", "parquet")
    ],
]
CODES = hr.ArrayTable({"s": torch.tensor([0, 3])}, categories={"s": ["a", "b"]})
NOT_ROWS = "expected a Table, got"
WRITTEN: list[Case] = [
    *[(write(mixed, n), rf"cannot write {n}\. Name a local file .*np\.savez\(path") for n in ("t.pt", "t.npz")],
    (write(CODES, "t.arrow"), "codes from 0 to 3 are not all among 2 categories"),
    *[
        (write(numbers, name), f"^cannot write {name}: (?!.*tmp)")
        for name in ("none/t.arrow", "t" * 300 + ".arrow", "dir.parquet")
    ],
    *[
        (write(numbers, name), r"CNTK's text format is read, and not written\. Write \.arrow instead\.")
        for name in ("t.ctf", "t.ctf.gz", "T.CTF")
    ],
    *[(write(data, "t.arrow"), NOT_ROWS) for data in ({"x": torch.ones(2)}, 3, [numbers().rows(0, 2)])],
    *[(write(make, "t.arrow"), NOT_ROWS) for make in (lambda: pd.DataFrame({"x": [1]}), lambda: hr.Reader(numbers()))],
    (write(hr.ArrayTable({"x": torch.ones(2, dtype=torch.complex64)}), "t.parquet"), "'x': Arrow has no complex64"),
]


@pytest.mark.parametrize(("call", "message"), [*TYPES, *ARGUMENTS, *PATHS])
def test_what_cannot_be_read_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((hr.ConfigError, hr.DataError), match=message):
        call()


@pytest.mark.parametrize(("call", "message"), WRITTEN)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(call: Callable[[], object], message: str) -> None:
    before = sorted(os.listdir())
    with pytest.raises((hr.ConfigError, hr.DataError), match=message):
        call()
    assert sorted(os.listdir()) == before
