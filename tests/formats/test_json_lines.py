"""JSON lines: keys are columns, and lists are sequences, or vectors where that is declared."""

import gzip
from pathlib import Path

import pyarrow.csv
import pytest

import headrace as hr
from headrace.formats import files, paths

pytestmark = pytest.mark.usefixtures("in_tmp_path")

LINES = [
    '{"x": [1.0, 2.0], "words": [3, 1], "y": "yes", "n": 1}',
    '{"y": "no", "n": 2, "x": [3.0, 4.5], "words": []}',
    '{"x": [5.0, 6.0], "words": [2], "y": "yes", "n": 3}',
]


def write(name: str = "t.jsonl", lines: list[str] = LINES) -> str:
    text = ("\n".join(lines) + "\n").encode()
    Path(name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return name


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.jsonl.gz"])
@pytest.mark.parametrize("memory_bytes", [None, 0])
def test_keys_are_columns(name: str, memory_bytes: int | None, tmp_path: Path) -> None:
    vectors = [hr.Stream("x", (2,), "float64")]
    table = hr.open_table(write(name), streams=vectors, memory_bytes=memory_bytes, cache=tmp_path)
    assert sorted(str(stream) for stream in table.streams) == [
        "n: int64[]",
        "words: sequences of int64[]",
        "x: float64[2]",
        "y: int64[]",
    ]
    rows = table.rows(0, 3)
    assert rows["x"].tolist() == [[1, 2], [3, 4.5], [5, 6]]
    assert [row.tolist() for row in rows["words"]] == [[3, 1], [], [2]]
    assert [table.categories["y"][code] for code in rows["y"].tolist()] == ["yes", "no", "yes"]


def test_a_format_is_added_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(paths.SUFFIXES, ".events", "")  # both are as they were after the test
    monkeypatch.setitem(files.READERS, ".events", None)
    paths.SUFFIXES.pop(".events")
    hr.add_format(".events", pyarrow.csv.read_csv)
    Path("a.events").write_text("x,kind\n1,u\n")
    Path("b.events").write_text("x,kind\n2,v\n3,u\n")
    found = hr.open_table("*.events", dtypes={"x": "float32"})
    assert found.rows(0, 3)["x"].tolist() == [1, 2, 3]
    assert found.categories == {"kind": ["u", "v"]}
    with pytest.raises(hr.DataError, match=r"b\.events: unknown column 'z'"):
        hr.open_table("b.events", columns=["z"])
    with pytest.raises(hr.DataError, match=r"Known are: .*\.events"):
        hr.open_table(write("t.unknown"))
