"""Data that are too large for memory are converted once into a file that is mapped, and are the same as in memory."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from kit.file_tables import every_row, mixed
from kit.forked import start, tell

import headrace as hr
from headrace.formats import cache as tables
from headrace.formats import write
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def large() -> pa.Table:
    k = np.arange(5000)
    ages = pa.array((k % 90).astype(float), mask=k % 7 == 0)
    names = pa.array([f"name {n % 13}" for n in k], mask=k % 11 == 0)
    return pa.table({"a": k, "b": k / 3, "age": ages, "name": names})


def files(kind: str) -> str:
    if kind == "csv":
        pa.csv.write_csv(large(), "t.csv")
    elif kind == "parquet":
        pa.parquet.write_table(large(), "t.parquet", row_group_size=700)
    elif kind == "arrow":
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file("t.arrow", large().schema, options=options) as writer:
            writer.write_table(large(), 700)
    return f"t.{kind}"


OPTIONS: dict[str, Any] = {
    "columns": {"x": ["a", "b"], "age": "age", "name": "name"},
    "dtypes": {"x": "float32"},
    "nulls": {"age": "mean", "name": "unknown"},
}


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_data_above_the_memory_that_is_allowed_are_the_same_from_a_cache(kind: str, tmp_path: Path) -> None:
    name, cache = files(kind), tmp_path / "cache"
    expected = hr.open_table(name, **OPTIONS)
    found = hr.open_table(name, **OPTIONS, memory_bytes=1000, cache=cache)
    (kept,) = cache.glob("*.arrow")
    assert every_row(found) == every_row(expected)
    assert found.fingerprint() == expected.fingerprint()
    assert found.encoding == expected.encoding
    assert found.block == expected.block
    stamp = kept.stat().st_mtime_ns
    again = hr.open_table(name, **OPTIONS, memory_bytes=1000, cache=cache)
    assert every_row(again) == every_row(expected)
    assert again.encoding == expected.encoding
    assert [path.stat().st_mtime_ns for path in cache.glob("*.arrow")] == [stamp], "it is converted once"
    hr.open_table(name, columns=["a"], memory_bytes=1000, cache=cache)
    assert len([*cache.glob("*.arrow")]) == 2, "another reading has a file of its own"


def test_a_file_that_has_changed_is_converted_again(tmp_path: Path) -> None:
    cache: dict[str, Any] = {"memory_bytes": 0, "cache": tmp_path / "cache"}
    for rows in (100, 90):
        table = mixed(rows)
        write_table(table, "t.parquet")
        assert every_row(hr.open_table("t.parquet", **cache)) == every_row(table)


def is_killed(name: str, cache: str) -> None:
    """Converts a file, up to where the cache would get its name."""
    write.disk.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    hr.open_table(name, columns=["a", "b"], memory_bytes=0, cache=cache)


def test_half_a_cache_of_a_process_that_was_killed_is_never_read(tmp_path: Path) -> None:
    name, cache = files("csv"), tmp_path / "cache"
    with start(is_killed, tmp_path, str(tmp_path / name), cache) as child:
        assert child.ending() == -signal.SIGKILL
    assert any(path.name.endswith(".tmp") for path in cache.iterdir()), "it was killed after it had written"
    found = hr.open_table(name, columns=["a", "b"], memory_bytes=0, cache=cache)
    assert every_row(found) == every_row(hr.open_table(name, columns=["a", "b"]))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    name = files("csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(hr.ConfigError, match=r"too large for memory.*Name a folder with room.*cache="):
        hr.open_table(name, columns=["a"], memory_bytes=0, cache=tmp_path / "file")


def test_the_folder_is_that_of_the_caches_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    name = files("parquet")
    hr.open_table(name, columns=["a"], memory_bytes=0)
    if sys.platform.startswith("linux"):
        assert [*(tmp_path / "caches" / "headrace" / "tables").glob("*.arrow")]


def anonymous() -> int:
    """The memory of this process that is no file's, in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) // 1024


def reads(name: str, cache: str) -> None:
    tables.BLOCK_BYTES = 1 << 22
    before = anonymous()
    reader = hr.Reader(hr.open_table(name, memory_bytes=1 << 20, cache=cache), max_epochs=1)
    while reader.next_batch(1000):
        pass
    tell(f"grew {anonymous() - before}")


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="looks into /proc")
def test_a_file_is_converted_and_read_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    columns = {f"c{k}": np.random.default_rng(k).random(200_000) for k in range(100)}  # 160 MB
    pa.parquet.write_table(
        pa.table(columns), "t.parquet", use_dictionary=False, compression="none", row_group_size=10_000
    )
    with start(reads, tmp_path, str(tmp_path / "t.parquet"), str(tmp_path)) as child:
        assert int(child.until("grew")) < 80
        assert child.ending() == 0, child.output
