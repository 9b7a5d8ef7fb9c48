"""A text file is parsed once: what was parsed is kept, found again, and never taken for what it is not."""

import multiprocessing
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import start, tell

from headrace.data.batch import Stream
from headrace.errors import ConfigError, DataError
from headrace.formats import cache
from headrace.formats import text as module
from headrace.formats.text import open_ctf

X = Stream("x", (2,))
B = Stream("b", (9,), layout="sparse", sequence=True)


def made(path: Path, rows: int = 5, first: int = 0) -> Path:
    path.write_text("".join(f"{k} |x {k + first} 1 |b {k % 9}:1\n" for k in range(rows)))
    return path


def kept(directory: Path) -> list[Path]:
    """The caches in a directory."""
    return sorted(path for path in directory.iterdir() if path.name.startswith(".") and path.suffix == ".arrow")


@pytest.fixture
def parses(monkeypatch: Any) -> list[Path]:
    """Every time that a file is parsed."""
    calls: list[Path] = []
    before = module._TextRows.batches

    def counted(rows: Any) -> Any:
        calls.append(Path(rows._file.path))
        return before(rows)

    monkeypatch.setattr(module._TextRows, "batches", counted)
    return calls


def test_a_file_is_parsed_once_for_each_reading_and_content(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    readings: list[tuple[list[Stream], dict[str, Any]]] = [
        ([X], {}),
        ([X, B], {}),
        ([B, X], {}),
        ([Stream("x", (2,), "float64")], {}),
        ([Stream("y", (2,))], {"fields": {"y": "x"}}),
    ]
    prints = [open_ctf(path, streams, **options).fingerprint() for streams, options in readings * 2]
    assert len(parses) == len(readings) == len(set(prints)) == len(kept(tmp_path))
    assert [s.name for s in open_ctf(path, [B, X]).streams] == ["b", "x"]
    before = open_ctf(path, [X])
    os.utime(path, ns=(1, 1))
    assert open_ctf(path, [X]).fingerprint() == before.fingerprint()
    assert len(parses) == len(readings), "a file that was only touched is the same"
    made(path, first=3)
    after = open_ctf(path, [X])
    assert after.rows(0, 1)["x"].tolist() == [[3, 1]]
    assert before.rows(0, 1)["x"].tolist() == [[0, 1]], "what was opened stays"
    assert before.fingerprint() != after.fingerprint()


def test_a_damaged_cache_is_noticed_and_made_again(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf", 50)
    expected = open_ctf(path, [X]).rows(0, 50)["x"]
    (cached,) = kept(tmp_path)
    for file, step in ((cached, 197), (cached.with_suffix(".json"), 17)):
        good = file.read_bytes()
        for number in range(0, len(good), step):
            for bad in (good[:number], good[:number] + bytes([good[number] ^ 1]) + good[number + 1 :], good + b"x"):
                file.write_bytes(bad)
                parses.clear()
                assert torch.equal(open_ctf(path, [X]).rows(0, 50)["x"], expected)
                assert parses == [path]
                assert file.read_bytes() == good
        file.unlink()
        parses.clear()
        assert len(open_ctf(path, [X])) == 50
        assert parses == [path]


def _open_on_a_full_disk(path: Path, queue: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        open_ctf(path, [X])
    except ConfigError as error:
        queue.put(str(error))


def test_a_disk_that_is_full_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    path = made(tmp_path / "train.ctf", 5000)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_open_on_a_full_disk, args=(path, queue))
    child.start()
    message = queue.get(timeout=400)
    child.join(400)
    assert "train.ctf cannot be converted into" in message
    assert "Name a folder with room for it: cache=" in message
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["t[1]*.ctf", "a" * 251 + ".ctf", ".hidden", "train data.txt"])
def test_names_of_files_may_be_long_and_strange_and_the_same(name: str, tmp_path: Path, parses: list[Path]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        made(tmp_path / str(k) / name, first=k)
    for _ in range(2):
        tables = [open_ctf(tmp_path / str(k) / name, [X], cache=shared) for k in range(2)]
        assert [table.rows(0, 1)["x"].tolist() for table in tables] == [[[0, 1]], [[1, 1]]]
    assert len(parses) == len(kept(shared)) == 2


def _open(path: Path, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    barrier.wait(400)
    found = open_ctf(path, [X, B])
    queue.put((len(found), found.fingerprint(), found.rows(0, 3)["x"].tolist()))


def test_two_processes_may_open_a_file_at_once(tmp_path: Path) -> None:
    path = made(tmp_path / "train.ctf", 3000)
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(2), context.Queue()
    children = [context.Process(target=_open, args=(path, barrier, queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = [queue.get(timeout=400) for _ in children]
    for child in children:
        child.join(400)
        assert child.exitcode == 0
    assert found[0] == found[1]
    assert found[0][0] == 3000
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("at", [0, 3, 39])
def test_a_single_value_that_is_not_1_brings_all_values_back(at: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cache, "BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    values = torch.ones(40)
    values[at] = 2.5
    lines = [f"{k // 2} |b {k % 9}:{value}\n" for k, value in enumerate(values.tolist())]
    (tmp_path / "train.ctf").write_text("".join(lines))
    found = open_ctf(tmp_path / "train.ctf", [B])
    assert torch.equal(found.rows(0, 20)["b"].values.values, values)
    assert len(kept(tmp_path)) == 1


def parses_and_tells(path: str) -> None:
    """In a process of its own: how many MB of memory, that is no file's, the second half takes more than the first."""

    def own_mb() -> int:
        line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon"))
        return int(line.split()[1]) // 1024

    def watched(rows: Any) -> Any:
        for batch in batches(rows):
            sizes.append(own_mb())
            yield batch

    cache.BLOCK_BYTES = module.BLOCK_BYTES = 1 << 20
    batches, module._TextRows.batches = module._TextRows.batches, watched  # type: ignore[assignment, method-assign]
    sizes: list[int] = []
    open_ctf(path, [X, Stream("b", (9,), layout="sparse")])
    half = len(sizes) // 2
    tell(f"grew {max(sizes[half:]) - max(sizes[:half])} in {len(sizes)}")


def test_a_large_file_is_parsed_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.ctf"
    path.write_text("".join(f"|x {k} 1 |b {k % 9}:1 {(k + 1) % 9}:0.5\n" for k in range(50_000)) * 40)
    assert path.stat().st_size > 45_000_000
    with start(parses_and_tells, tmp_path, str(path)) as child:
        grown, _, count = child.until("grew").split()
        assert child.ending() == 0, child.output
    assert int(count) > 40
    assert int(grown) < 15


def test_a_table_travels_from_any_directory_and_not_to_another_text(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.ctf").write_text("0 |x 1\n1 |x 2\n")
    table = open_ctf("t.ctf", [Stream("x")])
    sent = pickle.dumps(table)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pickle.loads(sent).rows(0, 2)["x"].tolist() == [1, 2]
    assert pickle.loads(sent).fingerprint() == table.fingerprint()
    (tmp_path / "t.ctf").write_text("0 |x 1\n1 |x 3\n")
    with pytest.raises(DataError, match=r"t\.ctf has changed since this table was opened"):
        pickle.loads(sent)
