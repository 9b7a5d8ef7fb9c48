"""CNTK's text format: what a line may be, the same rows however a file is cut, and errors that say where."""

import gzip
import re
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.ctf_files import NAMES, STREAMS, plain, valid
from kit.ctf_reference import reference
from kit.sampled import seeds

from headrace.data.batch import Stream
from headrace.data.ragged import Ragged
from headrace.data.source import Table
from headrace.data.sparse import Sparse
from headrace.errors import ConfigError, DataError, SourceError
from headrace.formats.ctf import build
from headrace.formats.ctf import text as texts
from headrace.formats.ctf.exact import read_exactly
from headrace.formats.ctf.fast import Parsed, read_block
from headrace.formats.ctf.layout import Layout
from headrace.formats.ctf.numbers import UnreadableError, cast, value_of
from headrace.formats.text import open_ctf

SAMPLE = """\
0 |x 560:1 |y 1 0 0 0 0
0 |x 0:1
0 |x 0:1
1 |x 560:1 |y 0 1 0 0 0
1 |x 0:1
1 |x 0:1
1 |x 424:1
2 |x 160:1 |y 0 0 1 0 0
2 |x 5:1
2 |x 6:1
3 |x 460:1 |y 0 0 0 1 0
3 |x 3:1
3 |x 3:1
3 |x 425:1
"""
WORDS = Stream("words", (1000,), layout="sparse", sequence=True)
LABEL = Stream("y", (5,))
A = Stream("a", (2,))
AS = Stream("a", (2,), sequence=True)
B = Stream("b", (4,), layout="sparse", sequence=True)


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(table: Table) -> list[dict[str, Any]]:
    batch = table.rows(0, len(table))
    return plain(dict(batch.fields), batch.rows)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether rows hold the same numbers; a NaN is one."""
    return repr(_floats(one)) == repr(_floats(other))


def _floats(rows: Any) -> Any:
    if isinstance(rows, dict):
        return {name: _floats(rows[name]) for name in sorted(rows)}
    if isinstance(rows, list):
        return [_floats(row) for row in rows]
    return (rows[0], float(rows[1])) if isinstance(rows, tuple) else float(rows)


def told(text: str | bytes, tmp_path: Path, *streams: Stream, **options: Any) -> str:
    """The error that a file comes to, after its path."""
    path = written(tmp_path / "train.ctf", text)
    with pytest.raises(SourceError) as caught:
        open_ctf(path, streams, **options)
    return str(caught.value).replace(str(path), "train.ctf")


# --- rows ------------------------------------------------------------------------------------------------


def test_the_sample_of_fourteen_lines_is_four_sequences_with_a_label_each(tmp_path: Path) -> None:
    table = open_ctf(written(tmp_path / "train.ctf", SAMPLE), [WORDS, LABEL], fields={"words": "x"})
    assert list(table.streams) == [WORDS, LABEL]
    assert len(table) == 4
    batch = table.take(torch.tensor([3, 0, 1, 2]))
    words, labels = batch["words"], batch["y"]
    assert isinstance(words, Ragged)
    assert isinstance(words.values, Sparse)
    assert words.values.values is None, "every value is 1"
    assert [ids.tolist() for ids in words.ids] == [[460, 3, 3, 425], [560, 0, 0], [560, 0, 0, 424], [160, 5, 6]]
    assert torch.equal(labels, torch.eye(5)[[3, 0, 1, 2]])
    assert table.lengths("words").tolist() == [3, 4, 3, 4]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_marks_are_no_part_of_the_rows(end: str, last: bool, mark: bytes, tmp_path: Path) -> None:
    text = mark + (SAMPLE if last else SAMPLE[:-1]).replace("\n", end).encode()
    path = written(tmp_path / "other.ctf", text)
    expected = open_ctf(written(tmp_path / "train.ctf", SAMPLE), [WORDS, LABEL], fields={"words": "x"})
    assert rows_of(open_ctf(path, [WORDS, LABEL], fields={"words": "x"})) == rows_of(expected)


def test_a_packed_file_has_the_same_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf.gz", gzip.compress(SAMPLE.encode()))
    expected = open_ctf(written(tmp_path / "train.ctf", SAMPLE), [WORDS, LABEL], fields={"words": "x"})
    table = open_ctf(path, [WORDS, LABEL], fields={"words": "x"}, workers=3)
    assert rows_of(table) == rows_of(expected)


def read(block: bytes, layout: Layout, ids: bool) -> Parsed:
    """A block in which nothing is wrong, at once, and line by line with the same result."""
    parsed = read_block(block, layout, ids)
    assert parsed is not None
    slowly, problem = read_exactly(block, layout, ids)
    assert problem is None
    assert same(plain(slowly.fields, slowly.rows), plain(parsed.fields, parsed.rows))
    assert (slowly.lines, slowly.sequences, slowly.ids) == (parsed.lines, parsed.sequences, parsed.ids)
    return parsed


def rows(text: str, *streams: Stream, ids: bool = True) -> list[dict[str, Any]]:
    """The rows of one block."""
    parsed = read(text.encode(), Layout.of(streams), ids)
    return plain(parsed.fields, parsed.rows)


def test_fields_are_in_any_order_apart_by_blanks_tabs_or_nothing() -> None:
    expected = rows("1 |a 1 2 |b 3:1\n", A, B)
    for text in ("1 |b 3:1 |a 1 2", "1|a 1 2|b 3:1", "1\t|a\t1\t2\t|b\t3:1\t", "  1  |a  1  2  |b  3:1  \r\n"):
        assert rows(text, A, B) == expected, text


def test_a_comment_goes_to_the_next_field_and_may_hold_a_bar() -> None:
    text = "1 |# a comment, 5 |# with a bar: |# |a 1 2 |# and 1:2 nan(1) |b 3:1 |#"
    assert rows(text, A, B) == rows("1 |a 1 2 |b 3:1", A, B)


def test_fields_that_nobody_reads_may_hold_anything() -> None:
    text = "1 |c so: it (goes) |aa 7 |a 1 2 |é x\n1 |A 5 |c |c"
    assert rows(text, A) == [{"a": [[1, 2]]}]


def test_long_and_foreign_names_are_told_from_those_that_begin_alike() -> None:
    streams = [Stream(name, ()) for name in ("labels", "labels_of_all", "labels_of_all_words", "größe")]
    text = "|labels_of_all 2 |labels 1 |labels_of_all_words 3 |größe 4 |labels_of 9 |größer 5 |labels_of_all_wordz 7"
    assert rows(text, *streams, ids=False) == [
        {"labels": [[1]], "labels_of_all": [[2]], "labels_of_all_words": [[3]], "größe": [[4]]}
    ]


def test_lines_without_an_id_go_on_with_the_sequence_before() -> None:
    assert [len(row["a"]) for row in rows("4 |a 1 2\n|a 3 4\n5 |a 5 6\n |a 7 8\n5 |a 9 0\n", AS)] == [2, 3]


def test_without_ids_each_line_is_a_sequence(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf", "|# made by hand\n\n|a 1 2\n|a 3 4\n  \n|# the end\n|a 5 6")
    assert rows_of(open_ctf(path, [A])) == [{"a": [[1, 2]]}, {"a": [[3, 4]]}, {"a": [[5, 6]]}]


def test_a_line_of_comments_before_the_first_id_does_not_take_the_ids_away(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf", "|# id, then a\n7 |a 1 2\n7 |a 3 4\n")
    assert rows_of(open_ctf(path, [AS])) == [{"a": [[1, 2], [3, 4]]}]


def test_an_item_of_a_sequence_may_be_missing_on_a_line_and_a_label_may_be_on_any() -> None:
    found = rows("1 |b 0:1\n1 |a 1 2\n1 |b 2:5\n2 |a 3 4\n3 |# empty |a 0 0\n", A, B)
    assert [row["b"] for row in found] == [[[(0, 1)], [(2, 5)]], [], []]
    assert [row["a"] for row in found] == [[[1, 2]], [[3, 4]], [[0, 0]]]


def test_a_sparse_item_may_be_empty_and_its_indices_in_any_order() -> None:
    assert rows("1 |b\n1 |b 3:1 0:2 2:-1 |# \n1 |b 1:1", B) == [{"b": [[], [(3, 1), (0, 2), (2, -1)], [(1, 1)]]}]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", "float16", "bfloat16", "float64", "bool"])
def test_every_dtype_is_read(dtype: str) -> None:
    parsed = read(b"|a 1 0 1\n|a 0 1 1", Layout.of([Stream("a", (3,), dtype)]), False)
    assert parsed.fields["a"].tolist() == [[1, 0, 1], [0, 1, 1]]
    assert Stream.of("a", parsed.fields["a"]) == Stream("a", (3,), dtype)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=True).map(repr),
    st.floats(width=32).map(lambda x: np.format_float_scientific(np.float32(x))),
    st.text("0123456789+-.eEinfaNyx(_", max_size=9),
    st.sampled_from(["1e400", "-1e400", "1e-400", "1.", ".5", ".", "+1", "++1", "1e", "0x10", "nan(1)", "Infinity"]),
)


@given(
    st.lists(NUMBERS.filter(bool), min_size=1, max_size=150),
    st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint64", "uint32", "bool"]),
)
def test_numbers_are_those_that_python_reads(words: list[str], kind: str) -> None:
    words = [word for word in words if not {"x", "X", "("} & set(word)]  # they are refused before they get here
    words = words or ["1"]
    expected = [value_of(word.encode(), kind) for word in words]
    good = [word for word, value in zip(words, expected, strict=True) if value is not None]
    held = [value for value in expected if value is not None]
    assert repr([float(value) for value in numbers(good, kind).tolist()]) == repr([float(value) for value in held])
    for word in set(words) - set(good):
        with pytest.raises(UnreadableError):
            numbers([*good, word], kind)


def numbers(words: list[str], kind: str) -> Any:
    """Words that lie in a text, as numbers."""
    text = np.frombuffer((" " + " ".join(words) + " ").encode(), np.uint8).copy()
    stops = np.cumsum([len(word) + 1 for word in words], dtype=np.int64)
    spans = np.stack([stops - [len(word) for word in words], stops], 1).reshape(-1, 2)
    return cast(text, spans, kind, one_by_one=True)


# --- the same rows however a file is cut -----------------------------------------------------------------


def opened(data: bytes, path: Path, monkeypatch: Any, size: int, window: int, **options: Any) -> Table:
    monkeypatch.setattr(build, "BLOCK_BYTES", size)
    monkeypatch.setattr(texts, "WINDOW", window)
    return open_ctf(written(path, data), STREAMS, fields=NAMES, **options)


@pytest.mark.takes_turns
@pytest.mark.parametrize("seed", seeds(7, nightly=40))
def test_a_file_cut_anywhere_has_the_rows_of_the_plain_parser(seed: int, tmp_path: Path, monkeypatch: Any) -> None:
    random = Random(seed)
    data = valid(random, random.randrange(1, 15), ids=random.random() < 0.8)
    expected = reference(data, STREAMS, NAMES)
    assert expected.first_bad_line is None
    if any(all(not row[s.name] for row in expected.rows) for s in STREAMS):
        return  # a stream that never occurs is an error
    for k, size in enumerate([1, 7, 50, 300, 10**6]):
        table = opened(data, tmp_path / f"{k}.ctf", monkeypatch, size, random.choice([4, 50, 1 << 16]))
        assert same(rows_of(table), expected.rows)


def test_blocks_of_a_packed_file_are_those_of_the_plain_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(texts, "WINDOW", 16)
    monkeypatch.setattr(texts, "_CHUNK", 20)
    data = valid(Random(5), 30)
    plain_file, packed = written(tmp_path / "a.ctf", data), written(tmp_path / "a.ctf.gz", gzip.compress(data))
    found = []
    for path in (plain_file, packed):
        with texts.open_text(path) as text:
            start = texts.begin(text)
            ids = texts.has_ids(text, start)
            found.append(list(texts.blocks(text, start, ids, 40)))
    assert len(found[0]) > 5
    assert found[0] == found[1]
    assert b"".join(block for _, block in found[0]) == data


@pytest.mark.slow
def test_any_number_of_workers_leaves_the_same_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "BLOCK_BYTES", 300)
    data = valid(Random(8), 200)
    kept = []
    for workers in (1, 2):
        directory = tmp_path / str(workers)
        directory.mkdir()
        table = open_ctf(written(directory / "train.ctf", data), STREAMS, fields=NAMES, workers=workers)
        assert same(rows_of(table), reference(data, STREAMS, NAMES).rows)
        kept.append(next(directory.glob(".train.ctf.*.arrow")).read_bytes())
    assert kept[0] == kept[1]
    bad = written(tmp_path / "bad.ctf", data.rstrip() + b"\n100000 |y 1 2\n")
    errors = []
    for workers in (1, 2):
        with pytest.raises(SourceError) as caught:
            open_ctf(bad, STREAMS, fields=NAMES, workers=workers)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    line, byte = data.rstrip().count(b"\n") + 2, len(data.rstrip()) + len(b"\n100000 |")
    assert f"line {line} (byte {byte}): expected 3 values" in errors[0]


# --- errors ----------------------------------------------------------------------------------------------

WRONG = [
    # text, where, what
    (
        "1 |a 1 2\nx2 |a 1 2\n",
        "line 2 (byte 9)",
        "expected an id, which is a whole number, or '|' and a field, got 'x2'",
    ),
    ("1 |a 1 2\n0x2 |a 1 2\n", "line 2 (byte 9)", "expected an id, which is a whole number"),
    ("1 |a 1 2\n2 3 |a 1 2\n", "line 2 (byte 11)", "expected '|' and a field, got '3'"),
    ("1 |a 1 2\n-2 |a 1 2\n", "line 2 (byte 9)", "expected an id"),
    ("1 |a 1 2\n99999999999999999999 |a 1 2\n", "line 2 (byte 9)", "expected an id"),
    ("1 |a 1 2\n2 | 1 2\n", "line 2 (byte 11)", "expected the name of a field after '|'"),
    ("1 |a 1 2\n2 |\xff 1 |a 1 2\n", "line 2 (byte 12)", r"expected the name of a field in UTF-8, got '\xff'"),
    ("1 |a 1 2\n2 |a 1 zwei\n", "line 2 (byte 16)", "expected a number for float32, got 'zwei'"),
    ("1 |a 1 2\n2 |a 0x10 2\n", "line 2 (byte 14)", "expected a number for float32, got '0x10'"),
    ("1 |a 1 2\n2 |a nan(1) 2\n", "line 2 (byte 14)", "expected a number for float32, got 'nan(1)'"),
    ("1 |a 1 2\n2 |a 1 1e39\n", "line 2 (byte 16)", "expected a number for float32, got '1e39'"),
    ("1 |a 1 2\n2 |a 1 \x1b[31m\n", "line 2 (byte 16)", r"got '\x1b[31m'"),
    ("1 |a 1 2\n2 |a 1 2 3\n", "line 2 (byte 18)", "expected 2 values for shape (2,), got 3"),
    ("1 |a 1 2\n2 |a 1\n", "line 2 (byte 12)", "expected 2 values for shape (2,), got 1"),
    ("1 |a 1 2\n2 |a\n", "line 2 (byte 12)", "expected 2 values for shape (2,), got 0"),
    ("1 |a 1 2\n2 |a 1:1 2:1\n", "line 2 (byte 14)", "expected a number for float32, got '1:1'"),
    ("1 |a 1 2\n2 |a 1 2 |a 1 2\n", "line 2 (byte 19)", "field 'a' is there twice on this line"),
    ("1 |a 1 2\n2\n", "line 2 (byte 9)", "sequence '2' has no field on this line"),
    ("1 |a 1 2\n1 |a 1 2\n", "line 2 (byte 11)", "sequence 1 has 2 items of 'a', the first on line 1 above"),
    ("1 |a 1 2\n2 |b 1:1\n2 |c\n", "line 2 (byte 9)", "sequence 2 has no 'a', expected one; it has: b, c"),
    (
        "1 |a 1 2\n3 |a 1 2\n2 |a 1 2\n",
        "line 3 (byte 18)",
        "sequence 2 begins after sequence 3: expected ids that rise",
    ),
    ("1 |a 1 2\n2 |a 1 2\n1 |a 1 2\n", "line 3 (byte 18)", "sequence 1 begins after sequence 2"),
    ("|a 1 2\n|a 1 2\n7 |a 1 2\n", "line 3 (byte 14)", "expected '|' and a field, got '7': the first line has no id"),
    ("|a 1 2\n|c 1\n", "line 2 (byte 7)", "this line has no 'a', expected one; it has: c"),
    ("1 |a 1 2 |b 4:1\n", "line 1 (byte 12)", "index 4 is out of range for shape (4,)"),
    ("1 |a 1 2 |b 0:1 -1:1\n", "line 1 (byte 16)", "index -1 is out of range for shape (4,)"),
    ("1 |a 1 2 |b 9999999999:1\n", "line 1 (byte 12)", "index 9999999999 is out of range for shape (4,)"),
    ("1 |a 1 2 |b 2:1 1:1 2:1\n", "line 1 (byte 20)", "index 2 is there twice in this item"),
    ("1 |a 1 2 |b 2:1 1\n", "line 1 (byte 16)", "expected index:value, got '1'"),
    ("1 |a 1 2 |b 2:1 1:\n", "line 1 (byte 16)", "expected index:value, got '1:'"),
    ("1 |a 1 2 |b 2: 1\n", "line 1 (byte 12)", "expected index:value, got '2:'"),
    ("1 |a 1 2 |b :1\n", "line 1 (byte 12)", "expected index:value, got ':1'"),
    ("1 |a 1 2 |b 1:2:3\n", "line 1 (byte 12)", "expected index:value, got '1:2:3'"),
    ("1 |a 1 2 |b 1.0:2\n", "line 1 (byte 12)", "expected index:value, got '1.0:2'"),
    ("1 |a 1 2 |b 1:zwei\n", "line 1 (byte 14)", "expected a number for float32, got 'zwei'"),
    ("x |# \n|a 1 2\n", "line 1 (byte 0)", "expected an id"),
]


@pytest.mark.parametrize(("text", "where", "what"), WRONG)
def test_what_is_wrong_is_said_with_its_line_and_byte(
    text: str, where: str, what: str, tmp_path: Path, monkeypatch: Any
) -> None:
    for size in (10**6, 5):
        monkeypatch.setattr(build, "BLOCK_BYTES", size)
        monkeypatch.setattr(texts, "WINDOW", size)
        message = told(text.encode("latin-1"), tmp_path, A, B)
        assert f"train.ctf, {where}: " in message
        assert what in message
        assert "\n  " in message
        assert message.endswith('bad_rows="skip".')
        assert "\x1b" not in message


def test_lines_and_bytes_count_from_the_start_of_the_file_in_every_piece(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "BLOCK_BYTES", 64)
    good = "".join(f"{k} |a {k} 1\n" for k in range(500))
    message = told("\ufeff" + good + "500 |a 1 x\n", tmp_path, A)
    byte = len(("\ufeff" + good).encode()) + len("500 |a 1 ")
    assert f"stream 'a' of train.ctf, line 501 (byte {byte}): expected a number for float32, got 'x'" in message


def test_the_first_of_several_faults_is_the_one_that_is_told(tmp_path: Path) -> None:
    text = "1 |a 1 2\n2 |a 1\n3 |a x 1\nx |a 1 2\n2 |a 1 2 |b 9:1\n"
    assert "line 2 (byte 12)" in told(text, tmp_path, A, B)


@pytest.mark.parametrize("text", ["", "\n\n", "|# a\n|# b\n", "  \r\n", "\ufeff"])
def test_a_file_without_rows_is_an_error(text: str, tmp_path: Path) -> None:
    assert "train.ctf holds no sequences" in told(text, tmp_path, A)


def test_a_stream_that_never_occurs_is_an_error_with_the_fields_that_do(tmp_path: Path) -> None:
    message = told(SAMPLE, tmp_path, WORDS, LABEL)
    assert "stream 'words': train.ctf has no field 'words'. Its fields are: x, y." in message
    assert "fields={'words': ...}" in message
    assert "it has: x" in told(SAMPLE, tmp_path, Stream("label", (5,)), WORDS, fields={"words": "x"})


def test_a_file_of_another_encoding_is_an_error(tmp_path: Path) -> None:
    assert "UTF-16" in told(SAMPLE.encode("utf-16"), tmp_path, LABEL)


def test_a_packed_file_that_is_cut_short_or_damaged_is_an_error(tmp_path: Path) -> None:
    data = gzip.compress(SAMPLE.encode() * 1)
    damaged = data[:40] + bytes([data[40] ^ 255]) + data[41:]
    for k, bad in enumerate((data[:-12], data[:30], data[:5], damaged, b"no gzip at all")):
        path = written(tmp_path / f"{k}.ctf.gz", bad)
        with pytest.raises(SourceError, match="cut short or damaged after byte"):
            open_ctf(path, [LABEL])
        assert sorted(tmp_path.glob(".*")) == []


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path / "train.ctf", SAMPLE)
    before = build.has_ids

    def changing(*arguments: Any) -> bool:
        with path.open("a") as file:
            file.write("4 |y 0 0 0 0 1\n")
        return before(*arguments)

    monkeypatch.setattr(build, "has_ids", changing)
    with pytest.raises(SourceError, match="changed while it was read"):
        open_ctf(path, [LABEL])
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_declared_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf", SAMPLE)

    def refused(*streams: Any, **options: Any) -> str:
        with pytest.raises((ConfigError, SourceError)) as caught:
            open_ctf(path, streams, **options)
        return str(caught.value)

    assert "names nothing to read" in refused()
    assert "takes Streams" in refused("y")
    assert "more than once" in refused(LABEL, LABEL)
    assert "Did you mean 'words'" in refused(WORDS, fields={"word": "x"})
    assert "both read from field 'x'" in refused(WORDS, LABEL, fields={"words": "x", "y": "x"})
    assert "neither blanks" in refused(LABEL, fields={"y": "a b"})
    assert "does not begin with '#'" in refused(LABEL, fields={"y": "#y"})
    assert "not read from text" in refused(Stream("y", (5,), "complex64"))
    assert "one dimension is expected" in refused(Stream("y", (5, 2), layout="sparse"))
    assert "bad_rows" in refused(LABEL, bad_rows="ignore")
    assert "workers=" in refused(LABEL, workers=0)
    assert "directory that exists" in refused(LABEL, cache=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="Copy it here"):
        open_ctf("s3://bucket/train.ctf", [LABEL])
    with pytest.raises(DataError, match="No such file"):
        open_ctf(tmp_path / "other.ctf", [LABEL])


# --- bad rows --------------------------------------------------------------------------------------------


def test_sequences_that_are_bad_are_dropped_whole_and_counted_in_one_warning(tmp_path: Path) -> None:
    text = SAMPLE.replace("424:1", "1424:1").replace("0 0 0 1 0", "0 0 0 1")
    path = written(tmp_path / "train.ctf", text)
    options: dict[str, Any] = {"fields": {"words": "x"}, "bad_rows": "skip"}
    for _ in range(2):  # once parsed, once from the cache
        with pytest.warns(UserWarning, match="dropped") as caught:
            table = open_ctf(path, [WORDS, LABEL], **options)
        assert [ids.tolist() for ids in table.rows(0, 2)["words"].ids] == [[560, 0, 0], [160, 5, 6]]
        message = re.sub(r"\s+", " ", str(caught[0].message)).replace(str(path), "train.ctf")
        assert message.startswith("train.ctf: 2 of 4 sequences were dropped. The first: stream 'words' of train.ctf, ")
        assert "line 7 (byte 89): index 1424 is out of range for shape (1000,)" in message
        assert len(caught) == 1
        assert caught[0].filename == __file__


def test_a_line_whose_id_cannot_be_read_takes_the_sequences_on_both_sides_with_it(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf", "1 |a 1 2\n2 |a 1 2\nx3 |a 5 6\n3 |a 1 2\n4 |a 1 2\n")
    with pytest.warns(UserWarning, match="2 of 4 sequences were dropped"):
        assert len(open_ctf(path, [AS], bad_rows="skip")) == 2


def test_a_file_with_nothing_but_bad_rows_is_an_error_all_the_same(tmp_path: Path) -> None:
    message = told("1 |a 1\n2 |a 2\n", tmp_path, A, bad_rows="skip")
    assert "all of its 2 sequences would be dropped. The first: stream 'a' of train.ctf, line 1 (byte 3)" in message


@pytest.mark.parametrize("size", [10**6, 6])
def test_a_sequence_that_comes_too_late_is_dropped_wherever_the_file_is_cut(
    size: int, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(build, "BLOCK_BYTES", size)
    path = written(tmp_path / "train.ctf", "1 |a 1 0\n5 |a 5 0\n3 |a 3 0\n3 |a 3 1\n5 |a 5 2\n6 |a 6 0\n")
    with pytest.warns(UserWarning, match="1 of 5 sequences were dropped"):
        table = open_ctf(path, [AS], bad_rows="skip")
    assert [row["a"] for row in rows_of(table)] == [[[1, 0]], [[5, 0]], [[5, 2]], [[6, 0]]]


LINES = (
    "0 |x 1 |y 1",
    "1 |x q |y 1",
    "1 |x 1 |y 1 2",
    "2 |y 1",
    "x |x 1",
    "3 |x 1 |y",
    "|x 2",
    "1 |x 4 |y 1",
    "9 | 3",
    "7",
)


@given(st.lists(st.sampled_from(LINES), max_size=12), st.booleans())
def test_the_first_fault_is_the_same_whether_or_not_others_are_looked_for(lines: list[str], has_ids: bool) -> None:
    streams, text = [Stream("x"), Stream("y", (1,))], "\n".join(["0 |x 1 |y 1" if has_ids else "|x 1 |y 1", *lines])
    with tempfile.TemporaryDirectory() as directory:
        path = written(Path(directory) / "t.ctf", text)
        stopped, skipped = (fault(path, streams, bad_rows) for bad_rows in ("stop", "skip"))
    assert bool(stopped) == bool(skipped)
    assert stopped in skipped


def fault(path: Path, streams: list[Stream], bad_rows: Any) -> str:
    """What is said of a file in which something may be wrong."""
    with warnings.catch_warnings(record=True) as dropped:
        warnings.simplefilter("always")
        try:
            open_ctf(path, streams, bad_rows=bad_rows)
        except SourceError as error:
            return str(error)
        return "".join(str(warning.message) for warning in dropped)


def test_numbers_among_many_that_are_none_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.ctf"
    rows = [f"{k} |x {'no' if k % 3 else k}\n" for k in range(3000)]
    path.write_text("".join(rows))
    with pytest.warns(UserWarning, match="2,000 of 3,000 sequences were dropped"):
        table = open_ctf(path, [Stream("x")], bad_rows="skip")
    assert table.rows(0, 1000)["x"].tolist() == list(range(0, 3000, 3))
