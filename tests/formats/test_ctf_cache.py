"""A text file is parsed once: what was parsed is kept, found again, and never taken for what it is not."""

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.data.batch import Stream
from headrace.errors import ConfigError, DataError
from headrace.formats import text as module
from headrace.formats.ctf import build, cache
from headrace.formats.text import open_ctf

X = Stream("x", (2,))
B = Stream("b", (9,), layout="sparse", sequence=True)


def made(path: Path, rows: int = 5, first: int = 0) -> Path:
    path.write_text("".join(f"{k} |x {k + first} 1 |b {k % 9}:1\n" for k in range(rows)))
    return path


def kept(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.startswith("."))


@pytest.fixture
def parses(monkeypatch: Any) -> list[Path]:
    """Every time that a file is parsed."""
    calls: list[Path] = []
    before = module.build

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        calls.append(path)
        return before(path, *arguments, **options)

    monkeypatch.setattr(module, "build", counted)
    return calls


def test_a_second_opening_parses_nothing(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    first = open_ctf(path, [X, B])
    again = open_ctf(path, [X, B])
    assert parses == [path]
    assert torch.equal(first.rows(0, 5)["x"], again.rows(0, 5)["x"])
    assert first.fingerprint() == again.fingerprint()
    names = [file.name for file in kept(tmp_path)]
    assert len(names) == 1
    assert names[0].startswith(".train.ctf.")
    assert names[0].endswith(".arrow")


def test_another_reading_has_a_cache_of_its_own(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    readings: list[tuple[list[Stream], dict[str, Any]]] = [
        ([X], {}),
        ([X, B], {}),
        ([B, X], {}),
        ([Stream("x", (2,), "float64")], {}),
        ([X], {"bad_rows": "skip"}),
        ([Stream("y", (2,))], {"fields": {"y": "x"}}),
    ]
    prints = [open_ctf(path, streams, **options).fingerprint() for streams, options in readings * 2]
    assert len(parses) == len(readings) == len(set(prints)) == len(kept(tmp_path))
    assert [s.name for s in open_ctf(path, [B, X]).streams] == ["b", "x"]


def test_a_file_that_has_changed_is_parsed_again_and_its_old_caches_go(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    before = open_ctf(path, [X])
    open_ctf(path, [B])
    made(path, first=3)
    after = open_ctf(path, [X])
    assert after.rows(0, 1)["x"].tolist() == [[3, 1]]
    assert before.rows(0, 1)["x"].tolist() == [[0, 1]], "what was opened stays"
    assert before.fingerprint() != after.fingerprint()
    assert len(parses) == 3
    assert len(kept(tmp_path)) == 1


def test_a_file_that_was_only_touched_has_the_same_fingerprint(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    before = open_ctf(path, [X]).fingerprint()
    os.utime(path, ns=(1, 1))
    assert open_ctf(path, [X]).fingerprint() == before
    assert len(parses) == 2, "its time may be all that tells of a change in the middle of a large file"


def test_a_damaged_cache_is_noticed_and_made_again(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf", 50)
    expected = open_ctf(path, [X]).rows(0, 50)["x"]
    (cached,) = kept(tmp_path)
    good = cached.read_bytes()
    for number in range(0, len(good), 97):
        for bad in (good[:number], good[:number] + bytes([good[number] ^ 1]) + good[number + 1 :], good + b"x"):
            cached.write_bytes(bad)
            parses.clear()
            assert torch.equal(open_ctf(path, [X]).rows(0, 50)["x"], expected)
            assert parses == [path]
            assert cached.read_bytes() == good


def test_a_cache_that_was_made_to_look_whole_is_made_again(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    open_ctf(path, [X])
    (cached,) = kept(tmp_path)
    parts = cached.name.split("-")
    for content in (b"no Arrow at all", b""):
        cached.unlink(missing_ok=True)
        fake = tmp_path / "fake"
        fake.write_bytes(content)
        fake.rename(tmp_path / f"{parts[0]}-{parts[1]}-{cache._check(fake)}.arrow")
        parses.clear()
        assert len(open_ctf(path, [X])) == 5
        assert parses == [path]
        assert kept(tmp_path) == [cached]


def test_a_directory_that_cannot_be_written_asks_for_another(tmp_path: Path, monkeypatch: Any) -> None:
    path = made(tmp_path / "train.ctf")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = os.open

    def refusing(name: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and Path(name).parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(name))
        return before(name, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(ConfigError, match=r"cannot be kept in .*: Permission denied\. Pass cache="):
        open_ctf(path, [X])
    assert len(open_ctf(path, [X], cache=elsewhere)) == 5
    assert len(kept(elsewhere)) == 1


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
    message = queue.get(timeout=60)
    child.join(60)
    assert message.startswith("the parsed rows of train.ctf cannot be kept in")
    assert "Pass cache= with a directory" in message
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_one_name_may_share_a_directory_for_their_caches(tmp_path: Path, parses: list[Path]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    paths = []
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        paths.append(made(tmp_path / str(k) / "train.ctf", first=k))
    for _ in range(2):
        assert [open_ctf(p, [X], cache=shared).rows(0, 1)["x"].tolist() for p in paths] == [[[0, 1]], [[1, 1]]]
    assert len(parses) == len(kept(shared)) == 2


def test_names_of_files_may_be_long_and_strange(tmp_path: Path, parses: list[Path]) -> None:
    for name in ("t[1]*.ctf", "a" * 251 + ".ctf", ".hidden", "train data.txt"):
        path = made(tmp_path / name)
        assert len(open_ctf(path, [X])) == len(open_ctf(path, [X])) == 5
    assert len(parses) == 4


def test_half_a_file_of_a_killed_process_is_never_taken_for_a_cache(tmp_path: Path, parses: list[Path]) -> None:
    path = made(tmp_path / "train.ctf")
    unfinished = tmp_path / f".train.ctf.{'0' * 16}.tmp"
    unfinished.write_bytes(b"half")
    assert len(open_ctf(path, [X])) == len(open_ctf(path, [X])) == 5
    assert parses == [path]
    assert unfinished.read_bytes() == b"half"


def _open(path: Path, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    barrier.wait(60)
    found = open_ctf(path, [X, B])
    queue.put((len(found), found.fingerprint(), found.rows(0, 3)["x"].tolist()))


def test_two_processes_may_open_a_file_at_once(tmp_path: Path) -> None:
    path = made(tmp_path / "train.ctf", 3000)
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(2), context.Queue()
    children = [context.Process(target=_open, args=(path, barrier, queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert found[0] == found[1]
    assert found[0][0] == 3000
    assert len(kept(tmp_path)) == 1


def test_a_table_travels_to_another_process_by_name(tmp_path: Path) -> None:
    found = open_ctf(made(tmp_path / "train.ctf"), [X])
    again = pickle.loads(pickle.dumps(found))
    assert again.fingerprint() == found.fingerprint()
    assert torch.equal(again.rows(0, 5)["x"], found.rows(0, 5)["x"])


@pytest.mark.parametrize("at", [0, 3, 39])
def test_a_single_value_that_is_not_1_brings_all_values_back(at: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "BATCH_BYTES", 1)
    monkeypatch.setattr(build, "BLOCK_BYTES", 1)
    values = torch.ones(40)
    values[at] = 2.5
    lines = [f"{k // 2} |b {k % 9}:{value}\n" for k, value in enumerate(values.tolist())]
    (tmp_path / "train.ctf").write_text("".join(lines))
    found = open_ctf(tmp_path / "train.ctf", [B])
    assert torch.equal(found.rows(0, 20)["b"].values.values, values)
    assert len(kept(tmp_path)) == 1


def test_many_pieces_make_few_record_batches(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "BLOCK_BYTES", 30)
    path = made(tmp_path / "train.ctf", 200)
    assert open_ctf(path, [X, B]).block == 200
    monkeypatch.setattr(build, "BATCH_BYTES", 1000)
    again = open_ctf(path, [B, X])
    assert again.block is not None
    assert again.block < 100
    assert again.rows(0, 200)["x"][:, 0].tolist() == list(range(200))


@pytest.mark.slow
def test_a_large_file_is_parsed_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.ctf"
    line = "".join(f"|x {k} 1 |b {k % 9}:1 {(k + 1) % 9}:0.5\n" for k in range(50_000))
    with path.open("w") as file:
        while file.tell() < 300_000_000:
            file.write(line)
    code = (
        "import sys, threading, time\n"
        "from headrace.data.batch import Stream\n"
        "from headrace import open_ctf\n"
        "def own():\n"
        "    return int(next(l for l in open('/proc/self/status') if l.startswith('RssAnon')).split()[1]) // 1024\n"
        "import pyarrow, pyarrow.compute, pyarrow.ipc\n"
        "before, peak, done = own(), 0, False\n"
        "def watch():\n"
        "    global peak\n"
        "    while not done:\n"
        "        peak = max(peak, own())\n"
        "        time.sleep(0.01)\n"
        "thread = threading.Thread(target=watch)\n"
        "thread.start()\n"
        "open_ctf(sys.argv[1], [Stream('x', (2,)), Stream('b', (9,), layout='sparse')])\n"
        "done = True\n"
        "thread.join()\n"
        "print(peak - before)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 600


def test_a_cache_that_is_gone_or_closed_to_us_is_not_there(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "t.ctf"
    path.write_text("0 |x 1\n1 |x 2\n")
    open_ctf(path, [Stream("x")])
    whole = cache._check
    asked: list[Path] = []

    def gone(path: Path) -> str:
        asked.append(path)
        if len(asked) == 1:
            path.unlink()
        return whole(path)

    monkeypatch.setattr(cache, "_check", gone)
    assert len(open_ctf(path, [Stream("x")])) == 2


def test_a_table_travels_from_any_directory_and_not_to_another_text(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.ctf").write_text("0 |x 1\n1 |x 2\n")
    sent = pickle.dumps(open_ctf("t.ctf", [Stream("x")]))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert pickle.loads(sent).rows(0, 2)["x"].tolist() == [1, 2]
    (tmp_path / "t.ctf").write_text("0 |x 1\n1 |x 3\n")
    with pytest.raises(DataError, match=r"t\.ctf has changed since this table was opened"):
        pickle.loads(sent)
