"""CNTK's text format: what a line may be, the same rows however a file is cut, and errors that say where."""

import gzip
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.ctf_files import NAMES, STREAMS, damaged, plain, valid
from kit.ctf_reference import Bad, Outcome, number, reference
from kit.sampled import seeds

from headrace.data.batch import Stream
from headrace.data.ragged import Ragged
from headrace.data.source import Table
from headrace.data.sparse import Sparse
from headrace.errors import ConfigError, DataError, HeadraceError, SourceError
from headrace.formats import text as module
from headrace.formats.ctf import blocks
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
Pieces = Callable[[int, int], None]


@pytest.fixture
def pieces(monkeypatch: Any) -> Pieces:
    """Makes files be read in blocks of so many bytes, of which so many are looked at where they are cut."""

    def of(size: int, more: int) -> None:
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        monkeypatch.setattr(blocks, "MORE_BYTES", more)

    monkeypatch.setattr("headrace.store.disk._sync", lambda *_: None)  # nothing waits for the disk
    monkeypatch.setattr("headrace.store.disk._sync_dir", lambda *_: None)
    return of


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(table: Table) -> list[dict[str, Any]]:
    batch = table.rows(0, len(table))
    return plain(dict(batch.fields), batch.rows)


def seen(rows: Any) -> str:
    """Rows as text: numbers as floats, since a NaN is not equal to itself."""
    if isinstance(rows, dict):
        return str({name: seen(rows[name]) for name in sorted(rows)})
    return str([seen(row) for row in rows]) if isinstance(rows, list | tuple) else str(float(rows))


def told(text: str | bytes, tmp_path: Path, *streams: Stream, **options: Any) -> str:
    """The error that a file comes to, after its path."""
    path = written(tmp_path / "train.ctf", text)
    with pytest.raises(SourceError) as caught:
        open_ctf(path, streams, **options)
    return str(caught.value).replace(str(path), "train.ctf")


# --- rows ------------------------------------------------------------------------------------------------


def test_the_sample_of_fourteen_lines_is_four_sequences_with_a_label_each(tmp_path: Path) -> None:
    path = written(tmp_path / "train.ctf", SAMPLE)
    table = open_ctf(path, [WORDS, LABEL], fields={"words": "x"})
    assert list(table.streams) == [WORDS, LABEL]
    batch = table.take(torch.tensor([3, 0, 1, 2]))
    words, labels = batch["words"], batch["y"]
    assert isinstance(words, Ragged)
    assert isinstance(words.values, Sparse)
    assert words.values.values is None, "every value is 1"
    assert [ids.tolist() for ids in words.ids] == [[460, 3, 3, 425], [560, 0, 0], [560, 0, 0, 424], [160, 5, 6]]
    assert torch.equal(labels, torch.eye(5)[[3, 0, 1, 2]])
    assert table.lengths("words").tolist() == [3, 4, 3, 4]
    for k, other in enumerate(
        (SAMPLE[:-1], SAMPLE.replace("\n", "\r\n"), "\ufeff" + SAMPLE[:-1].replace("\n", "\r\n"))
    ):
        again = open_ctf(written(tmp_path / f"{k}.ctf", other), [WORDS, LABEL], fields={"words": "x"})
        assert rows_of(again) == rows_of(table)
    packed = written(tmp_path / "train.ctf.gz", gzip.compress(SAMPLE.encode()))
    assert rows_of(open_ctf(packed, [WORDS, LABEL], fields={"words": "x"})) == rows_of(table)


LABELS = [Stream(name, ()) for name in ("labels", "labels_of_all", "labels_of_all_words", "größe")]
READ: list[tuple[list[Stream], str, list[dict[str, Any]]]] = [
    *(
        ([A, B], text, [{"a": [[1, 2]], "b": [[(3, 1)]]}])
        for text in (
            "1 |b 3:1 |a 1 2",
            "1|a 1 2|b 3:1",
            "1\t|a\t1\t2\t|b\t3:1\t",
            "  1  |a  1  2  |b  3:1  \r\n",
            "1 |# a comment, 5 |# with a bar: |# |a 1 2 |# and 1:2 nan(1) |b 3:1 |#",
        )
    ),
    ([A], "1 |c so: it (goes) |aa 7 |a 1 2 |é x\n1 |A 5 |c |c", [{"a": [[1, 2]]}]),
    (
        LABELS,
        "|labels_of_all 2 |labels 1 |labels_of_all_words 3 |größe 4 |labels_of 9 |größer 5 |labels_of_all_wordz 7",
        [{"labels": [[1]], "labels_of_all": [[2]], "labels_of_all_words": [[3]], "größe": [[4]]}],
    ),
    (
        [AS],
        "4 |a 1 2\n|a 3 4\n5 |a 5 6\n |a 7 8\n5 |a 9 0\n",
        [{"a": [[1, 2], [3, 4]]}, {"a": [[5, 6], [7, 8], [9, 0]]}],
    ),
    ([A], "|# made by hand\n\n|a 1 2\n|a 3 4\n  \n|# the end\n|a 5 6", [{"a": [[k, k + 1]]} for k in (1, 3, 5)]),
    ([AS], "|# id, then a\n7 |a 1 2\n7 |a 3 4\n", [{"a": [[1, 2], [3, 4]]}]),
    (
        [A, B],
        "1 |b 0:1\n1 |a 1 2\n1 |b 2:5\n2 |a 3 4\n3 |# empty |a 0 0\n",
        [{"a": [[1, 2]], "b": [[(0, 1)], [(2, 5)]]}, {"a": [[3, 4]], "b": []}, {"a": [[0, 0]], "b": []}],
    ),
    ([B], "1 |b\n1 |b 3:1 0:2 2:-1 |# \n1 |b 1:1", [{"b": [[], [(3, 1), (0, 2), (2, -1)], [(1, 1)]]}]),
]


@pytest.mark.parametrize(("streams", "text", "rows"), READ)
def test_what_a_line_may_be(streams: list[Stream], text: str, rows: Any, tmp_path: Path) -> None:
    assert seen(rows_of(open_ctf(written(tmp_path / "t.ctf", text), streams))) == seen(rows)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64", "float16", "bfloat16", "float64", "bool"])
def test_every_dtype_is_read(dtype: str, tmp_path: Path) -> None:
    table = open_ctf(written(tmp_path / "t.ctf", "|a 1 0 1\n|a 0 1 1"), [Stream("a", (3,), dtype)])
    assert table.rows(0, 2)["a"].tolist() == [[1, 0, 1], [0, 1, 1]]


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=True).map(repr),
    st.floats(width=32).map(lambda x: np.format_float_scientific(np.float32(x))),
    st.text("0123456789+-.eEinfaNyx(_", max_size=9),
    st.sampled_from(["1e400", "-1e400", "1e-400", "1.", ".5", ".", "+1", "++1", "1e", "0x10", "nan(1)", "Infinity"]),
)


@given(
    words=st.lists(NUMBERS.filter(bool), min_size=1, max_size=60),
    kind=st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint64", "uint32", "bool"]),
)
def test_numbers_are_those_that_python_reads(words: list[str], kind: str, tmp_path_factory: Any) -> None:
    path, streams = tmp_path_factory.mktemp("numbers") / "t.ctf", [Stream("a", (), kind)]
    expected, good = list[float](), list[str]()
    for line, word in enumerate(words, 1):
        try:
            expected.append(float(number(word.encode(), kind)))
            good.append(word)
        except Bad:
            if line == len(good) + 1:  # the first of them
                written(path, "".join(f"|a {word}\n" for word in words))
                with pytest.raises(SourceError, match=f"line {line}: stream .a.: expected a number"):
                    open_ctf(path, streams)
    if not good:
        return
    found = open_ctf(written(path, "".join(f"|a {word}\n" for word in good)), streams)
    assert repr([float(value) for value in found.rows(0, len(found))["a"].tolist()]) == repr(expected)


# --- the same rows, or an error on the same line, however a file is cut ----------------------------------------


@pytest.mark.parametrize("seed", seeds(7, nightly=40))
def test_a_file_cut_anywhere_has_the_rows_of_the_plain_parser(seed: int, tmp_path: Path, pieces: Pieces) -> None:
    random = Random(seed)
    data = valid(random, random.randrange(1, 15), ids=random.random() < 0.8)
    expected = reference(data, STREAMS, NAMES)
    assert expected.first_bad_line is None
    if any(all(not row[s.name] for row in expected.rows) for s in STREAMS):
        return  # a stream that never occurs is an error
    for k, size in enumerate([1, 7, 50, 300, 10**6]):
        pieces(size, random.choice([4, 50, 1 << 16]))
        for name, content in ((f"{k}.ctf", data), (f"{k}.ctf.gz", gzip.compress(data))):
            table = open_ctf(written(tmp_path / name, content), STREAMS, fields=NAMES)
            assert seen(rows_of(table)) == seen(expected.rows)


def verdict(path: Path) -> tuple[str, Any]:
    """The rows of a file, or the first line of it that is said to be wrong, or that there is nothing in it."""
    try:
        table = open_ctf(path, STREAMS, fields=NAMES)
    except HeadraceError as error:
        message = str(error)
        assert all(c.isprintable() or c == "\n" for c in message), "nothing that a terminal obeys"
        if "holds no sequences" in message or "Its fields are:" in message:
            return "nothing", message
        return "line", int(re.search(r", line (\d+): ", message)[1])  # type: ignore[index]
    return "rows", seen(rows_of(table))


def expected(outcome: Outcome) -> tuple[str, Any]:
    if outcome.first_bad_line is not None:
        return "line", outcome.first_bad_line
    return ("rows", seen(outcome.rows)) if outcome.rows else ("nothing", None)


def survey(numbers: Iterable[int], tmp_path: Path, monkeypatch: Any, pieces: Pieces) -> Counter[str]:
    """What changed files came to, each read at once and in small pieces."""
    outcomes: Counter[str] = Counter()
    for seed in numbers:
        random = Random(seed)
        data = damaged(valid(random, random.randrange(1, 12), ids=random.random() < 0.8), random)
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            continue
        path, truth = written(tmp_path / f"{seed}.ctf", data), reference(data, STREAMS, NAMES)
        monkeypatch.setattr(module, "EXACT_BYTES", random.choice([20, 1 << 16]))
        pieces(random.choice([7, 40, 200, 1 << 20, 1 << 20]), random.choice([5, 64, 1 << 16]))
        start_s = time.process_time()
        found, wanted = verdict(path), expected(truth)
        assert time.process_time() - start_s < 10
        for left in tmp_path.iterdir():
            left.unlink()
        if found[0] == "nothing" and wanted[0] == "rows" and "Its fields are:" in str(found[1]):
            continue  # a stream that is on no line of the file
        assert found[0] == wanted[0], (seed, found, wanted)
        assert found[0] == "nothing" or found == wanted, seed
        outcomes[found[0]] += 1
    return outcomes


@pytest.mark.parametrize(
    ("first", "count"), [(0, 30), pytest.param(300, 120, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_a_changed_file_is_an_error_on_the_right_line_or_the_right_rows(
    first: int, count: int, tmp_path: Path, monkeypatch: Any, pieces: Pieces
) -> None:
    chosen = [first + seed for seed in seeds(count, nightly=6 * count)]
    outcomes = survey(chosen, tmp_path, monkeypatch, pieces)
    noticed = "hardly a change was noticed, or each was: are they made?"
    assert min(outcomes["line"], outcomes["rows"]) > len(chosen) / 6, noticed


def test_a_wrong_line_would_be_seen(tmp_path: Path, monkeypatch: Any, pieces: Pieces) -> None:
    true = vars(module)["fault_of"]

    def moved(*given: Any) -> Any:
        last, fault = true(*given)
        return last, fault and (fault[0] + 1, fault[1])

    monkeypatch.setattr(module, "fault_of", moved)
    with pytest.raises(AssertionError):
        survey(range(50), tmp_path, monkeypatch, pieces)


# --- errors ----------------------------------------------------------------------------------------------

WRONG = [
    # text, line, what
    ("1 |a 1 2\nx2 |a 1 2\n", 2, "expected an id, which is a whole number, or '|' and a field, got 'x2'"),
    ("1 |a 1 2\n2 3 |a 1 2\n", 2, "expected '|' and a field, got '3'"),
    ("1 |a 1 2\n99999999999999999999 |a 1 2\n", 2, "expected an id"),
    ("1 |a 1 2\n2 | 1 2\n", 2, "expected the name of a field after '|'"),
    ("1 |a 1 2\n2 |\xff 1 |a 1 2\n", 2, r"expected the name of a field in UTF-8, got '\xff'"),
    ("1 |a 1 2\n2 |a 1 zwei\n", 2, "stream 'a': expected a number for float32, got 'zwei'"),
    ("1 |a 1 2\n2 |a 1 1e39\n", 2, "expected a number for float32, got '1e39'"),
    ("1 |a 1 2\n2 |a 1 \x1b[31m\n", 2, r"got '\x1b[31m'"),
    ("1 |a 1 2\n2 |a 1 2 3\n", 2, "expected 2 values for shape (2,), got 3"),
    ("1 |a 1 2\n2 |a\n", 2, "expected 2 values for shape (2,), got 0"),
    ("1 |a 1 2\n2 |a 1 2 |a 1 2\n", 2, "field 'a' is there twice on this line"),
    ("1 |a 1 2\n2\n", 2, "sequence '2' has no field on this line"),
    ("1 |a 1 2\n1 |a 1 2\n", 2, "sequence 1 has 2 items of 'a', expected one"),
    ("1 |a 1 2\n2 |b 1:1\n2 |c\n", 2, "sequence 2 has no 'a', expected one; it has: b, c"),
    ("1 |a 1 2\n3 |a 1 2\n2 |a 1 2\n", 3, "sequence 2 begins after sequence 3: expected ids that rise"),
    ("|a 1 2\n|a 1 2\n7 |a 1 2\n", 3, "expected '|' and a field, got '7': the first line has no id"),
    ("|a 1 2\n|c 1\n", 2, "this line has no 'a', expected one; it has: c"),
    ("1 |a 1 2 |b 4:1\n", 1, "index 4 is out of range for shape (4,)"),
    ("1 |a 1 2 |b 9999999999:1\n", 1, "index 9999999999 is out of range for shape (4,)"),
    ("1 |a 1 2 |b 2:1 1:1 2:1\n", 1, "index 2 is there twice in this item"),
    ("1 |a 1 2 |b 2:1 1\n", 1, "expected index:value, got '1'"),
    ("1 |a 1 2 |b 2: 1\n", 1, "expected index:value, got '2:'"),
    ("1 |a 1 2 |b 1:zwei\n", 1, "stream 'b': expected a number for float32, got 'zwei'"),
    ("x |# \n|a 1 2\n", 1, "expected an id"),
    ("1 |a 1 2\n2 |a 1\n3 |a x 1\nx |a 1 2\n2 |a 1 2 |b 9:1\n", 2, "got 1"),
    ("\ufeff" + "".join(f"{k} |a {k} 1\n" for k in range(100)) + "100 |a 1 x\n", 101, "got 'x'"),
]


@pytest.mark.parametrize(("text", "line", "what"), WRONG)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, what: str, tmp_path: Path, pieces: Pieces) -> None:
    for size in (10**6, 5):
        pieces(size, size)
        message = told(text.encode("utf-8" if text[0] == "\ufeff" else "latin-1"), tmp_path, A, B)
        assert f"train.ctf, line {line}: " in message
        assert what in message
        assert message.endswith("as it is there.")
        assert "\x1b" not in message


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
    other = data[:40] + bytes([data[40] ^ 255]) + data[41:]
    for k, bad in enumerate((data[:-12], data[:30], data[:5], other, b"no gzip at all")):
        with pytest.raises(SourceError, match="cut short or damaged"):
            open_ctf(written(tmp_path / f"{k}.ctf.gz", bad), [LABEL])
        assert sorted(tmp_path.glob(".*")) == []


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    path, before = written(tmp_path / "train.ctf", SAMPLE), vars(module)["has_ids"]

    def changing(lines: Any) -> Any:
        with path.open("a") as file:
            file.write("4 |y 0 0 0 0 1\n")
        return before(lines)

    monkeypatch.setattr(module, "has_ids", changing)
    with pytest.raises(SourceError, match="changed while it was read"):
        open_ctf(path, [LABEL])
    assert list(tmp_path.iterdir()) == [path]


REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([], {}, "names nothing to read"),
    (["y"], {}, "takes Streams"),
    ([LABEL, LABEL], {}, "more than once"),
    ([WORDS], {"fields": {"word": "x"}}, "Did you mean 'words'"),
    ([WORDS, LABEL], {"fields": {"words": "x", "y": "x"}}, "both read from field 'x'"),
    ([LABEL], {"fields": {"y": "a b"}}, "neither blanks"),
    ([LABEL], {"fields": {"y": "#y"}}, "does not begin with '#'"),
    ([Stream("y", (5,), "complex64")], {}, "not read from text"),
    ([Stream("y", (5, 2), layout="sparse")], {}, "one dimension is expected"),
    ([LABEL], {"cache": "nowhere"}, "directory that exists"),
]


@pytest.mark.parametrize(("streams", "options", "said"), REFUSED)
def test_what_cannot_be_declared_is_refused(streams: Any, options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SourceError), match=re.escape(said)):
        open_ctf(written(tmp_path / "train.ctf", SAMPLE), streams, **options)


def test_a_file_that_is_not_there_or_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Copy it here"):
        open_ctf("s3://bucket/train.ctf", [LABEL])
    with pytest.raises(DataError, match="there is no file"):
        open_ctf(tmp_path / "other.ctf", [LABEL])
