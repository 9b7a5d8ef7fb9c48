"""Thousands of text files with something changed in them: what comes of each is what a plain parser says of it."""

import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.ctf_files import NAMES, STREAMS, plain, spoilt, valid
from kit.ctf_reference import Outcome, reference
from kit.sampled import sampled, seeds

from headrace.errors import HeadraceError
from headrace.formats.ctf import build
from headrace.formats.ctf import text as texts
from headrace.formats.ctf.exact import Problem
from headrace.formats.text import open_ctf

LIMIT_S = 1.0
WHERE = re.compile(r"line (\d+) \(byte (\d+)\): ")


def seen(rows: Any) -> str:
    """Rows as text: numbers as floats, since a NaN is not equal to itself."""
    if isinstance(rows, dict):
        return str({name: seen(rows[name]) for name in sorted(rows)})
    if isinstance(rows, list | tuple):
        return str([seen(row) for row in rows])
    return str(float(rows))


def verdict(path: Path, bad_rows: Any) -> tuple[str, Any]:
    """The rows of a file, or the first line of it that is said to be wrong, or that there is nothing in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was dropped
            table = open_ctf(path, STREAMS, fields=NAMES, bad_rows=bad_rows)
    except HeadraceError as error:
        message = str(error)
        assert all(c.isprintable() or c == "\n" for c in message), "nothing that a terminal obeys"
        if "holds no sequences" in message or "would be dropped" in message or "Its fields are:" in message:
            return "nothing", message
        return "line", int(WHERE.search(message)[1])  # type: ignore[index]
    batch = table.rows(0, len(table))
    return "rows", seen(plain(dict(batch.fields), batch.rows))


def expected(outcome: Outcome, bad_rows: str) -> tuple[str, Any]:
    if bad_rows == "stop" and outcome.first_bad_line is not None:
        return "line", outcome.first_bad_line
    return ("rows", seen(outcome.rows)) if outcome.rows else ("nothing", None)


def survey(seeds: Iterable[int], tmp_path: Path, monkeypatch: Any) -> Counter[str]:
    """What changed files came to, each read whole and in small pieces, stopping and skipping."""
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        data = valid(random, random.randrange(1, 12), ids=random.random() < 0.8)
        assert reference(data, STREAMS, NAMES).first_bad_line is None
        data = spoilt(data, random)
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            continue
        path = tmp_path / f"{seed}.ctf"
        path.write_bytes(data)
        truth = reference(data, STREAMS, NAMES)
        monkeypatch.setattr(texts, "WINDOW", random.choice([5, 64, 1 << 16]))
        monkeypatch.setattr(build, "EXACT_BYTES", random.choice([20, 1 << 16]))
        monkeypatch.setattr(build, "BLOCK_BYTES", random.choice([7, 40, 200, 1 << 20, 1 << 20]))
        for bad_rows in ("stop", "skip"):
            start_s = time.process_time()
            found = verdict(path, bad_rows)
            assert time.process_time() - start_s < LIMIT_S
            wanted = expected(truth, bad_rows)
            if found[0] == "nothing" and wanted[0] == "rows" and "Its fields are:" in str(found[1]):
                continue  # a stream that is on no line of the file
            assert found[0] == wanted[0], (seed, bad_rows, found, wanted)
            assert found[0] == "nothing" or found == wanted, (seed, bad_rows)
            outcomes[found[0]] += 1
        for left in tmp_path.iterdir():
            left.unlink()
    return outcomes


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: Any) -> None:
    """Nothing is waited for until it is on the disk: there are thousands of files."""
    monkeypatch.setattr("headrace.store.disk._sync", lambda *_: None)
    monkeypatch.setattr("headrace.store.disk._sync_dir", lambda *_: None)


@pytest.mark.takes_turns
def test_a_changed_file_is_an_error_on_the_right_line_or_the_right_rows(tmp_path: Path, monkeypatch: Any) -> None:
    chosen = seeds(50, nightly=300)
    outcomes = survey(chosen, tmp_path, monkeypatch)
    noticed = "hardly a change was noticed, or each was: are they made?"
    assert min(outcomes["line"], outcomes["rows"]) > len(chosen) / 6, noticed


@pytest.mark.slow
@pytest.mark.parametrize("first", sampled(range(300, 2300, 400), of=5))
def test_of_two_thousand_changed_files_none_is_misread(first: int, tmp_path: Path, monkeypatch: Any) -> None:
    outcomes = survey(range(first, first + 400), tmp_path, monkeypatch)
    assert min(outcomes["line"], outcomes["rows"]) > 100


def test_a_wrong_line_would_be_seen(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Problem, "moved", lambda self, lines, offset: self)
    with pytest.raises(AssertionError):
        survey(range(50), tmp_path, monkeypatch)
